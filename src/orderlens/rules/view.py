"""``StepView``: the input of an order or a commit rule for one forward pass; ``Memory``: its stored values.

A ``StepView`` contains the masked positions of the current block of *all* chains with the same policy, as
parallel arrays, so that a rule is a few numpy expressions. Deployable rules receive ``PositionStats`` as
``stats``; only a target-aware order receives ``TargetStats``. Rows are sorted by chain, within a chain from
left to right. The score of a row must not depend on the other chains in the view.

A rule's ``Memory`` stores named values, one per masked position (``keep_rows``) or one per chain
(``keep_chains``), for later passes of the same chain and block. Every block starts with an empty memory,
because a fixed text is scored with all its blocks in parallel.

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
DIGITS = 2**17
"""Splits a number in [0, 1) into up to three nearly independent ones of 17 binary digits each."""


class MemoryTable:
    """The memory of one rule over all chains of a call: arrays [N, B, …] and [N, …] by name."""

    def __init__(self, n_chains: int, block_size: int) -> None:
        self._shape = (n_chains, block_size)
        self._rows: dict[str, tuple[Values, Values]] = {}
        self._chains: dict[str, tuple[Values, Values]] = {}

    def at(self, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> Memory:
        """Return the memory for one pass.

        Args:
            chain_C: index of each chain of the pass in this table.
            chain_R: chain of each masked position, as an index into ``chain_C``.
            offset_R: its offset in the block.
        """
        return Memory(self, chain_C, chain_C[chain_R], offset_R)

    def forget(self, chains: IntArray) -> None:
        """Reset the given chains, which enter a new block."""
        for default, values in (*self._rows.values(), *self._chains.values()):
            values[chains] = default

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, B, …] called ``name``; it is created with ``default`` on first use."""
        return _found(self._rows, name, default, self._shape)

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return the array [N, …] called ``name``; it is created with ``default`` on first use."""
        return _found(self._chains, name, default, self._shape[:1])


class Memory:
    """One rule's memory in one pass. Writes take effect when the pass is committed."""

    def __init__(self, table: MemoryTable, chain_C: IntArray, chain_R: IntArray, offset_R: IntArray) -> None:
        self._table, self._chain_C, self._at_R = table, chain_C, (chain_R, offset_R)
        self._new_rows: dict[str, Values] = {}
        self._new_chains: dict[str, Values] = {}

    def rows(self, name: str, default: ArrayLike) -> Values:
        """Return the values that ``keep_rows`` stored for each masked position [R, …], else ``default``."""
        return np.asarray(self._table.rows(name, default)[self._at_R])

    def chains(self, name: str, default: ArrayLike) -> Values:
        """Return the values that ``keep_chains`` stored for each chain [C, …], else ``default``."""
        return np.asarray(self._table.chains(name, default)[self._chain_C])

    def keep_rows(self, name: str, values_R: Values) -> None:
        """Store one value (or one row of values) per masked position."""
        self._new_rows[name] = values_R

    def keep_chains(self, name: str, values_C: Values) -> None:
        """Store one value (or one row of values) per chain."""
        self._new_chains[name] = values_C

    def commit(self) -> None:
        """Write the stored values; the decoder calls this when the pass is committed."""
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
    """Return zeros of the same type, the default of values that were never read with another one."""
    return np.zeros(values.shape[1:], values.dtype)


def nothing_kept(n_chains: int, chain_R: IntArray, offset_R: IntArray) -> Memory:
    """Return an empty memory for ``StepView.of``."""
    width = int(offset_R.max(initial=-1)) + 1
    return MemoryTable(n_chains, width).at(np.arange(n_chains), chain_R, offset_R)


def _not_declared(_: IntArray, __: IntArray) -> FloatArray:
    raise UserInputError("a rule that calls view.logprob_of must list 'token_logprobs' in its needs")


def _no_sets(_: IntArray) -> FloatArray:
    raise UserInputError("a rule that calls view.entropy_after must list 'entropy_after_sets' in its needs")


