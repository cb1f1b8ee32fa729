"""Choosing positions: an order's scores, a commit rule's set, checked, with ties counted.

The one place where the decoder calls a policy's rules, for scoring and for generation alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.asked import Kept, RowHistory, Source, answered
from orderlens.errors import ModelOutputError, OrderLensError, PluginError, UserInputError, one_line
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.memory import MemoryTable
from orderlens.rules.orders.protocol import ConfidenceOrder, DrawingOrder, OracleOrder, StaticOrder
from orderlens.rules.policy import Policy
from orderlens.rules.stats import DrawStats, PositionStats, TargetStats, comparable
from orderlens.rules.view import StepView

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PolicyMemory:
    """The memories of a policy's rules over all chains of a call, and the rows of its last passes."""

    order: MemoryTable
    commit: MemoryTable
    revise: MemoryTable
    rows: RowHistory

    @classmethod
    def empty(cls, n_chains: int, block_size: int) -> PolicyMemory:
        """Return memories with nothing in them."""
        order, commit, revise = (MemoryTable(n_chains, block_size) for _ in range(3))
        return cls(order, commit, revise, RowHistory(n_chains, block_size))

    def forget(self, chains: IntArray) -> None:
        """The given chains enter a new block."""
        for table in (self.order, self.commit, self.revise, self.rows):
            table.forget(chains)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chose among R rows.

    Attributes:
        chosen_R: rows to commit.
        score_R: the order's scores.
        tied_R: how many of the chain's rows have the row's score, itself included; only for chosen rows.
        kept: what the rules and the decoder remember of this pass, to be committed with it.
        token_R: what each row takes at temperature 0 where the rule says so; −1, or None for all of them, is
            the most probable token.
    """

    chosen_R: BoolArray
    score_R: FloatArray
    tied_R: IntArray
    kept: list[Kept]
    token_R: IntArray | None = None

    def commit(self) -> None:
        """Let the rules remember what they kept in this pass."""
        for memory in self.kept:
            memory.commit()


def choose(
    policy: Policy,
    view: StepView[PositionStats | TargetStats | DrawStats],
    memory: PolicyMemory,
    chain_C: IntArray,
    place_R: IntArray | None,
    source: Source | None = None,
) -> Choice:
    """Ask the policy's rules which rows of ``view`` are committed now.

    Args:
        policy: the rules.
        view: the masked positions of its chains and the order's memory; with ``TargetStats`` only a
            target-aware order sees them.
        memory: of this policy; ``chain_C`` places the view's chains in it.
        chain_C: see ``memory``.
        place_R: place of each row in the path, for a static order under an adaptive commit rule.
        source: answers what the rules ask for beyond the statistics; needed where they do.
    """
    kept: list[Kept] = []
    if policy.needs:
        view, kept = answered(policy, view, memory.rows, chain_C, source)
    public: Any = view.stats.positions if isinstance(view.stats, TargetStats) else view.stats
    with naming(f"order '{policy.order.spec}'", policy.order):
        score_R = _scores(policy, view, public, place_R)
    if score_R.shape != (len(view),) or np.isnan(score_R).any():
        raise ModelOutputError(
            f"order '{policy.order.spec}' must give one number per masked position ({len(view)}), none of "
            f"them NaN; it gave an array of shape {score_R.shape}"
        )
    score_R = comparable(score_R)
    taken = memory.commit.at(chain_C, view.chain_R, view.offset_R)
    with naming(f"commit rule '{policy.commit.spec}'", policy.commit):
        pick = policy.commit.pick(view.seeing(public, taken), score_R)
        chosen_R = np.asarray(pick.chosen_R)
    n_C = _chosen_per_chain(policy, view, chosen_R)
    tied_R = _ties(view, score_R, chosen_R, n_C)
    return Choice(chosen_R, score_R, tied_R, [view.memory, taken, *kept], pick.token_R)


@contextmanager
def naming(what: str, rule: object) -> Iterator[None]:
    """Say whose rule it was when one that is not ours fails."""
    try:
        yield
    except (OrderLensError, MemoryError):
        raise
    except Exception as error:
        place = type(rule).__module__
        if place.startswith("orderlens."):
            raise
        raise PluginError(f"{what} of '{place}' failed: {type(error).__name__}: {one_line(error)}") from error


def _scores(policy: Policy, view: StepView[Any], public: Any, place_R: IntArray | None) -> FloatArray:
    order = policy.order
    if isinstance(order, StaticOrder):
        assert place_R is not None
        return -place_R.astype(np.float64)
    if isinstance(order, OracleOrder):
        return np.asarray(order.scores(view), np.float64)
    if isinstance(view.stats, DrawStats) and isinstance(order, DrawingOrder):
        return np.asarray(order.draw_scores(view), np.float64)
    if isinstance(order, ConfidenceOrder):
        seen = public.positions if isinstance(public, DrawStats) else public
        return np.asarray(order.scores(view if seen is view.stats else view.seeing(seen)), np.float64)
    raise UserInputError(f"order '{order.spec}' is neither static, confidence-based nor an oracle")


def _chosen_per_chain(policy: Policy, view: StepView[Any], chosen_R: BoolArray) -> IntArray:
    if chosen_R.shape != (len(view),) or chosen_R.dtype != np.bool_:
        raise ModelOutputError(
            f"commit rule '{policy.commit.spec}' must give one boolean per masked position"
        )
    n_C = np.bincount(view.chain_R[chosen_R], minlength=len(view.block_C))
    if not n_C.all():
        raise ModelOutputError(
            f"commit rule '{policy.commit.spec}' chose nothing in {int((n_C == 0).sum())} of {len(n_C)} "
            "chains; it must choose at least one position in each"
        )
    return n_C


def _ties(view: StepView[Any], score_R: FloatArray, chosen_R: BoolArray, n_C: IntArray) -> IntArray:
    if (n_C == 1).all():
        best_C = score_R[chosen_R]  # rows are sorted by chain: one chosen row each, in chain order
        tied_C = np.add.reduceat((score_R == best_C[view.chain_R]).astype(np.int64), view.starts_C)
        return tied_C[view.chain_R]
    by_R = np.lexsort((score_R, view.chain_R))
    chain_R, value_R = view.chain_R[by_R], score_R[by_R]
    new_R = np.ones(len(by_R), bool)
    new_R[1:] = (chain_R[1:] != chain_R[:-1]) | (value_R[1:] != value_R[:-1])
    group_R = np.cumsum(new_R) - 1
    tied_R = np.empty(len(by_R), np.int64)
    tied_R[by_R] = np.bincount(group_R)[group_R]
    return tied_R
