"""What a pass of the generator changes afterwards: the revise rules look at the tokens that blocks hold.

Shape letters: C chains of the batch, R rows of the pass, c and r those of one policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.events import Columns, Recorder
from orderlens.decode.passes import Pass, each, regroup
from orderlens.decode.planning import Planned
from orderlens.decode.select import naming
from orderlens.errors import ModelOutputError
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.memory import Memory
from orderlens.rules.protocol import Changes, HeldView, Revise

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Revised:
    """What one revise rule changes: chain and offset of each change, its columns, the rule's memory."""

    index_r: IntArray
    offset_r: IntArray
    columns: Columns
    memory: Memory | None = None


def revise_rows(chains: Chains, now: Pass, plans: Sequence[Planned]) -> list[Revised]:
    """Return what planners take back and revise rules change of the tokens held before this pass."""
    found = [_planned(chains, now, plan) for plan in plans if (plan.remask_r | plan.edit_r).any()]
    policy_R = chains.policy_N[now.index_R]
    for p, policy in enumerate(chains.policies):
        if isinstance(policy.revise, Revise):
            held = np.flatnonzero((policy_R == p) & ~now.masked_R)
            found += [_changes(chains, p, policy.revise, now, held)] if len(held) else []
    return found


def _planned(chains: Chains, now: Pass, plan: Planned) -> Revised:
    at = np.flatnonzero(plan.remask_r | plan.edit_r)
    return _revised(chains, now, plan.row_r[at], plan.edit_r[at], plan.token_r[at], plan.score_r[at])


def _changes(chains: Chains, p: int, rule: Revise, now: Pass, held: IntArray) -> Revised:
    """Ask one revise rule about the rows its chains hold."""
    live_c, chain_r = regroup(now.chain_R[held])
    index_c, offset_r = now.index_C[live_c], now.offset_R[held]
    index_r = index_c[chain_r]
    memory = chains.memory[p].revise.at(index_c, chain_r, offset_r)
    assert now.held_logprob_R is not None
    view = HeldView(
        chain_R=chain_r,
        position_R=chains.start_N[index_r] + offset_r,
        offset_R=offset_r,
        token_R=now.asked.token_R[held],
        held_logprob_R=now.held_logprob_R[held],
        logq_R=chains.logq_NB[index_r, offset_r],
        stats=now.stats.take(held),
        forward_C=chains.pass_N[index_c],
        left_C=chains.open_NB[index_c].sum(axis=1),
        memory=memory,
        numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
    )
    with naming(f"revise rule '{rule.spec}'", rule):
        wanted = rule.revise(view)
    _check(rule, wanted, len(held))
    limit_c = each(rule.settled_after, chains.filling_N[index_c])
    remask_r = wanted.remask_R & (chains.pass_N[index_c] < limit_c)[chain_r]
    edit_r = wanted.edit_R & (view.stats.top_token != chains.mask_id) & (view.stats.top_token != view.token_R)
    at = np.flatnonzero(edit_r | remask_r)
    stats = view.stats.take(at)
    return _revised(chains, now, held[at], edit_r[at], stats.top_token, stats.top_logprob, memory)


def _check(rule: Revise, wanted: Changes, count: int) -> None:
    for given in (wanted.edit_R, wanted.remask_R):
        if np.shape(given) != (count,) or given.dtype != np.bool_ or (wanted.edit_R & wanted.remask_R).any():
            raise ModelOutputError(
                f"revise rule '{rule.spec}' must give one boolean per held position, none of them in both"
            )


def _revised(
    chains: Chains,
    now: Pass,
    rows: IntArray,
    edited: BoolArray,
    token: IntArray,
    logq: FloatArray,
    memory: Memory | None = None,
) -> Revised:
    """Return the changes at ``rows``: another token where ``edited``, a mask elsewhere."""
    index, offset = now.index_R[rows], now.offset_R[rows]
    assert now.held_logprob_R is not None
    columns: dict[str, NDArray[Any]] = {
        "sample": chains.sample_N[index],
        "order": chains.policy_N[index],
        "forward": chains.forward_N[index],
        "position": chains.start_N[index] + offset,
        "event": np.where(edited, "edit", "remask"),
        "old_token": now.asked.token_R[rows],
        "old_logq": np.minimum(now.held_logprob_R[rows], 0.0),
        "new_token": np.where(edited, token, chains.mask_id),
        "logq": np.where(edited, np.minimum(logq, 0.0), np.nan),
    }
    return Revised(index, offset, columns, memory)


def apply_changes(chains: Chains, revised: Revised, recorder: Recorder) -> None:
    """Write the changed tokens, record them, and let the rule remember."""
    index, offset, columns = revised.index_r, revised.offset_r, revised.columns
    edited = columns["event"] == "edit"
    chains.tokens_NL[index, columns["position"]] = columns["new_token"]
    chains.logq_NB[index[edited], offset[edited]] = columns["logq"][edited]
    chains.open_NB[index[~edited], offset[~edited]] = True
    chains.held_NB[index[~edited], offset[~edited]] = False
    np.subtract.at(chains.filled_N, index[~edited], 1)
    if len(index):
        recorder.add_revisions(columns)
    if revised.memory is not None:
        revised.memory.commit()
