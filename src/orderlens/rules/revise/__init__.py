"""Revise rules, which change or re-mask committed tokens of the current block, and their base classes.

A rule receives all positions that the current block has to fill, masked or revealed ("held"). Some published
samplers (ReMDM, RCR, P2, Mask-Predict) choose both what is filled and what is re-masked: such a rule names
its order (``order_id``), and its policy has no commit rule. Other rules complement an order and a commit
rule, which choose what is filled. A policy with a revise rule can generate but does not define a likelihood
of a fixed text.

A token that a pass proposes and does not keep is not an event: only changes of the canvas between two passes
are. Counts and times of a published sampler, which refer to a whole text, apply to each block here, because
earlier blocks are finished and cached.

Shape letters: C chains, R rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.protocol import Rule, whole
from orderlens.rules.stats import BoolArray, FloatArray, IntArray, PositionStats, comparable
from orderlens.rules.view import Memory


def _not_declared(_: BoolArray) -> FloatArray:
    raise UserInputError("a revise rule that calls view.apart must set judges_apart = True")


@dataclass(frozen=True, slots=True)
class BlockView:
    """All positions that the current blocks have to fill, masked or held (arrays are [R] unless noted).

    Attributes:
        chain_R: chain of each position (0…C−1); rows are sorted by chain, then left to right.
        position_R: absolute position.
        offset_R: offset in the block.
        masked_R: whether the position is masked.
        token_R: its token; −1 if masked.
        held_logprob_R: that token's log-probability in this pass; NaN if masked.
        logq_R: its log-probability in the pass that committed it; NaN if masked.
        proposal_R: the token that this pass proposes: the most probable one, or at T > 0 a drawn one if the
            rule has ``draws_proposals``.
        proposal_logprob_R: its log-probability at temperature 1.
        stats: statistics of the position in this pass.
        forward_C: number of earlier passes of the block.
        filling_C: number of positions that the block has to fill.
        memory: values that this rule stored at earlier passes of the same block.
        numbers: returns ``uniforms_R``.
        apart: takes held rows [R]; returns the log-probability of the token at each of them in a state where
            it alone is masked, NaN elsewhere. One more state each, counted in ``n_lookahead``; only for a
            rule with ``judges_apart``.
    """

    chain_R: IntArray
    position_R: IntArray
    offset_R: IntArray
    masked_R: BoolArray
    token_R: IntArray
    held_logprob_R: FloatArray
    logq_R: FloatArray
    proposal_R: IntArray
    proposal_logprob_R: FloatArray
    stats: PositionStats
    forward_C: IntArray
    filling_C: IntArray
    memory: Memory
    numbers: Callable[[], FloatArray]
    apart: Callable[[BoolArray], FloatArray] = _not_declared

    def __len__(self) -> int:
        return len(self.chain_R)

    @property
    def uniforms_R(self) -> FloatArray:
        """One number in [0, 1) per row, keyed by (the order's seed, sample, policy, block, pass, offset)."""
        return self.numbers()

    def ranks(self, scores_R: FloatArray, among_R: BoolArray | None = None) -> IntArray:
        """Return each row's rank (0 = first) in its chain: higher scores first, then leftmost.

        Args:
            scores_R: no NaN among the rows that count.
            among_R: rows that count; the others come after them.
        """
        outside_R = np.zeros(len(self), bool) if among_R is None else ~among_R
        by_R = np.lexsort(
            (self.offset_R, np.where(outside_R, 0.0, -comparable(scores_R)), outside_R, self.chain_R)
        )
        starts_C = np.searchsorted(self.chain_R, np.arange(len(self.filling_C)))
        rank_R = np.empty(len(by_R), np.int64)
        rank_R[by_R] = np.arange(len(by_R)) - starts_C[self.chain_R]
        return rank_R


@dataclass(frozen=True, slots=True)
class Moves:
    """The changes of one pass, each [R] or None for no change.

    Attributes:
        commit_R: masked rows that take their proposal; only for a rule with ``order_id``.
        remask_R: held rows that are masked again.
        edit_R: held rows that take their proposal; no change if it is the same token.
    """

    commit_R: BoolArray | None = None
    remask_R: BoolArray | None = None
    edit_R: BoolArray | None = None

    @classmethod
    def keeping(cls, view: BlockView, keep_R: BoolArray) -> Moves:
        """Return the moves after which exactly the rows of ``keep_R`` hold a token."""
        return cls(keep_R & view.masked_R, ~keep_R & ~view.masked_R)


class Revise(Rule):
    """A rule that may change committed tokens. Only for generation.

    It is called in the first ``passes(n)`` passes of a block of n positions. Positions that are still masked
    then are filled without it: in one more pass, or by the commit rule.
    """

    order_id: ClassVar[str | None] = None
    """The order in the policy's spec if the rule chooses positions itself (its scores are not used); None for
    a rule that complements an order and a commit rule."""
    draws_proposals: ClassVar[bool] = True
    """Whether the proposals are drawn tokens at T > 0."""
    judges_apart: ClassVar[bool] = False
    """Whether it calls ``BlockView.apart``."""

    @abstractmethod
    def passes(self, n_positions: int) -> int:
        """Return the number of passes of a block with ``n_positions`` to fill, at least 1."""

    @abstractmethod
    def revise(self, view: BlockView) -> Moves:
        """Return the changes of this pass."""

    def is_done(self, n_full: int, changed: bool) -> bool:
        """Return whether a block without masks is finished before its last pass.

        Args:
            n_full: number of passes that began without a mask.
            changed: whether the last pass changed a token.
        """
        return True

    def max_passes(self, n_positions: int) -> int:
        """Return the maximum number of passes of a block."""
        return self.passes(n_positions) + (n_positions if self.order_id is None else 1)


@dataclass(eq=False)
class SteppedRevise(Revise):
    """A rule with a given number of passes per block, by default one per position."""

    steps: int = whole(1, "STEPS", 16, default=0)

    def passes(self, n_positions: int) -> int:
        return self.steps or max(1, n_positions)

    def steps_C(self, view: BlockView) -> IntArray:
        """Return the total number of passes of each chain's block."""
        return np.full(len(view.filling_C), self.steps) if self.steps else np.maximum(view.filling_C, 1)
