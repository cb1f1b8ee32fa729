"""What an order or a commit rule sees of one forward pass, and what it remembers from pass to pass.

A ``StepView`` holds the masked positions of the current block of *all* chains that share a policy, as
parallel arrays, so that a rule is a few numpy expressions however many chains there are. The type of
``stats`` decides who may see what: a deployable rule is handed ``PositionStats``, only a target-aware order
is handed ``TargetStats``. Rows are sorted by chain, inside a chain from left to right. Everything is a
function of the chain alone: a rule must give a row the same score whatever other chains are in the view.

A rule's ``Memory`` keeps values by name: one per masked position (``keep_rows``) or one per chain
(``keep_chains``). It finds them again at the next pass of the same chain and block, whatever else shares the
batch by then. Every block starts with nothing remembered, because a fixed text is scored with all its blocks
side by side.

Shape letters: N chains of a call, C chains in this pass, R masked positions in this pass, B block size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orderlens.errors import UserInputError
from orderlens.rules.stats import (
    BoolArray,
    DrawStats,
    FloatArray,
    IntArray,
    PositionStats,
    TargetStats,
    comparable,
)

Values = NDArray[Any]
S_co = TypeVar("S_co", bound=PositionStats | TargetStats | DrawStats, covariant=True)
T = TypeVar("T", bound=PositionStats | TargetStats | DrawStats)
_NOTHING: Mapping[str, FloatArray] = MappingProxyType({})


class MemoryTable:
    """The memory of one rule over all chains of a call: arrays [N, B, …] and [N, …] by name."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = (n_chains, block_size)
        self._rows: dict[str, tuple[Values, Values]] = {}
        self._chains: dict[str, tuple[Values, Values]] = {}

    def at(self, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> Memory:
        """Return what the rule sees of it in one pass.

        Args:
            chain_C: index of each chain of the pass in this table.
            chain_R: chain of each masked position, as a place in ``chain_C``.
            offset_R: its offset in the block.
        """
        return Memory(self, chain_C, chain_C[chain_R], offset_R)

    def forget(self, chains: IntArray) -> None:
        """Start the given chains afresh: they enter a new block."""
        for default, values in (*self._rows.values(), *self._chains.values()):
            values[chains] = default

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, B, …] called ``name``, made of ``default`` at its first use."""
        return _found(self._rows, name, default, self._shape)

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, …] called ``name``, made of ``default`` at its first use."""
        return _found(self._chains, name, default, self._shape[:1])


