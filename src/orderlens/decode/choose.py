"""Choosing positions: an order's scores and a commit rule's set, checked, with ties counted.

``choose`` is the one place where the decoder calls an order and a commit rule, for scoring and generation.
``choose_rows`` does so for a pass of the generator, in which every policy has its own rows.

Shape letters: C chains of the batch, R rows of the pass, c and r those of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.extra_inputs import ExtraSource, PolicyMemory, Remaining, with_extras
from orderlens.decode.head import take_rows, target_stats
from orderlens.decode.passes import Pass, regroup
from orderlens.errors import ModelOutputError, OrderLensError, PluginError, UserInputError, one_line
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.orders import ConfidenceOrder, DrawingOrder, OracleOrder, StaticOrder
from orderlens.rules.policy import Policy
from orderlens.rules.stats import DrawStats, PositionStats, TargetStats, comparable
from orderlens.rules.view import StepView

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows that a policy chose among R rows.

    Attributes:
        chosen_R: rows to commit.
        score_R: the order's scores.
        tied_R: number of rows of the chain with the same score, including the row itself; only for chosen
            rows.
        on_commit: callbacks that store the memory of rules and decoder once the pass has succeeded.
        token_R: the token that the commit rule sets at temperature 0. −1, or None for all rows, means the
            most probable token.
    """

    chosen_R: BoolArray
    score_R: FloatArray
    tied_R: IntArray
    on_commit: list[Callable[[], None]]
    token_R: IntArray | None = None

    def merge(self, rows: IntArray, part: ChosenRows) -> None:
        """Insert the choice of one policy among ``rows``."""
        self.chosen_R[rows], self.score_R[rows] = part.chosen_R, part.score_R
        self.tied_R[rows] = part.tied_R
        if part.token_R is not None and self.token_R is not None:
            self.token_R[rows] = part.token_R
        self.on_commit.extend(part.on_commit)

    def commit(self) -> None:
        """Store the memory that the rules wrote in this pass."""
        for store_memory in self.on_commit:
            store_memory()


def choose(
    policy: Policy,
    view: StepView[PositionStats | TargetStats | DrawStats],
    memory: PolicyMemory,
    chain_C: IntArray,
    place_R: IntArray | None,
    source: ExtraSource | None = None,
) -> ChosenRows:
    """Apply the policy's order and commit rule: which rows of ``view`` are committed now.

    Args:
        policy: the rules.
        view: the masked positions of its chains and the order's memory. Only a target-aware order sees
            ``TargetStats``; the others see their position statistics.
        memory: of this policy.
        chain_C: index of each of the view's chains in ``memory``.
        place_R: place of each row in the path, for a static order under an adaptive commit rule.
        source: provides the extra inputs that the rules request.
    """
    on_commit: list[Callable[[], None]] = []
    if policy.needs:
        view, on_commit = with_extras(policy, view, memory.rows, chain_C, source)
    public: Any = view.stats.positions if isinstance(view.stats, TargetStats) else view.stats
    with plugin_errors(f"order '{policy.order.spec}'", policy.order):
        score_R = _scores(policy, view, public, place_R)
    if score_R.shape != (len(view),) or np.isnan(score_R).any():
        raise ModelOutputError(
            f"order '{policy.order.spec}' returned scores of shape {score_R.shape}; it must return one "
            f"number per masked position ({len(view)}), without NaN"
        )
    score_R = comparable(score_R)
    commit_memory = memory.commit.at(chain_C, view.chain_R, view.offset_R)
    with plugin_errors(f"commit rule '{policy.commit.spec}'", policy.commit):
        pick = policy.commit.pick(view.seeing(public, commit_memory), score_R)
        chosen_R = np.asarray(pick.chosen_R)
    n_C = _chosen_per_chain(policy, view, chosen_R)
    tied_R = _ties(view, score_R, chosen_R, n_C)
    on_commit = [view.memory.commit, commit_memory.commit, *on_commit]
    return ChosenRows(chosen_R, score_R, tied_R, on_commit, pick.token_R)


