"""``wrap``: any network from token ids to logits as a Model, without porting it.

The network is called as it is, on whole sequences and without a cache: correct first, speed is what a family
adds. Works for ``torch.nn.Module`` and plain callables. Does not depend on checkpoint files, orders or runs.

Shape letters: N sequences, L positions, V vocabulary, R wanted rows, W window width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderlens.common.grid import block_edges
from orderlens.common.machine import is_out_of_memory
from orderlens.errors import UserInputError, one_line
from orderlens.models.files.checkpoint import tensors_digest
from orderlens.models.files.roles import IdsOnlyTokenizer
from orderlens.models.protocol import (
    Anchor,
    Attention,
    CleanTokens,
    FloatArray,
    HiddenRows,
    IntArray,
    StateBatch,
    Tokenizer,
    model_repr,
    token_ids,
)
from orderlens.models.wrapped_check import check_network

Forward: TypeAlias = Callable[[Any, Tensor], Any]
"""(network, ids [N, L]) → logits [N, L, V], a tuple that starts with them, or an object with ``.logits``."""
BLOCK = 32
"""Block inside which orders choose, for networks with full attention."""
LOGIT_BYTES = {"cpu": 2**28, "cuda": 2**31}
"""Bytes of logits that one call of the network may return; halved when memory runs out."""
MAX_POSITIONS = 2**17
"""Longest sequence where the network does not say."""


def wrap(
    network: Any,
    tokenizer: Any = None,
    *,
    mask_id: int,
    vocab_size: int | None = None,
    attention: Attention = "full",
    block_size: int | None = None,
    shift: bool = False,
    eos: int | Collection[int] = (),
    excluded: Collection[int] = (),
    forward: Forward | None = None,
    check: bool = True,
) -> WrappedModel:
    """Return a Model that calls ``network``; it works wherever a loaded model does.

    Args:
        network: a module or callable from token ids ``[N, L]`` to logits ``[N, L, V]``: a tensor, the first
            entry of a tuple, or ``.logits`` of an object.
        tokenizer: of transformers, of tokenizers, or any object with ``encode`` and ``decode``. Without one,
            prompts and targets are lists of token ids.
        mask_id: the id of the mask token.
        vocab_size: number of ids that may be revealed, where the network has padded rows after them.
        attention: ``"full"``, or ``"block-causal"`` with ``block_size``.
        block_size: tokens per block. Under full attention: the block inside which orders choose (default 32).
        shift: row i of the logits predicts position i + 1, as in models made from autoregressive ones.
        eos: the id or ids that end a text; the tokenizer's ``eos_token_id`` by default.
        excluded: further ids that are never revealed.
        forward: how to call the network where ``network(ids)`` is not enough.
        check: probe the network on first use, and refuse one that does not do what is declared here.
    """
    if attention not in ("full", "block-causal"):
        raise UserInputError(f"attention '{attention}' is unknown; use 'full' or 'block-causal'")
    if attention == "block-causal" and block_size is None:
        raise UserInputError("attention='block-causal' needs block_size, the tokens per block of the network")
    if block_size is not None and block_size < 1:
        raise UserInputError(f"block_size={block_size} must be at least 1")
    if not callable(network):
        raise UserInputError(f"network must be a module or a callable, not {type(network).__name__}")
    if isinstance(mask_id, bool) or not isinstance(mask_id, int) or mask_id < 0:
        raise UserInputError(f"mask_id must be a token id of 0 or more, not {mask_id!r}")
    calls = _Network(network, forward)
    width = calls.probe_vocab(mask_id)
    text = as_tokenizer(tokenizer)
    declared = vocab_size or min(width, max(_tokenizer_size(tokenizer) or width, mask_id + 1))
    ends = frozenset([eos] if isinstance(eos, int) else eos) or tokenizer_eos(tokenizer)
    settings = _Settings(
        mask_id=mask_id,
        valid_vocab=min(declared, width),
        vocab_size=max(declared, mask_id + 1),
        attention=attention,
        shift=shift,
        eos_ids=ends,
        excluded=tuple(sorted({mask_id, *excluded})),
    )
    settings.check()
    return WrappedModel(calls, text, settings, block_size or BLOCK, unchecked=not check)


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return a tokenizer of another library as ours; None gives ids only."""
    if tokenizer is None:
        return IdsOnlyTokenizer()
    if not (hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode")):
        raise UserInputError(f"a tokenizer needs encode and decode; {type(tokenizer).__name__} lacks one")
    return _ForeignTokenizer(tokenizer)


class _ForeignTokenizer:
    """A tokenizer of another library: no special tokens are added, none are dropped."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            found = self._tokenizer.encode(text)
        return [int(index) for index in getattr(found, "ids", found)]

    def count_unknown(self, text: str, ids: Sequence[int]) -> int:
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        return 0 if unknown is None else list(ids).count(unknown)

    def decode(self, ids: Sequence[int]) -> str:
        plain = [int(index) for index in ids]
        try:
            text = self._tokenizer.decode(plain, skip_special_tokens=False)
        except TypeError:
            text = self._tokenizer.decode(plain)
        return str(text).encode("utf-8", "replace").decode()  # files take no lone surrogates


def logits_of(found: Any) -> Any:
    """Return the logits of what a network returned: a tensor, a tuple that starts with it, or ``.logits``."""
    if isinstance(found, Mapping) and "logits" in found:
        return found["logits"]
    return getattr(found, "logits", found[0] if isinstance(found, tuple | list) else found)


def _tokenizer_size(tokenizer: Any) -> int | None:
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def tokenizer_eos(tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text, as a tokenizer of another library names them."""
    found = getattr(tokenizer, "eos_token_id", None)
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the caller declared; ``valid_vocab`` rows of the logits are used, ``vocab_size`` ids exist."""

    mask_id: int
    valid_vocab: int
    vocab_size: int
    attention: Attention
    shift: bool
    eos_ids: frozenset[int]
    excluded: tuple[int, ...]

    def check(self) -> None:
        """Refuse ids outside the vocabulary, and a vocabulary in which nothing can be revealed."""
        for name, ids in (("eos", self.eos_ids), ("excluded", self.excluded)):
            outside = [index for index in ids if not 0 <= index < self.vocab_size]
            if outside:
                raise UserInputError(
                    f"{name} holds the id {outside[0]}, outside the vocabulary of {self.vocab_size}"
                )
        if len(set(self.excluded) & set(range(self.valid_vocab))) >= self.valid_vocab:
            raise UserInputError("every id is excluded; at least one must remain to be revealed")


class _Network:
    """The caller's network: called with ids on its device, answers with logits [N, L, V]."""

    def __init__(self, network: Any, forward: Forward | None) -> None:
        self.network, self._forward = network, forward

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The weights as they are now: the caller may train or move the network."""
        return dict(self.network.state_dict()) if isinstance(self.network, nn.Module) else {}

    @property
    def device(self) -> torch.device:
        """Where the network's first weight is; the CPU for a plain function."""
        return next((value.device for value in self.tensors.values()), torch.device("cpu"))

    @property
    def call_digest(self) -> str | None:
        """What identifies ``forward``; None for one that depends on more than its own code."""
        if self._forward is None:
            return ""
        code = getattr(self._forward, "__code__", None)
        if code is None or self._forward.__closure__:
            return None
        return repr((code.co_code, code.co_consts, code.co_names))

    @property
    def max_positions(self) -> int:
        """The network's own limit where its config names one."""
        config = getattr(self.network, "config", None)
        names = ("max_position_embeddings", "max_sequence_length")
        found = next(filter(None, (getattr(config, name, None) for name in names)), None)
        return int(found) if isinstance(found, int) and found > 0 else MAX_POSITIONS

    def probe_vocab(self, mask_id: int) -> int:
        """Return V from one small call."""
        return int(self(torch.full((1, 2), mask_id)).shape[2])

    @torch.no_grad()
    def __call__(self, ids_NL: Tensor) -> Tensor:
        ids_NL = ids_NL.to(self.device)
        try:
            found = self.network(ids_NL) if self._forward is None else self._forward(self.network, ids_NL)
        except (IndexError, RuntimeError) as error:  # an embedding without such a row, or too few positions
            if is_out_of_memory(error):
                raise
            raise UserInputError(
                f"the network fails on {ids_NL.shape[1]} ids up to {int(ids_NL.max())} ({one_line(error)}): "
                "check mask_id, pass vocab_size=N if it reads N ids only, or a smaller block_size"
            ) from error
        logits = logits_of(found)
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids_NL.shape:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserInputError(
                f"the network must return logits [N, L, V] for ids {list(ids_NL.shape)}, not {shape}; "
                f"pass forward=lambda network, ids: … to select them"
            )
        return logits


class WrappedModel:
    """The Model protocol over a network that is called as it is."""

    anchor: Anchor
    precision: Literal["float32", "float64"] = "float32"
    special_ids: frozenset[int] = frozenset()

    def __init__(
        self,
        network: _Network,
        tokenizer: Tokenizer,
        settings: _Settings,
        block_size: int,
        *,
        unchecked: bool,
    ) -> None:
        self.network, self.tokenizer, self.settings = network, tokenizer, settings
        self.name = f"wrapped:{type(network.network).__name__}"
        self.mask_id, self.vocab_size = settings.mask_id, settings.vocab_size
        self.eos_ids, self.attention = settings.eos_ids, settings.attention
        self.anchor = "prompt" if settings.attention == "full" else "zero"
        self.max_positions, self.block_size = network.max_positions, block_size
        self.unrevealed_ids = frozenset(range(settings.valid_vocab, self.vocab_size)).union(settings.excluded)
        self._checked = unchecked

    def __repr__(self) -> str:
        return model_repr(self)

    @property
    def digest(self) -> str:
        """A digest of the network's present tensors and of what was declared; empty for a function."""
        call = self.network.call_digest
        if not self.network.tensors or call is None:
            return ""
        blocks = () if self.attention == "full" else (self.block_size,)
        return tensors_digest(self.network.tensors, (type(self.network.network), call, self.settings, blocks))

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return self.network.device

    @property
    def n_parameters(self) -> int:
        """Number of weights; 1 for a function."""
        return max(1, sum(int(value.numel()) for value in self.network.tensors.values()))

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V]: one call on the sequence, or on each block's prefix."""
        self.check()
        ids_L = torch.as_tensor(token_ids(tokens, self.vocab_size))
        rows = [torch.empty(0, self.settings.valid_vocab, dtype=torch.float64)]
        edges = (
            [(0, len(ids_L))]
            if self.attention == "full"
            else block_edges(len(ids_L), self.block_size, grid_offset)
        )
        for low, high in edges if len(ids_L) else []:
            logits_LV = self.aligned(self.network(ids_L[None, :high]))[0, low:high]
            rows.append(logits_LV.double().cpu())
        logits_LV = torch.cat(rows)
        logits_LV[:, [index for index in self.settings.excluded if index < logits_LV.shape[1]]] = -torch.inf
        padded = nn.functional.pad(logits_LV, (0, self.vocab_size - logits_LV.shape[1]), value=-torch.inf)
        return np.asarray(torch.log_softmax(padded, dim=1).numpy())

    def aligned(self, logits_NLV: Tensor) -> Tensor:
        """Return logits whose row i is about position i, without the padded vocabulary."""
        used = logits_NLV[..., : self.settings.valid_vocab]
        return torch.cat((used[:, :1], used[:, :-1]), dim=1) if self.settings.shift else used

    def check(self) -> None:
        """Probe the network once: shape, finite values, determinism, attention, shift."""
        if not self._checked:
            check_network(self.network, self.settings, self.block_size)
            self._checked = True

    def with_block_size(self, block_size: int) -> Self:
        """Return this model with another block size."""
        other = copy.copy(self)
        other.block_size = block_size
        if self.attention == "block-causal":
            other._checked = False
        return other

    def open_session(self) -> WrappedSession:
        """Return a new session without slots."""
        self.check()
        return WrappedSession(self)


