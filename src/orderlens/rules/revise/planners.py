"""Revise rules that decide everything themselves: what a pass fills, and what it takes back.

In ReMDM, RCR, P2 and Mask-Predict the two decisions are one: a pass proposes a token everywhere, and what
stays is chosen over masked and held positions together. Such a rule is a ``Planner``: it sees all positions
that the current block has to fill, and its policy has no commit rule.

A token that a pass proposes and does not keep was never revealed: only what stands on the canvas between two
passes is an event. Every block is a canvas of its own: the counts and times of a published sampler, which
speak of a whole text, are read per block, because the blocks before it are finished and cached.

Shape letters: C chains, R rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.memory import Memory
from orderlens.rules.protocol import BoolArray, FloatArray, IntArray, Revision, whole
from orderlens.rules.stats import PositionStats, comparable


def _nobody_asks(_: BoolArray) -> FloatArray:
    raise UserInputError("a revise rule that calls view.apart must set judges_apart = True")


@dataclass(frozen=True, slots=True)
class BlockView:
    """All positions that the current blocks have to fill, masked or held (arrays are [R] where not said).

    Attributes:
        chain_R: chain of each position (0…C−1); rows are sorted by chain, then left to right.
        position_R: absolute position.
        offset_R: offset in the block.
        masked_R: whether nothing stands there.
        token_R: the token it holds; −1 where masked.
        held_logprob_R: that token's log-probability in this pass; NaN where masked.
        logq_R: its log-probability in the pass that committed it; NaN where masked.
        proposal_R: the token that this pass would put there: drawn at T > 0, else the most probable.
        proposal_logprob_R: its log-probability at temperature 1.
        stats: what this pass says about the position.
        forward_C: passes the block has had before this one.
        filling_C: positions the block has to fill.
        memory: what this rule kept at earlier passes of the same block.
        numbers: gives ``uniforms_R``.
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
    apart: Callable[[BoolArray], FloatArray] = _nobody_asks

    def __len__(self) -> int:
        return len(self.chain_R)

    @property
    def uniforms_R(self) -> FloatArray:
        """One number in [0, 1) per row, keyed by (the order's seed, sample, policy, block, pass, offset)."""
        return self.numbers()

    def ranks(self, scores_R: FloatArray, among_R: BoolArray | None = None) -> IntArray:
        """Return each row's place (0 = first) in its chain: higher scores first, then leftmost.

        Args:
            scores_R: no NaN among the rows that count.
            among_R: rows that count; the others come behind them.
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
    """What stands after this pass: masked rows that take their proposal, held rows that are masked again.

    ``edit_R``, where given, are held rows that take their proposal; nothing changes where that is the token
    they hold.
    """

    commit_R: BoolArray
    remask_R: BoolArray
    edit_R: BoolArray | None = None

    @classmethod
    def keeping(cls, view: BlockView, keep_R: BoolArray) -> Moves:
        """Return the moves after which exactly the rows of ``keep_R`` hold a token."""
        return cls(keep_R & view.masked_R, ~keep_R & ~view.masked_R)


class Planner(Revision):
    """A revise rule that also decides what is revealed. Only for generation.

    A block of n positions ends after ``passes(n)`` passes; what is still masked then is filled by one more.
    """

    order_id: ClassVar[str]
    """The order that such a policy is written with; its scores are not asked for."""
    ends_when_full: ClassVar[bool] = True
    """Whether a block is done as soon as nothing is masked, before the last pass."""
    judges_apart: ClassVar[bool] = False
    """Whether it asks for ``BlockView.apart``."""

    @abstractmethod
    def passes(self, n_positions: int) -> int:
        """Return how many passes a block with that many positions to fill takes, at least 1."""

    @abstractmethod
    def plan(self, view: BlockView) -> Moves:
        """Return what this pass fills and takes back; both arrays are [R]."""

    def max_passes(self, n_positions: int) -> int:
        """Return the most passes that a block takes, the one that fills what was left included."""
        return self.passes(n_positions) + 1


@dataclass(eq=False)
class StepPlanner(Planner):
    """A planner over a given number of passes per block, by default one per position."""

    steps: int = whole(1, "STEPS", 16, default=0)

    def passes(self, n_positions: int) -> int:
        """Return the number of steps."""
        return self.steps or max(1, n_positions)

    def steps_C(self, view: BlockView) -> IntArray:
        """Return the passes that each chain's block takes in all."""
        return np.full(len(view.filling_C), self.steps) if self.steps else np.maximum(view.filling_C, 1)


class KeepBest(StepPlanner):
    """Every pass proposes a token at all masked positions and keeps the most probable ones of the block.

    How many stay masked falls from pass to pass (``left_C``); ``confidence_R`` says what is compared.
    """

    order_id = "max-prob"

    def plan(self, view: BlockView) -> Moves:
        """Keep all but the least confident; among equals the leftmost are kept."""
        keep_C = view.filling_C - self.left_C(view)
        return Moves.keeping(view, view.ranks(self.confidence_R(view)) < keep_C[view.chain_R])

    def left_C(self, view: BlockView) -> IntArray:
        """Return how many positions stay masked after this pass: floor(n (1 − (t + 1)/T)), in integers."""
        steps_C = self.steps_C(view)
        left_C: IntArray = view.filling_C * (steps_C - 1 - view.forward_C) // steps_C
        return left_C

    def confidence_R(self, view: BlockView) -> FloatArray:
        """Return the log-probability of each token in the pass that proposed it."""
        return np.where(view.masked_R, view.proposal_logprob_R, view.logq_R)