@contextmanager
def plugin_errors(rule_name: str, rule: object) -> Iterator[None]:
    """Turn an unexpected error of a plugin's rule into a ``PluginError`` that names its module."""
    try:
        yield
    except (OrderLensError, MemoryError):
        raise
    except Exception as error:
        module = type(rule).__module__
        if module.startswith("orderlens."):
            raise
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise PluginError(f"{rule_name} of '{module}' failed: {cause}") from error


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
            f"commit rule '{policy.commit.spec}' must return one boolean per masked position"
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


def choose_rows(chains: Chains, now: Pass, temperature: float) -> ChosenRows:
    """Choose among the masked rows of a pass: each policy's order and commit rule on its own chains."""

    def visible(policy: Policy) -> PositionStats | DrawStats:
        """Return the statistics that the policy sees: the draws if it draws before it chooses."""
        return now.draws if now.draws is not None and policy.draws_first(temperature) else now.stats

    policy, count = chains.policies[0], len(now.chain_R)
    if len(chains.policies) == 1 and policy.revise is None and not policy.is_static:
        return _choose_for(chains, policy, now, None, visible(policy))  # nothing to merge
    merged = ChosenRows(
        np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64), [], np.full(count, -1)
    )
    policy_C = chains.policy_N[now.index_C]
    policy_R = policy_C[now.chain_R]
    for p in np.unique(policy_C).tolist():
        policy, mine = chains.policies[p], np.flatnonzero((policy_R == p) & now.masked_R)
        if policy.is_static:
            where = now.index_R[mine], now.offset_R[mine]
            merged.chosen_R[mine] = chains.rank_NB[where] == chains.pass_N[where[0]]
            merged.score_R[mine] = -chains.place_NB[where]
        elif len(mine) and not policy.is_planned_by_revise:
            merged.merge(mine, _choose_for(chains, policy, now, mine, visible(policy).take(mine)))
    return merged


def committed_tokens(now: Pass, choice: ChosenRows) -> DrawStats | None:
    """Return the committed tokens, or None if all of them are the most probable ones.

    They can differ where they are drawn, and where the commit rule sets them.
    """
    committed = np.flatnonzero(choice.chosen_R)
    if now.draws is not None:
        return now.draws.take(committed)
    if choice.token_R is None:
        return None
    stats, by_rule_r = now.stats.take(committed), choice.token_R[committed]
    if (by_rule_r < 0).all():
        return None
    token_r = np.where(by_rule_r < 0, stats.top_token, by_rule_r)
    logprob_r = target_stats(take_rows(now.rows, committed), (), token_r).target_logprob
    return DrawStats(stats, token_r, logprob_r, np.zeros(len(committed)))


def _choose_for(
    chains: Chains, policy: Policy, now: Pass, mine: IntArray | None, stats: PositionStats | DrawStats
) -> ChosenRows:
    """Apply one policy to the masked rows of its chains: to all rows, or to the rows ``mine``."""
    if mine is None:
        index_c, chain_r, offset_r = now.index_C, now.chain_R, now.offset_R
    else:
        live_c, chain_r = regroup(now.chain_R[mine])
        index_c, offset_r = now.index_C[live_c], now.offset_R[mine]
    memory = chains.memory[chains.policy_N[index_c[0]]]
    view = StepView(
        chain_R=chain_r,
        position_R=chains.start_N[index_c][chain_r] + offset_r,
        offset_R=offset_r,
        block_C=chains.block_N[index_c],
        step_C=chains.step_N[index_c],
        forward_C=chains.pass_N[index_c],
        filling_C=chains.filling_N[index_c],
        stats=stats,
        memory=memory.order.at(index_c, chain_r, offset_r),
        numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
    )
    static = isinstance(policy.order, StaticOrder)
    place_r = chains.place_NB[index_c[chain_r], offset_r] if static else None
    return choose(policy, view, memory, index_c, place_r, _source(now, mine) if policy.needs else None)


def _source(now: Pass, mine: IntArray | None) -> ExtraSource:
    """Return the source of extra inputs for a policy with the rows ``mine`` of the pass."""

    def look_ahead(tried_Kk: IntArray, drawn: bool) -> Remaining:
        assert now.look_ahead is not None
        return now.look_ahead(tried_Kk if mine is None else mine[tried_Kk], drawn)

    return ExtraSource(lambda: now.rows if mine is None else take_rows(now.rows, mine), look_ahead)
