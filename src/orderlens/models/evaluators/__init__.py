"""Autoregressive models that score finished text (``--evaluator``): they have no reveal orders.

This module runs texts in batches through a causal model and returns the log-probabilities of their tokens.
A window is the part of a text that one forward sees. Windows of similar length share a batch, padded on the
right; under causal attention padding cannot change earlier positions. On a GPU all batches are queued before
the first result is awaited. Does not depend on tokenizers or networks: the caller passes a forward.

Shape letters: N windows, W width of a batch, R scored tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.engine.transfer import start_copy_to_host, to_device

FloatArray = NDArray[np.float64]
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(tokens_NW, lengths_N, places_R, targets_R) → log-probabilities [R] of the targets; each target follows the
token at its place in the flattened tokens."""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text for one forward: all ``ids`` but the last are inputs, the last ``n_scored`` are scored.

    Attributes:
        owner: index of the text.
        ids: tokens; at least one precedes the first scored one.
        n_scored: number of scored tokens.
        last: whether this is the text's last window.
    """

    owner: int
    ids: NDArray[np.int64]
    n_scored: int
    last: bool = True


def start_windows(
    windows: Sequence[Window],
    forward: Forward,
    device: torch.device,
    batch_tokens: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Callable[[], list[FloatArray]]:
    """Start scoring all windows; the returned function waits for their log-probabilities (nats, float64).

    Args:
        windows: the windows to score.
        forward: the network.
        device: its device.
        batch_tokens: tokens per forward, padding included (a longer window forms a separate batch).
        on_progress: receives the number of texts that each batch completes.
    """
    rows: list[FloatArray] = [np.empty(0)] * len(windows)
    queued: list[Callable[[], None]] = []
    for batch in _batches(windows, batch_tokens):
        collect = _collector(
            batch, _queue([windows[at] for at in batch], forward, device), windows, rows, on_progress
        )
        if device.type == "cuda":
            queued.append(collect)
        else:
            collect()

    def finish() -> list[FloatArray]:
        while queued:
            queued.pop(0)()
        return rows

    return finish


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[int]]:
    """Yield indices of windows of similar length whose padded size stays within ``batch_tokens``."""
    batch: list[int] = []
    for place in sorted(range(len(windows)), key=lambda at: len(windows[at].ids)):
        if batch and (len(batch) + 1) * len(windows[place].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@torch.inference_mode()
def _queue(
    windows: Sequence[Window], forward: Forward, device: torch.device
) -> Callable[[], tuple[NDArray[np.float32], ...]]:
    """Send one batch to the device in one copy, run it, and start the copy back."""
    count, width = len(windows), max(1, *(len(window.ids) - 1 for window in windows))
    tokens_NW = np.zeros((count, width), np.int64)
    for row, window in enumerate(windows):
        tokens_NW[row, : len(window.ids) - 1] = window.ids[:-1]
    lengths_N = np.array([len(window.ids) - 1 for window in windows])
    places = [
        np.arange(length - window.n_scored, length) + row * width
        for row, (window, length) in enumerate(zip(windows, lengths_N, strict=True))
    ]
    targets = [window.ids[len(window.ids) - window.n_scored :] for window in windows]
    packed = np.concatenate([tokens_NW.ravel(), lengths_N, *places, *targets])
    sizes = [count * width, count, sum(map(len, places)), sum(map(len, targets))]
    tokens, lengths, places_R, targets_R = torch.split(to_device(packed, device), sizes)
    return start_copy_to_host(forward(tokens.view(count, width), lengths, places_R, targets_R))


def _collector(
    batch: Sequence[int],
    arrive: Callable[[], tuple[NDArray[np.float32], ...]],
    windows: Sequence[Window],
    rows: list[FloatArray],
    on_progress: Callable[[int], None],
) -> Callable[[], None]:
    """Return a function that waits for a batch and writes its numbers to ``rows``."""

    def collect() -> None:
        (values_R,) = arrive()
        ends = list(accumulate(windows[at].n_scored for at in batch))
        for at, part in zip(batch, np.split(values_R.astype(np.float64), ends[:-1]), strict=True):
            rows[at] = part
        on_progress(sum(windows[at].last for at in batch))

    return collect


def picked_log_probs(logits_RV: Tensor, targets_R: Tensor) -> Tensor:
    """Return the log-probability [R] of one token per row, float32; overwrites ``logits_RV`` (float32).

    The exponentials are added in float64: a float32 sum over 50,000 tokens is off by up to 2e-5.
    """
    top_R = logits_RV.amax(dim=1)
    chosen_R = logits_RV.gather(1, targets_R[:, None])[:, 0] - top_R
    mass_R = logits_RV.sub_(top_R[:, None]).exp_().sum(dim=1, dtype=torch.float64)
    return (chosen_R.double() - mass_R.log()).float()
