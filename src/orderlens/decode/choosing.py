"""Which positions a pass of the generator commits: every policy of the batch chooses among its own rows.

Shape letters: C chains of the batch, R rows of the pass, c and r those of one policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from orderlens.decode.asked import Source
from orderlens.decode.chains import Chains
from orderlens.decode.head import take_rows, target_stats
from orderlens.decode.passes import Pass, regroup
from orderlens.decode.planning import Planned, plan_rows
from orderlens.decode.select import Choice, choose
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.orders.protocol import StaticOrder
from orderlens.rules.policy import Policy
from orderlens.rules.revise.planners import Planner
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import StepView


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a pass commits.

    Attributes:
        choice: over all rows.
        draws: of the committed rows, at T > 0; at T = 0 where a rule names other tokens than the best.
        plans: what planners take back as well.
    """

    choice: Choice
    draws: DrawStats | None = None
    plans: list[Planned] = field(default_factory=list)


def choose_rows(chains: Chains, now: Pass, temperature: float) -> Chosen:
    """Let every policy choose among its rows."""

    def seen(policy: Policy) -> PositionStats | DrawStats:
        """The draws where these come before the choice."""
        first = isinstance(policy.revise, Planner) or policy.draws_first(temperature)
        return now.draws if now.draws is not None and first else now.stats

    policy, count = chains.policies[0], len(now.chain_R)
    if len(chains.policies) == 1 and policy.revise is None and not policy.is_static:
        alone = _ask(chains, policy, now, None, seen(policy))  # nothing to merge
        return Chosen(alone, _tokens(now, alone))
    merged = Choice(np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64), [], np.full(count, -1))
    chosen = Chosen(merged)
    policy_C = chains.policy_N[now.index_C]
    policy_R = policy_C[now.chain_R]
    for p in np.unique(policy_C).tolist():
        policy, mine = chains.policies[p], np.flatnonzero(policy_R == p)
        if not isinstance(policy.revise, Planner):
            mine = mine[now.masked_R[mine]]
        if policy.is_static:
            merged.chosen_R[mine] = True
            merged.score_R[mine] = -chains.place_NB[now.index_R[mine], now.offset_R[mine]]
        elif len(mine):
            _enter(chains, now, p, mine, seen(policy).take(mine), chosen)
    return Chosen(merged, _tokens(now, merged), chosen.plans)


def _tokens(now: Pass, choice: Choice) -> DrawStats | None:
    """Return the committed tokens where they may not be the most probable ones: drawn, or named by a rule."""
    if now.draws is not None:
        return now.draws.take(np.flatnonzero(choice.chosen_R))
    return _named(now, choice)


def _named(now: Pass, choice: Choice) -> DrawStats | None:
    """Return the committed tokens where a rule names some that are not the most probable ones."""
    if choice.token_R is None:
        return None
    committed = np.flatnonzero(choice.chosen_R)
    stats, named_r = now.stats.take(committed), choice.token_R[committed]
    if (named_r < 0).all():
        return None
    token_r = np.where(named_r < 0, stats.top_token, named_r)
    logprob_r = target_stats(take_rows(now.rows, committed), (), token_r).target_logprob
    return DrawStats(stats, token_r, logprob_r, np.zeros(len(committed)))


def _enter(
    chains: Chains, now: Pass, p: int, mine: IntArray, stats: PositionStats | DrawStats, into: Chosen
) -> None:
    """Let policy ``p`` choose among its rows, and enter what it chose."""
    choice, policy = into.choice, chains.policies[p]
    if isinstance(policy.revise, Planner):
        planned = plan_rows(chains, p, policy.revise, now, mine, stats)
        choice.chosen_R[mine] = planned.commit_r
        choice.score_R[mine] = planned.score_r
        choice.kept.append(planned.memory)
        into.plans.append(planned)
        return
    found = _ask(chains, policy, now, mine, stats)
    choice.chosen_R[mine] = found.chosen_R
    choice.score_R[mine] = found.score_R
    choice.tied_R[mine] = found.tied_R
    if found.token_R is not None and choice.token_R is not None:
        choice.token_R[mine] = found.token_R
    choice.kept.extend(found.kept)


def _ask(
    chains: Chains, policy: Policy, now: Pass, mine: IntArray | None, stats: PositionStats | DrawStats
) -> Choice:
    """Let one policy choose among masked rows of its chains: all of them, or the rows ``mine``."""
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


def _source(now: Pass, mine: IntArray | None) -> Source:
    """Return where a policy with the rows ``mine`` of the pass gets what it asks for."""

    def look(tried: IntArray) -> FloatArray:
        assert now.look is not None
        return now.look(tried if mine is None else mine[tried])

    return Source(lambda: now.rows if mine is None else take_rows(now.rows, mine), look)
