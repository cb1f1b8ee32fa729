"""``StepView``: what an order or a commit rule sees of one forward pass.

It holds the masked positions of the current block of *all* chains that share a policy, as parallel arrays, so
that a rule is a few numpy expressions however many chains there are. The type of ``stats`` decides who may
see what: a deployable rule is handed ``PositionStats``, only a target-aware order is handed ``TargetStats``.

Rows are sorted by chain, inside a chain from left to right. Everything is a function of the chain alone:
a rule must give a row the same score whatever other chains are in the view.

Shape letters: C chains, R masked positions of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import UserInputError
from orderlens.rules.memory import Memory, nothing_kept
from orderlens.rules.stats import DrawStats, PositionStats, TargetStats, comparable

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
S_co = TypeVar("S_co", bound=PositionStats | TargetStats | DrawStats, covariant=True)
T = TypeVar("T", bound=PositionStats | TargetStats | DrawStats)
_NOTHING: Mapping[str, FloatArray] = MappingProxyType({})


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