class Memory:
    """One rule's memory as seen in one pass. Writes take effect when the pass is committed."""

    def __init__(self, table: MemoryTable, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> None:
        self._table, self._chain_C, self._at_R = table, chain_C, (chain_R, offset_R)
        self._new_rows: dict[str, Values] = {}
        self._new_chains: dict[str, Values] = {}

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return what ``keep_rows`` kept for each masked position [R, …]; ``default`` where nothing was."""
        return np.asarray(self._table.rows(name, default)[self._at_R])

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return what ``keep_chains`` kept for each chain [C, …]; ``default`` where nothing was."""
        return np.asarray(self._table.chains(name, default)[self._chain_C])

    def keep_rows(self, name: str, values_R: Values) -> None:
        """Remember one value (or one row of values) per masked position."""
        self._new_rows[name] = values_R

    def keep_chains(self, name: str, values_C: Values) -> None:
        """Remember one value (or one row of values) per chain."""
        self._new_chains[name] = values_C

    def commit(self) -> None:
        """Store what was kept; the decoder calls this once the pass counts."""
        for name, values_R in self._new_rows.items():
            self._table.rows(name, _blank(values_R))[self._at_R] = values_R
        for name, values_C in self._new_chains.items():
            self._table.chains(name, _blank(values_C))[self._chain_C] = values_C


def _found(
    known: dict[str, tuple[Values, Values]], name: str, default: ArrayLike, shape: tuple[int, ...]
) -> Values:
    if name not in known:
        fill = np.asarray(default)
        known[name] = fill, np.broadcast_to(fill, (*shape, *fill.shape)).copy()
    return known[name][1]


def _blank(values: Values) -> Values:
    """What stands where a rule keeps values that it never asked for with a default: zeros of that kind."""
    return np.zeros(values.shape[1:], values.dtype)


def nothing_kept(n_chains: int, chain_R: IntArray, offset_R: IntArray) -> Memory:
    """Return an empty memory for a view made by hand (``StepView.of``)."""
    width = int(offset_R.max(initial=-1)) + 1
    return MemoryTable(n_chains, width).at(np.arange(n_chains), chain_R, offset_R)


def _not_declared(_: IntArray, __: IntArray) -> FloatArray:
    raise UserInputError("a rule that calls view.logprob_of must name 'token_logprobs' in its needs")


@dataclass(frozen=True, slots=True)
class StepView(Generic[S_co]):
    """One forward pass, seen by one policy.

    Attributes:
        chain_R: chain of each masked position (0…C−1).
        position_R: its absolute position in the sequence.
        offset_R: its offset in the current block.
        block_C: current block of each chain; 0 is the first that holds a position to fill.
        step_C: tokens this trace has revealed before this pass.
        forward_C: passes the current block has had before this one. (Passes of earlier blocks are not
            counted: a fixed text is scored with all its blocks side by side.)
        filling_C: positions the current block had to fill when it was entered.
        stats: statistics of each masked position (all [R]).
        memory: what this rule kept at earlier passes of the same block.
        numbers: gives ``uniforms_R``; made on request.
        extras: the extra inputs that the policy's rules request by name (``needs``), one number per row each.
        logprob_of: for rules that need ``token_logprobs``: takes rows and a token for each (a row may come
            several times); returns the log-probabilities of those tokens there.
    """

    chain_R: IntArray
    position_R: IntArray
    offset_R: IntArray
    block_C: IntArray
    step_C: IntArray
    forward_C: IntArray
    filling_C: IntArray
    stats: S_co
    memory: Memory
    numbers: Callable[[], FloatArray]
    extras: Mapping[str, FloatArray] = field(default_factory=lambda: _NOTHING)
    logprob_of: Callable[[IntArray, IntArray], FloatArray] = _not_declared

    @classmethod
    def of(cls, stats: T, offsets: IntArray | None = None) -> StepView[T]:
        """Return the view of one chain in the first pass of its first block: for trying a rule by hand."""
        count = len(stats)
        offset_R = np.arange(count) if offsets is None else np.asarray(offsets, np.int64)
        chain_R, zero_C = np.zeros(count, np.int64), np.zeros(1, np.int64)
        memory = nothing_kept(1, chain_R, offset_R)
        return StepView(
            chain_R, offset_R, offset_R, zero_C, zero_C, zero_C, np.array([count]), stats, memory,
            lambda: np.full(count, 0.5),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.chain_R)

    @property
    def uniforms_R(self) -> FloatArray:
        """One number in [0, 1) per row, keyed by (the order's seed, sample, policy, block, pass, offset)."""
        return self.numbers()

    @property
    def left_C(self) -> IntArray:
        """Positions still masked in each chain's block."""
        return np.bincount(self.chain_R, minlength=len(self.block_C)).astype(np.int64)

    @property
    def step_in_block_C(self) -> IntArray:
        """Positions of the current block that are filled already."""
        return self.filling_C - self.left_C

    @property
    def starts_C(self) -> IntArray:
        """First row of each chain (every chain has at least one)."""
        return np.searchsorted(self.chain_R, np.arange(len(self.block_C)))

    @property
    def proposal_logprob_R(self) -> FloatArray:
        """Log-probability at temperature 1 of the token that would be committed at each row.

        That is the drawn token where the policy draws before it chooses, else the most probable one.
        """
        stats: Any = self.stats
        if isinstance(stats, DrawStats):
            return stats.logprob
        positions: PositionStats = stats.positions if isinstance(stats, TargetStats) else stats
        return positions.top_logprob

    @property
    def proposal_prob_R(self) -> FloatArray:
        """Its probability, to be compared with a ``comparable`` bound."""
        return comparable(np.exp(self.proposal_logprob_R))

    def seeing(self, stats: T, memory: Memory | None = None) -> StepView[T]:
        """Return the same pass with other statistics, and another rule's memory.

        Spelled out because ``dataclasses.replace`` would cost more than the rules themselves.
        """
        return StepView(
            self.chain_R, self.position_R, self.offset_R, self.block_C, self.step_C, self.forward_C,
            self.filling_C, stats, memory or self.memory, self.numbers, self.extras, self.logprob_of,
        )  # fmt: skip

    def with_extras(
        self,
        extras: Mapping[str, FloatArray],
        logprob_of: Callable[[IntArray, IntArray], FloatArray] | None = None,
    ) -> StepView[S_co]:
        """Return the same view with the rules' extra inputs."""
        return StepView(
            self.chain_R, self.position_R, self.offset_R, self.block_C, self.step_C, self.forward_C,
            self.filling_C, self.stats, self.memory, self.numbers, extras, logprob_of or self.logprob_of,
        )  # fmt: skip

    def ranks(self, scores_R: FloatArray) -> IntArray:
        """Return each row's place (0 = first) among its chain's rows: higher scores first, then leftmost."""
        by_R = np.lexsort((self.offset_R, -scores_R, self.chain_R))
        rank_R = np.empty(len(by_R), np.int64)
        rank_R[by_R] = np.arange(len(by_R)) - self.starts_C[self.chain_R]
        return rank_R

    def any_C(self, chosen_R: BoolArray) -> BoolArray:
        """Return which chains have at least one of the chosen rows."""
        return np.asarray(np.bincount(self.chain_R[chosen_R], minlength=len(self.block_C)) > 0)

    def least_C(self, values_R: IntArray) -> IntArray:
        """Return the smallest value of each chain's rows."""
        least: IntArray = np.minimum.reduceat(values_R, self.starts_C)
        return least

    def best(self, scores_R: FloatArray) -> BoolArray:
        """Return which row is first in its chain: the largest score, the leftmost among equals."""
        tied = np.flatnonzero(scores_R == np.maximum.reduceat(scores_R, self.starts_C)[self.chain_R])
        chain = self.chain_R[tied]
        first = np.ones(len(tied), bool)
        first[1:] = chain[1:] != chain[:-1]
        best = np.zeros(len(scores_R), bool)
        best[tied[first]] = True
        return best