class WrappedSession(CleanTokens):
    """The Session protocol over clean tokens: every state is a whole sequence."""

    def __init__(self, model: WrappedModel) -> None:
        super().__init__()
        self._model = model
        self._bytes = LOGIT_BYTES.get(model.device.type, 2**30)

    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Call the network on all states, those of one length together."""
        model, rows_R = self._model, list[Tensor]()
        order: list[IntArray] = []
        for start in np.unique(states.starts_N).tolist():
            chosen = np.flatnonzero(states.starts_N == start)
            width = start + states.tokens_NW.shape[1]
            if width > model.max_positions:
                raise UserInputError(
                    f"a sequence of {width} tokens exceeds the model's {model.max_positions} positions"
                )
            for part in self._parts(chosen, width):
                wanted = np.flatnonzero(np.isin(states.row_state_R, part))
                rows_R.append(self._rows(states, part, wanted, int(start)))
                order.append(wanted)
        logits_RV = torch.cat(rows_R) if rows_R else torch.empty(0, model.settings.valid_vocab)
        back = torch.from_numpy(np.argsort(np.concatenate(order) if order else np.empty(0, np.int64)))
        return HiddenRows(
            logits_RV[back.to(logits_RV.device)], None, model.settings.excluded, model.settings.valid_vocab
        )

    def _parts(self, chosen: IntArray, width: int) -> Iterator[IntArray]:
        """Cut states into calls whose logits fit."""
        step = max(1, self._bytes // (4 * width * self._model.settings.valid_vocab))
        for low in range(0, len(chosen), step):
            yield chosen[low : low + step]

    def _rows(self, states: StateBatch, part: IntArray, wanted: IntArray, start: int) -> Tensor:
        """Return the logits [r, V] of the wanted rows of some states; halves them when memory runs out."""
        heads = [self._slots[slot][:start] if start else () for slot in states.slots_N[part].tolist()]
        ids_NL = np.concatenate(
            [np.array(heads, np.int64).reshape(len(part), start), states.tokens_NW[part]], axis=1
        )
        try:
            logits_NLV = self._model.aligned(self._model.network(torch.from_numpy(ids_NL)))
        except Exception as error:
            if len(part) == 1 or not is_out_of_memory(error):
                raise
            self._bytes = max(1, self._bytes // 2)
            halves = np.array_split(part, 2)
            rows = [np.flatnonzero(np.isin(states.row_state_R, half)) for half in halves]
            logits = torch.cat([self._rows(states, *pair, start) for pair in zip(halves, rows, strict=True)])
            return logits[torch.from_numpy(np.argsort(np.concatenate(rows)))]
        place = np.searchsorted(part, states.row_state_R[wanted])
        at = torch.from_numpy(place), torch.from_numpy(start + states.row_offset_R[wanted])
        return logits_NLV[at[0].to(logits_NLV.device), at[1].to(logits_NLV.device)].float()
