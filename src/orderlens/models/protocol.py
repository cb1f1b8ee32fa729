"""What the decoder needs of a model, and nothing more. numpy only: a model need not use torch.

A model scores *states*. A state is one window of tokens (the current block for block-causal models, the
whole canvas for full-attention ones) in which hidden positions hold the mask id, plus the slot whose cached
clean prefix it continues. A model knows nothing of orders, targets, temperatures or traces.

Shape letters: N states, W window width, R wanted rows, V vocabulary, L sequence length.
"""

from __future__ import annotations

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
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        ...


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Equal-width states to evaluate together, and the rows that are wanted of them.

    Attributes:
        slots_N: session slot whose cached prefix each state continues.
        starts_N: absolute position of each window's first token; the state sees cached positions
            ``[0, start)`` of its slot and its whole own window.
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
    """Rows from a torch model: hidden states and the output matrix that turns them into logits.

    Attributes:
        hidden_RD: torch tensor, already normalised for the output matrix.
        unembed_VD: torch tensor.
        excluded: token ids that can never be revealed (mask id, padded vocabulary rows).
        valid_vocab: rows of ``unembed_VD`` at or past this index are padding and are never computed.
        head: what reduces these rows and draws from them; None lets the decoder choose (its fused CUDA
            kernels where they apply, plain torch in chunks elsewhere).
    """

    hidden_RD: Any
    unembed_VD: Any
    excluded: tuple[int, ...]
    valid_vocab: int
    head: Head | None = None


class Head(Protocol):
    """The way from hidden rows over the vocabulary to a few numbers per row."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Any, draw: Any = None
    ) -> tuple[Any, ...]:
        """Return each row's statistics as torch tensors, and one drawn token per row where ``draw`` is given.

        Args:
            rows: hidden states and output matrix.
            eos_ids: ids whose total log-probability is wanted, ascending.
            targets_R: one token per row whose log-probability is wanted (a tensor), or None.
            draw: a temperature and one float64 in [0, 1) per row on the rows' device (``kernels.head.Draw``).
                A draw inverts the distribution function over ascending ids at the row's number.

        Returns:
            Top tokens [R] (the lowest id among equals) and columns [R, 5 or 6]: log-sum-exp of the logits,
            log-probabilities of the top and the second token, entropy, log-probability of EOS and, with
            targets, theirs. With ``draw`` also the drawn tokens [R] and columns [R, 2] in float64: their
            log-probabilities at temperature 1 and at that of ``draw``.
        """
        ...


Rows: TypeAlias = LogProbRows | HiddenRows


class Session(Protocol):
    """Model-side memory of a batch of sequences: one slot each, holding the cached clean prefix."""

    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Open ``len(prefixes)`` slots (numbered from 0) and cache their clean tokens.

        ``grid_offsets[i]`` (0 ≤ offset < block size) is where slot i's block grid starts: its first block
        is ``[0, offset)`` when the offset is positive, then blocks of the model's block size follow.
        Prefixes end on a block boundary of their own grid, and may be empty. Full-attention models keep
        nothing.
        """
        ...

    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each of ``slots`` (its keys are computed from the final tokens)."""
        ...

    def keep(self, slots: IntArray) -> None:
        """Drop all other slots; the kept ones are renumbered 0…len−1 in the order given."""
        ...

    def evaluate(self, states: StateBatch) -> Rows:
        """Return one row per wanted (state, offset); row i speaks about its own position."""
        ...


@dataclass(frozen=True, slots=True)
class NextTokens:
    """One more token in each of N states, and the rows wanted then; known on the device only.

    Attributes:
        offset_N: place of the token in its window (int64 torch tensors, all three).
        token_N: the token.
        row_R: wanted rows: state × window width + place in the window.
    """

    offset_N: Any
    token_N: Any
    row_R: Any


@runtime_checkable
class Speculates(Protocol):
    """A session that can begin the next evaluation before the host knows what it is of."""

    @property
    def can_speculate(self) -> bool:
        """Whether it can, and gains by it."""
        ...

    def speculate(self, more: NextTokens) -> HiddenRows | None:
        """Evaluate the states of the last ``evaluate`` or ``speculate`` again, each with one more token.

        None where that is not possible. What the session holds does not change.
        """
        ...


class Model(Protocol):
    """An order-agnostic language model."""

    @property
    def name(self) -> str:
        """The spec that loads this model again, e.g. ``hmm:incoherence=0.1``."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the mask id included."""
        ...

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden token."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are neither content nor EOS (turn markers and the like)."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per block; for full-attention models the block inside which orders choose."""
        ...

    @property
    def attention(self) -> Attention:
        """``"block-causal"`` (exact prefix cache) or ``"full"`` (every forward sees the whole canvas)."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest sequence the model accepts."""
        ...

    @property
    def anchor(self) -> Anchor:
        """Where the block grid starts by default: at position 0, or at the end of the prompt."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def precision(self) -> Precision:
        """Precision in which the model's log-probabilities are worth storing."""
        ...

    @property
    def digest(self) -> str:
        """A digest of everything that determines the model's numbers; empty where nothing identifies them.

        A model without one cannot be told from another, so its runs are kept in memory only.
        """
        ...

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V] of one sequence that may contain the mask id.

        Row i speaks about position i; excluded tokens are −inf. The slow, obvious path: one plain forward
        of the whole sequence, no cache. ``grid_offset`` is where the block grid starts (see ``prefill``).
        """
        ...

    def with_block_size(self, block_size: int) -> Model:
        """Return this model with another block size (sharing weights)."""
        ...

    def open_session(self) -> Session:
        """Return a new session without slots."""
        ...


def token_ids(tokens: Sequence[int], vocab_size: int) -> IntArray:
    """Return a sequence as an array [L]; what is no id of the vocabulary is refused.

    Unchecked, a negative id would count from the end of a table, and 1.5 would be 1.
    """
    found = np.asarray([token.item() if hasattr(token, "item") else token for token in tokens])
    if not found.size:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UserInputError(f"tokens must be one list of whole token ids, not {str(tokens)[:60]!r}")
    if (outside := (found < 0) | (found >= vocab_size)).any():
        raise UserInputError(f"token id {found[outside][0]} is outside the vocabulary (0…{vocab_size - 1})")
    return found.astype(np.int64)
