"""The Model and Session protocols, all that the decoder needs from a model; and the options of loading.

A model scores *states*. A state is one window of tokens (the current block for block-causal models, the
whole canvas for full-attention models) in which hidden positions hold the mask id. It continues the cached
clean prefix of one slot. A model does not depend on orders, targets, temperatures or traces. numpy only.

Shape letters: N states, W window width, R wanted rows, V vocabulary, L sequence length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import UserInputError

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Attention: TypeAlias = Literal["block-causal", "full"]
Anchor: TypeAlias = Literal["zero", "prompt"]
Precision: TypeAlias = Literal["float32", "float64"]


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` without adding special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""


@dataclass(frozen=True, slots=True)
class StateBatch:
    """States of equal width to evaluate in one batch, and the rows to return.

    Attributes:
        slots_N: session slot whose cached prefix each state continues.
        starts_N: absolute position of each window's first token; the state sees cached positions
            ``[0, start)`` of its slot and its whole window.
        tokens_NW: window tokens, mask id where hidden.
        row_state_R: state index of each wanted row.
        row_offset_R: offset inside the window of each wanted row.
    """

    slots_N: IntArray
    starts_N: IntArray
    tokens_NW: IntArray
    row_state_R: IntArray
    row_offset_R: IntArray


@dataclass(frozen=True, slots=True)
class LogProbRows:
    """Rows from a model that computes normalised log-probabilities itself (float64, excluded ids −inf)."""

    log_probs_RV: FloatArray


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Rows from a torch model: hidden states and the output matrix that maps them to logits.

    Attributes:
        hidden_RD: torch tensor, already normalised for the output matrix.
        unembed_VD: torch tensor; None where ``hidden_RD`` holds logits [R, V] already.
        excluded: token ids that can never be revealed (mask id, padded vocabulary rows).
        valid_vocab: rows of ``unembed_VD`` from this index on are padding and are never computed.
        head: reduces these rows to statistics and draws tokens; None lets the decoder choose (its fused CUDA
            kernels where they apply, plain torch in chunks elsewhere).
    """

    hidden_RD: Any
    unembed_VD: Any
    excluded: tuple[int, ...]
    valid_vocab: int
    head: Head | None = None


class Head(Protocol):
    """Reduces hidden rows over the vocabulary to a few numbers per row."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Any, draw: Any = None
    ) -> tuple[Any, ...]:
        """Return each row's statistics as torch tensors, and with ``draw`` one drawn token per row.

        Args:
            rows: hidden states and output matrix.
            eos_ids: ids whose total log-probability is returned, ascending.
            targets_R: one token per row whose log-probability is returned (a tensor), or None.
            draw: a temperature (or one per row [R]) and one float64 in [0, 1) per row, on the rows' device
                (``kernels.head.Draw``). It inverts the cumulative distribution over ascending ids at the
                row's number.

        Returns:
            Top tokens [R] (ties go to the lowest id) and columns [R, 5 or 6]: log-sum-exp of the logits,
            log-probabilities of the top and the second token, entropy, log-probability of EOS and, with
            targets, the target's. With ``draw`` also the drawn tokens [R] and columns [R, 2] in float64:
            their log-probabilities at temperature 1 and at the temperature of ``draw``.
        """


Rows: TypeAlias = LogProbRows | HiddenRows


class Session(Protocol):
    """The model's cache for a batch of sequences: one slot per sequence with its clean prefix."""

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open ``len(prefixes)`` slots (numbered from 0) and cache their clean tokens.

        ``grid_offsets[i]`` (0 ≤ offset < block size) is where slot i's block grid starts: its first block
        is ``[0, offset)`` when the offset is positive, then blocks of the model's block size follow.
        Prefixes end on a block boundary of their grid and may be empty. Full-attention models cache nothing.
        """

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each of ``slots``; its keys are computed from the final tokens."""

    def keep(self, slots: IntArray) -> None:
        """Drop all other slots; the remaining ones are renumbered 0…len−1 in the order of ``slots``."""

    def evaluate(self, states: StateBatch) -> Rows:
        """Return one row per requested (state, offset); a row holds the prediction for its own position."""


class CleanTokens:
    """The slots of a session without a cache: the clean tokens of each, and where its grid starts."""

    def __init__(self) -> None:
        self._slots: list[IntArray] = []
        self._offsets: list[int] = []

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        self._slots, self._offsets = [np.asarray(prefix, np.int64) for prefix in prefixes], list(grid_offsets)

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        for slot, tokens in zip(slots.tolist(), tokens_NW, strict=True):
            self._slots[slot] = np.concatenate((self._slots[slot], tokens))

    def keep(self, slots: IntArray) -> None:
        if self._slots:
            self._slots = [self._slots[slot] for slot in slots.tolist()]
            self._offsets = [self._offsets[slot] for slot in slots.tolist()]