@dataclass(frozen=True, slots=True)
class StepView(Generic[S_co]):
    """One forward pass of all chains with one policy.

    Attributes:
        chain_R: chain of each masked position (0…C−1).
        position_R: its absolute position in the sequence.
        offset_R: its offset in the current block.
        block_C: current block of each chain; 0 is the first block with a position to fill.
        step_C: number of tokens that the trace revealed before this pass.
        forward_C: number of earlier passes of the current block. (Earlier blocks do not count: a fixed text
            is scored with all its blocks in parallel.)
        filling_C: number of positions that the current block has to fill in total.
        stats: statistics of each masked position (all [R]).
        memory: values that this rule stored at earlier passes of the same block.
        numbers: returns ``uniforms_R``; called on demand.
        extras: the extra inputs that the policy's rules list in ``needs``, one number per row each.
        logprob_of: for rules that need ``token_logprobs``: takes rows and one token per row (rows may
            repeat); returns the log-probabilities of these tokens.
        entropy_after: for commit rules that need ``entropy_after_sets``: takes K sets of k rows each [K, k];
            returns the mean entropy [K] of what stays masked once a set holds its tokens (nats).
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
    entropy_after: Callable[[IntArray], FloatArray] = _no_sets

    @classmethod
    def of(cls, stats: T, offsets: IntArray | None = None) -> StepView[T]:
        """Return a view of one chain in the first pass of its first block, to try out a rule."""
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

    def chain_uniforms(self, n: int) -> FloatArray:
        """Return n numbers in [0, 1) per chain [C, n]; NaN after three per masked position of the chain."""
        draw_n, left_C1 = np.arange(n), self.left_C[:, None]
        level_Cn = draw_n // left_C1
        number_Cn = self.uniforms_R[self.starts_C[:, None] + draw_n % left_C1]
        number_Cn = number_Cn * float(DIGITS) ** np.minimum(level_Cn, 3) % 1.0
        return np.where(level_Cn < 3, number_Cn, np.nan)

    @property
    def left_C(self) -> IntArray:
        """Number of masked positions in each chain's block."""
        return np.bincount(self.chain_R, minlength=len(self.block_C)).astype(np.int64)

    @property
    def step_in_block_C(self) -> IntArray:
        """Number of filled positions in each chain's block."""
        return self.filling_C - self.left_C

    @property
    def starts_C(self) -> IntArray:
        """First row of each chain (every chain has at least one)."""
        return np.searchsorted(self.chain_R, np.arange(len(self.block_C)))

    @property
    def proposal_logprob_R(self) -> FloatArray:
        """Log-probability at temperature 1 of the token that would be committed at each row.

        That is the drawn token if the policy draws before it chooses, else the most probable one.
        """
        stats: Any = self.stats
        if isinstance(stats, DrawStats):
            return stats.logprob
        positions: PositionStats = stats.positions if isinstance(stats, TargetStats) else stats
        return positions.top_logprob

    @property
    def proposal_prob_R(self) -> FloatArray:
        """The probability of that token, for comparison with a ``comparable`` bound."""
        return comparable(np.exp(self.proposal_logprob_R))

    def seeing(self, stats: T, memory: Memory | None = None) -> StepView[T]:
        """Return the same pass with other statistics, and another rule's memory.

        Written out because ``dataclasses.replace`` would take longer than the rules.
        """
        return StepView(
            self.chain_R, self.position_R, self.offset_R, self.block_C, self.step_C, self.forward_C,
            self.filling_C, stats, memory or self.memory, self.numbers, self.extras, self.logprob_of,
            self.entropy_after,
        )  # fmt: skip

    def with_extras(
        self,
        extras: Mapping[str, FloatArray],
        logprob_of: Callable[[IntArray, IntArray], FloatArray] | None = None,
        entropy_after: Callable[[IntArray], FloatArray] | None = None,
    ) -> StepView[S_co]:
        """Return the same view with the rules' extra inputs."""
        return StepView(
            self.chain_R, self.position_R, self.offset_R, self.block_C, self.step_C, self.forward_C,
            self.filling_C, self.stats, self.memory, self.numbers, extras, logprob_of or self.logprob_of,
            entropy_after or self.entropy_after,
        )  # fmt: skip

    def ranks(self, scores_R: FloatArray) -> IntArray:
        """Return each row's rank (0 = first) in its chain: higher scores first, then leftmost."""
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
        """Return the best row of each chain: the largest score, the leftmost if several tie."""
        tied = np.flatnonzero(scores_R == np.maximum.reduceat(scores_R, self.starts_C)[self.chain_R])
        chain = self.chain_R[tied]
        first = np.ones(len(tied), bool)
        first[1:] = chain[1:] != chain[:-1]
        best = np.zeros(len(scores_R), bool)
        best[tied[first]] = True
        return best
