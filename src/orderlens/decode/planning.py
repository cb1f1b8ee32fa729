"""Asking a planner: what a pass fills and takes back, checked.

Shape letters: c chains and r rows of one policy in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.passes import Pass, each, regroup
from orderlens.decode.select import naming
from orderlens.errors import ModelOutputError
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.memory import Memory
from orderlens.rules.revise.planners import BlockView, Moves, Planner
from orderlens.rules.stats import DrawStats, PositionStats

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Planned:
    """What a planner wants of the rows ``row_r`` of a pass.

    ``token_r`` is what a committed or edited row takes, ``score_r`` its log-probability.
    """

    row_r: IntArray
    commit_r: BoolArray
    remask_r: BoolArray
    edit_r: BoolArray
    token_r: IntArray
    score_r: FloatArray
    memory: Memory


def plan_rows(
    chains: Chains, p: int, rule: Planner, now: Pass, row_r: IntArray, stats: PositionStats | DrawStats
) -> Planned:
    """Ask policy ``p``'s planner about its rows, masked and held; blocks past their last pass are filled."""
    score_r = stats.logprob if isinstance(stats, DrawStats) else stats.top_logprob
    token_r = stats.token if isinstance(stats, DrawStats) else stats.top_token
    masked_r, index_r = now.masked_R[row_r], now.index_R[row_r]
    closing_r = chains.pass_N[index_r] >= each(rule.passes, chains.filling_N[index_r])
    commit_r, remask_r, edit_r = masked_r & closing_r, *np.zeros((2, len(row_r)), bool)
    asked = np.flatnonzero(~closing_r)
    view, memory = _view(chains, p, now, row_r[asked], stats.take(asked))
    if len(asked):
        with naming(f"revise rule '{rule.spec}'", rule):
            plan = rule.plan(view)
        _check(rule, plan, view)
        commit_r[asked], remask_r[asked] = plan.commit_R, plan.remask_R
        if plan.edit_R is not None:
            edit_r[asked] = plan.edit_R & (view.proposal_R != view.token_R)
    return Planned(row_r, commit_r, remask_r, edit_r, np.asarray(token_r), np.asarray(score_r), memory)


def _view(
    chains: Chains, p: int, now: Pass, row_r: IntArray, stats: PositionStats | DrawStats
) -> tuple[BlockView, Memory]:
    live_c, chain_r = regroup(now.chain_R[row_r])
    index_c, offset_r = now.index_C[live_c], now.offset_R[row_r]
    index_r, masked_r = index_c[chain_r], now.masked_R[row_r]
    memory = chains.memory[p].revise.at(index_c, chain_r, offset_r)
    assert now.held_logprob_R is not None

    def apart(held_r: BoolArray) -> FloatArray:
        assert now.apart is not None
        logprob_r = np.full(len(row_r), np.nan)
        if held_r.any():
            logprob_r[held_r] = now.apart(row_r[held_r])
        return logprob_r

    view = BlockView(
        chain_R=chain_r,
        position_R=chains.start_N[index_r] + offset_r,
        offset_R=offset_r,
        masked_R=masked_r,
        token_R=np.where(masked_r, -1, now.asked.token_R[row_r]),
        held_logprob_R=np.where(masked_r, np.nan, now.held_logprob_R[row_r]),
        logq_R=np.where(masked_r, np.nan, chains.logq_NB[index_r, offset_r]),
        proposal_R=stats.token if isinstance(stats, DrawStats) else stats.top_token,
        proposal_logprob_R=stats.logprob if isinstance(stats, DrawStats) else stats.top_logprob,
        stats=stats.positions if isinstance(stats, DrawStats) else stats,
        forward_C=chains.pass_N[index_c],
        filling_C=chains.filling_N[index_c],
        memory=memory,
        numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
        **({"apart": apart} if now.apart is not None else {}),
    )
    return view, memory


def _check(rule: Planner, plan: Moves, view: BlockView) -> None:
    nothing = np.zeros(len(view), bool)
    for given, allowed, what in (
        (plan.commit_R, view.masked_R, "fill masked"),
        (plan.remask_R, ~view.masked_R, "take back held"),
        (nothing if plan.edit_R is None else plan.edit_R, ~view.masked_R & ~plan.remask_R, "edit other held"),
    ):
        if np.shape(given) != (len(view),) or given.dtype != np.bool_ or (given & ~allowed).any():
            raise ModelOutputError(
                f"revise rule '{rule.spec}' must give one boolean per position and {what} positions only"
            )
