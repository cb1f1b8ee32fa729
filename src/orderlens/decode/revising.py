"""What a pass of the generator changes afterwards: the revise rules look at the tokens that blocks hold.

Shape letters: C chains of the batch, R rows of the pass, c and r those of one policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.events import Columns, Recorder
from orderlens.decode.head import take_rows, target_stats
from orderlens.decode.passes import Pass, regroup
from orderlens.models.protocol import IntArray, Model
from orderlens.orders.memory import Memory
from orderlens.policies.protocol import HeldView


@dataclass(frozen=True, slots=True)
class Revised:
    """What one revise rule changes: chain and offset of each change, its columns, the rule's memory."""

    chain_r: IntArray
    offset_r: IntArray
    columns: Columns
    memory: Memory


def revise_rows(model: Model, chains: Chains, now: Pass) -> list[Revised]:
    """Ask the revise rules about the tokens held before this pass."""
    policy_R = chains.policy_N[now.index_R]
    revising = [p for p, policy in enumerate(chains.policies) if policy.revise is not None]
    mine = {p: np.flatnonzero((policy_R == p) & ~now.masked_R) for p in revising}
    return [_changes(model, chains, p, now, held) for p, held in mine.items() if len(held)]


def _changes(model: Model, chains: Chains, p: int, now: Pass, held: IntArray) -> Revised:
    revise = chains.policies[p].revise
    assert revise is not None
    live_c, chain_r = regroup(now.chain_R[held])
    index_c, offset_r = now.index_C[live_c], now.offset_R[held]
    index_r = index_c[chain_r]
    position_r = chains.start_N[index_r] + offset_r
    token_r = chains.tokens_NL[index_r, position_r]
    stats = target_stats(take_rows(now.rows, held), model.eos_ids, token_r)
    memory = chains.memory[p].revise.at(index_c, chain_r, offset_r)
    view = HeldView(
        chain_R=chain_r,
        position_R=position_r,
        offset_R=offset_r,
        token_R=token_r,
        held_logprob_R=stats.target_logprob,
        logq_R=chains.logq_NB[index_r, offset_r],
        stats=stats.positions,
        forward_C=chains.pass_N[index_c],
        left_C=chains.open_NB[index_c].sum(axis=1),
        memory=memory,
        numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
    )
    wanted = revise.revise(view)
    bound_c = np.array([revise.max_passes(int(n)) for n in chains.filling_N[index_c]])
    remask_r = wanted.remask_R & (chains.pass_N[index_c] < bound_c)[chain_r]
    at = np.flatnonzero(wanted.edit_R | remask_r)
    edited, index = wanted.edit_R[at], index_r[at]
    columns: dict[str, NDArray[Any]] = {
        "sample": chains.sample_N[index],
        "order": chains.policy_N[index],
        "forward": chains.forward_N[index],
        "position": position_r[at],
        "is_edit": edited,
        "old_token": token_r[at],
        "old_logq": np.minimum(stats.target_logprob[at], 0.0),
        "new_token": np.where(edited, stats.positions.top_token[at], model.mask_id),
        "logq": np.where(edited, np.minimum(stats.positions.top_logprob[at], 0.0), np.nan),
    }
    return Revised(index, offset_r[at], columns, memory)


def apply_changes(chains: Chains, revised: Revised, recorder: Recorder) -> None:
    """Write the changed tokens, record them, and let the rule remember."""
    index, offset, columns = revised.chain_r, revised.offset_r, revised.columns
    edited = columns["is_edit"]
    chains.tokens_NL[index, columns["position"]] = columns["new_token"]
    chains.logq_NB[index[edited], offset[edited]] = columns["logq"][edited]
    chains.open_NB[index[~edited], offset[~edited]] = True
    chains.held_NB[index[~edited], offset[~edited]] = False
    if len(index):
        recorder.add_revisions(columns)
    revised.memory.commit()
