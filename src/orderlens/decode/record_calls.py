"""One call of a network that another decoder makes: its token ids, its logits, and where its window is.

Reads arguments and results as the published decoders pass them. Does not depend on runs.

Shape letters: N sequences, W positions of the call, L positions of the canvas, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.models.wrapped import logits_of

Window: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], int]
"""(args, kwargs) of a call → position of its first token in the canvas."""
IDS = ("input_ids", "ids", "tokens", "x", "indices", "idx")
CACHES = ("past_key_values", "past_key_value", "cache", "kv_cache")
REMEDY = "pass window=lambda args, kwargs: … that returns the position of its first token"


def ids_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the token ids [N, W] of a call; the tensor itself where it has two dimensions."""
    named = [kwargs[name] for name in IDS if name in kwargs]
    for values in (named, args, list(kwargs.values())):
        found = [value for value in values if isinstance(value, Tensor) and value.ndim in (1, 2)]
        found = [value for value in found if value.dtype in (torch.int64, torch.int32)]
        if found:  # a batch, rather than one time per text
            best = max(found, key=lambda value: value.ndim)
            return best if best.ndim == 2 else best[None]
    raise UserInputError(
        "the recorded network was called without token ids; record the module that receives ids [N, L]"
    )


def logits_rows(found: Any, ids_NW: Tensor, kwargs: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the logits [N, K, V] of a call, and the place in its window of their first row."""
    logits = logits_of(found)
    if isinstance(logits, Tensor) and logits.ndim == 2 and ids_NW.shape[0] == 1:
        logits = logits[None]
    kept = kwargs.get("logits_to_keep", kwargs.get("num_logits_to_keep", 0))
    width = ids_NW.shape[1]
    expected = (ids_NW.shape[0], min(kept or width, width) if isinstance(kept, int) else width)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or tuple(logits.shape[:2]) != expected:
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserInputError(
            f"the recorded network returned {shape} for ids {list(ids_NW.shape)}, not logits [N, L, V]; "
            "record the module whose result is, or starts with, the logits"
        )
    return logits.detach(), width - expected[1]


class HostCopy:
    """The values of a tensor at one moment, on the host; the copy does not wait for the device.

    A copy from CUDA runs in the stream of the caller: it sees what was written before it, and is complete
    long before the kernels that are launched after it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.detach().to("cpu", non_blocking=tensor.is_cuda, copy=True)
        self._event = torch.cuda.Event() if tensor.is_cuda else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensor.device))

    def get(self) -> Tensor:
        """Return the values, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


class CallInputs:
    """What a call was given, taken before it is made: it may extend the cache, and ids may be overwritten.

    ``replace_position`` (Fast-dLLM) marks the window in the canvas, ``cache_position`` and ``position_ids``
    count positions, and the length of a cache is the number of tokens before the window.

    Attributes:
        ids: the caller's token ids [N, W].
        is_cached: whether the call passes keys and values of earlier tokens.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], window: Window | None) -> None:
        self.ids = ids_of(args, kwargs).detach()
        self._ids, self._window = HostCopy(self.ids), None if window is None else int(window(args, kwargs))
        lengths = [_cache_length(kwargs[name]) for name in CACHES if kwargs.get(name) is not None]
        self.is_cached = any(length != 0 for length in lengths)
        self._length = next((length for length in lengths if length is not None), None)
        marked = kwargs.get("replace_position")
        self._marked = None
        if isinstance(marked, Tensor) and marked.dtype == torch.bool:
            self._marked = HostCopy(marked)
        counted = (kwargs.get(name) for name in ("cache_position", "position_ids"))
        self._counted = [HostCopy(places) for places in counted if isinstance(places, Tensor)]

    @property
    def copy(self) -> Tensor:
        """The token ids [N, W] on the host."""
        return self._ids.get().long()

    @property
    def start(self) -> int | None:
        """Position of the first token as the arguments tell it; None if they do not."""
        if self._window is not None:
            return self._window
        if self._marked is not None and bool((marked := self._marked.get()).any()):
            return int(marked.reshape(-1, marked.shape[-1])[0].long().argmax())
        for places in self._counted:
            if (found := _first_position(places.get())) is not None:
                return found
        return self._length


def to_device(indices: Tensor, device: torch.device) -> Tensor:
    """Return indices of the host on the device of the logits, without waiting for it."""
    if device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices.to(device)


def _first_position(places: Tensor) -> int | None:
    """Return the first of consecutive positions; None where rows differ, as with padded prompts."""
    if places.ndim not in (1, 2) or not places.numel():
        return None
    rows = places.reshape(-1, places.shape[-1])
    plain = rows[:1, :1] + torch.arange(rows.shape[1])
    return int(rows[0, 0]) if bool((rows == plain).all()) else None


def _cache_length(cache: Any) -> int | None:
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    try:
        return int(cache[0][0].shape[-2])  # per layer: keys and values [N, heads, length, width]
    except (TypeError, IndexError, KeyError, AttributeError):
        return None


def prompted_half(ids_NW: Tensor, mask_id: int) -> slice | None:
    """Return the half of a batch whose prompt is masked in the other half; None if there is none."""
    half = len(ids_NW) // 2
    if len(ids_NW) % 2 or not half:
        return None
    parts = slice(0, half), slice(half, None)
    differs = ids_NW[parts[0]] != ids_NW[parts[1]]
    for part, other in (parts, parts[::-1]):
        if bool(differs.any() & (~differs | (ids_NW[other] == mask_id)).all()):
            return part
    return None


def mix_guidance(logits_NKV: Tensor, scale: float, part: slice) -> Tensor:
    """Return the logits that classifier-free guidance decides with: u + (scale + 1) (c − u).

    Args:
        logits_NKV: of both halves of a batch.
        scale: of guidance.
        part: the half with the prompt.
    """
    both = logits_NKV.float().chunk(2)
    given, free = both if part.start == 0 else both[::-1]
    return free + (scale + 1) * (given - free)


class Observer(Protocol):
    """Receives the calls of a network."""

    def before(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take in the arguments of a call before it is made."""

    def after(self, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> None:
        """Take in what the call returned."""


class Observed:
    """A plain callable that reports its calls; other attributes are those of the callable."""

    def __init__(self, network: Any, observer: Observer) -> None:
        self._network, self._observer = network, observer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._observer.before(args, kwargs)
        found = self._network(*args, **kwargs)
        self._observer.after(args, kwargs, found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)
