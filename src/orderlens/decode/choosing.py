"""Which positions a pass of the generator commits: every policy of the batch chooses among its own rows.

Shape letters: C chains of the batch, R rows of the pass, c and r those of one policy.
"""

from __future__ import annotations

import numpy as np

from orderlens.decode.chains import Chains
from orderlens.decode.head import draw_stats, take_rows
from orderlens.decode.passes import Pass, regroup
from orderlens.decode.select import Choice, choose
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.orders.protocol import StaticOrder
from orderlens.orders.view import StepView
from orderlens.policies.policy import Policy
from orderlens.stats import DrawStats, PositionStats


def choose_rows(chains: Chains, now: Pass, temperature: float) -> tuple[Choice, DrawStats | None]:
    """Return what every policy commits, over all rows, and at T > 0 the draws of the committed rows."""
    policy, count = chains.policies[0], len(now.chain_R)
    if len(chains.policies) == 1 and not (temperature or policy.revise is not None or policy.is_static):
        return _ask(chains, policy, now, np.arange(count), now.stats), None  # nothing to merge
    merged = Choice(np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64), [])
    policy_C = chains.policy_N[now.index_C]
    policy_R = policy_C[now.chain_R]
    drawing = np.zeros(count, bool)
    late = []
    for p in np.unique(policy_C):
        policy = chains.policies[p]
        mine = np.flatnonzero((policy_R == p) & now.masked_R)
        if policy.is_static:
            merged.chosen_R[mine] = True
            merged.score_R[mine] = -chains.place_NB[now.index_R[mine], now.offset_R[mine]]
        elif policy.draws_first(temperature):
            drawing[mine] = True
            late.append((policy, mine))
        elif len(mine):
            _enter(merged, mine, _ask(chains, policy, now, mine, now.stats.take(mine)))
    if temperature == 0:
        return merged, None
    drawn = np.flatnonzero(drawing | merged.chosen_R)
    draws = draw_stats(
        take_rows(now.rows, drawn), now.stats.take(drawn), temperature, _uniforms(chains, now, drawn)
    )
    for policy, mine in late:
        if len(mine):
            stats = draws.take(np.searchsorted(drawn, mine))
            _enter(merged, mine, _ask(chains, policy, now, mine, stats))
    committed = np.flatnonzero(merged.chosen_R)
    return merged, draws.take(np.searchsorted(drawn, committed))


def _enter(into: Choice, mine: IntArray, found: Choice) -> None:
    """Enter what one policy chose among its rows."""
    into.chosen_R[mine] = found.chosen_R
    into.score_R[mine] = found.score_R
    into.tied_R[mine] = found.tied_R
    into.kept.extend(found.kept)


def _ask(
    chains: Chains, policy: Policy, now: Pass, mine: IntArray, stats: PositionStats | DrawStats
) -> Choice:
    """Let one policy choose among masked rows of its chains."""
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
    return choose(policy, view, memory, index_c, place_r)


def _uniforms(chains: Chains, now: Pass, rows: IntArray) -> FloatArray:
    """The number behind the draw at each row in this pass: the same for every way of asking."""
    numbers_CB = chains.draws.rows(now.index_C, chains.pass_N[now.index_C])
    return numbers_CB[now.chain_R[rows], now.offset_R[rows]]