@dataclass(frozen=True, slots=True)
class NextTokens:
    """One more token for each of N states and the rows to evaluate next; known on the device only.

    Attributes:
        offset_N: offset of the token in its window (all three are int64 torch tensors).
        token_N: the token.
        row_R: requested rows: state × window width + offset in the window.
    """

    offset_N: Any
    token_N: Any
    row_R: Any


@runtime_checkable
class Speculates(Protocol):
    """A session with speculative execution: it can evaluate states before the host knows their tokens."""

    @property
    def can_speculate(self) -> bool:
        """Whether speculation is possible and saves time."""

    def speculate(self, more: NextTokens) -> HiddenRows | None:
        """Evaluate the states of the last ``evaluate`` or ``speculate`` again, each with one more token.

        Returns None if that is not possible. The cached prefixes do not change.
        """


class Model(Protocol):
    """An order-agnostic language model."""

    @property
    def name(self) -> str:
        """The spec that loads this model again, e.g. ``hmm:incoherence=0.1``."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the mask id included."""

    @property
    def mask_id(self) -> int:
        """The id of a hidden token."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a text."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are neither content nor EOS (turn markers and the like)."""

    @property
    def block_size(self) -> int:
        """Tokens per block; for full-attention models the block inside which orders choose."""

    @property
    def attention(self) -> Attention:
        """``"block-causal"`` (exact prefix cache) or ``"full"`` (every forward sees the whole canvas)."""

    @property
    def max_positions(self) -> int:
        """Longest sequence the model accepts."""

    @property
    def anchor(self) -> Anchor:
        """Where the block grid starts by default: at position 0, or at the end of the prompt."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def precision(self) -> Precision:
        """Precision in which the model's log-probabilities are stored."""

    @property
    def digest(self) -> str:
        """A digest of everything that determines the model's numbers; empty if there is none.

        Without a digest, two models cannot be distinguished, so runs are kept in memory only.
        """

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V] of one sequence that may contain the mask id.

        Row i holds the prediction for position i; excluded tokens are −inf. This is the slow, simple path:
        one plain forward of the whole sequence, no cache. ``grid_offset`` is the start of the block grid (see
        ``prefill``).
        """

    def with_block_size(self, block_size: int) -> Model:
        """Return this model with another block size (sharing weights)."""

    def open_session(self) -> Session:
        """Return a new session without slots."""


def token_ids(tokens: Sequence[int], vocab_size: int) -> IntArray:
    """Return a sequence as an array [L]; refuse values that are not ids of the vocabulary.

    Without the check, a negative id would index from the end of a table, and 1.5 would become 1.
    """
    found = np.asarray([token.item() if hasattr(token, "item") else token for token in tokens])
    if not found.size:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UserInputError(f"tokens must be one list of whole token ids, not {str(tokens)[:60]!r}")
    if (outside := (found < 0) | (found >= vocab_size)).any():
        raise UserInputError(f"token id {found[outside][0]} is outside the vocabulary (0…{vocab_size - 1})")
    return found.astype(np.int64)


def model_repr(model: Model) -> str:
    """Return name, attention and size of the vocabulary of a model, for its ``repr``."""
    return f"<{model.name}, {model.attention} attention, {model.vocab_size} ids>"


_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:(0|[1-9][0-9]?))?")
DTYPE_NAMES = ("bfloat16", "float16", "float32")
"""Names of the dtypes that models can compute in."""
WEIGHT_FORMATS = ("fp8",)
"""Formats to which weights can be converted while they are loaded."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Device, dtype and format of the weights; None lets the family decide, or keeps weights as stored."""

    device: str | None = None
    dtype: str | None = None
    weights: str | None = None


def check_device(wanted: str | None) -> None:
    """Refuse an unknown device name; ``pick_device`` checks whether the machine has the device."""
    if wanted is not None and not _DEVICE.fullmatch(wanted):
        raise UserInputError(f"device '{wanted}' is unknown; use auto, cpu, cuda, cuda:N or mps")


def check_dtype(wanted: str | None, allowed: Sequence[str] = DTYPE_NAMES) -> None:
    """Refuse a dtype name that is not among ``allowed``."""
    if wanted not in (None, "auto", *allowed):
        raise UserInputError(f"dtype '{wanted}' is unknown; allowed are auto, {', '.join(allowed)}")


def check_weights(wanted: str | None) -> None:
    """Refuse an unknown format of weights."""
    if wanted not in (None, *WEIGHT_FORMATS):
        raise UserInputError(
            f"weights '{wanted}' is unknown; allowed is {', '.join(WEIGHT_FORMATS)}; leave it out to keep "
            "weights as stored"
        )
