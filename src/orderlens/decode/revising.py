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
from orderlens.models.protocol import IntArray
from orderlens.orders.memory import Memory
from orderlens.policies.protocol import Changes, HeldView, Revise

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
    taken = [plan.row_r[plan.remask_r] for plan in plans]
    found = [_revised(chains, now, rows, np.zeros(len(rows), bool)) for rows in taken if len(rows)]
    policy_R = chains.policy_N[now.index_R]
    for p, policy in enumerate(chains.policies):
        if isinstance(policy.revise, Revise):
            held = np.flatnonzero((policy_R == p) & ~now.masked_R)
            found += [_changes(chains, p, policy.revise, now, held)] if len(held) else []
    return found


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
        token_R=now.token_R[held],
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
    return _revised(chains, now, held[at], edit_r[at], memory)


def _check(rule: Revise, wanted: Changes, count: int) -> None:
    for given in (wanted.edit_R, wanted.remask_R):
        if np.shape(given) != (count,) or given.dtype != np.bool_ or (wanted.edit_R & wanted.remask_R).any():
            raise ModelOutputError(
                f"revise rule '{rule.spec}' must give one boolean per held position, none of them in both"
            )


def _revised(
    chains: Chains, now: Pass, rows: IntArray, edited: BoolArray, memory: Memory | None = None
) -> Revised:
    """Return the changes at ``rows``: the most probable token where ``edited``, a mask elsewhere."""
    index, offset, stats = now.index_R[rows], now.offset_R[rows], now.stats.take(rows)
    assert now.held_logprob_R is not None
    columns: dict[str, NDArray[Any]] = {
        "sample": chains.sample_N[index],
        "order": chains.policy_N[index],
        "forward": chains.forward_N[index],
        "position": chains.start_N[index] + offset,
        "event": np.where(edited, "edit", "remask"),
        "old_token": now.token_R[rows],
        "old_logq": np.minimum(now.held_logprob_R[rows], 0.0),
        "new_token": np.where(edited, stats.top_token, chains.mask_id),
        "logq": np.where(edited, np.minimum(stats.top_logprob, 0.0), np.nan),
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
