"""Revise rules: check, record and apply the positions that a rule fills, edits or masks again.

Shape letters: R rows of the pass, c chains and r rows of one policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.choose import BoolArray, ChosenRows, plugin_errors
from orderlens.decode.passes import Columns, Pass, TraceRecorder, apply_per_count, regroup
from orderlens.errors import ModelOutputError
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.revise import BlockView, Moves, Revise


@dataclass(frozen=True, slots=True)
class Revised:
    """The edits and remasks of one revise rule: their chains, their offsets, and the recorded columns."""

    index_r: IntArray
    offset_r: IntArray
    columns: Columns


def revise_rows(chains: Chains, now: Pass, choice: ChosenRows) -> list[Revised]:
    """Apply every revise rule to its rows; a rule that also chooses positions writes them to ``choice``."""
    policy_R = chains.policy_N[now.index_R]
    found = []
    for p, policy in enumerate(chains.policies):
        row_r = np.flatnonzero(policy_R == p)
        if policy.revise is not None and len(row_r):
            found += _apply_rule(chains, p, policy.revise, now, row_r, choice)
    return found


def _apply_rule(
    chains: Chains, p: int, rule: Revise, now: Pass, row_r: IntArray, choice: ChosenRows
) -> list[Revised]:
    """Apply the rule of policy ``p``; after the rule's last pass, all masked rows of a block are filled."""
    token_R, logprob_R = _proposals(rule, now)
    index_r, masked_r = now.index_R[row_r], now.masked_R[row_r]
    closing_r = chains.pass_N[index_r] >= apply_per_count(rule.passes, chains.filling_N[index_r])
    commit_r, remask_r, edit_r = masked_r & closing_r, *np.zeros((2, len(row_r)), bool)
    planned = np.flatnonzero(~closing_r)
    if len(planned):
        view = _view(chains, p, rule, now, row_r[planned])
        with plugin_errors(f"revise rule '{rule.spec}'", rule):
            moves = rule.revise(view)
        commit_r[planned], remask_r[planned], edit_r[planned] = _checked(rule, moves, view)
        edit_r[planned] &= (view.proposal_R != view.token_R) & (view.proposal_R != chains.mask_id)
        choice.on_commit.append(view.memory.commit)
    if rule.order_id is not None:
        choice.chosen_R[row_r], choice.score_R[row_r] = commit_r, logprob_R[row_r]
    at = np.flatnonzero(remask_r | edit_r)
    row = row_r[at]
    return [_revised(chains, now, row, edit_r[at], token_R[row], logprob_R[row])] if len(at) else []


def _proposals(rule: Revise, now: Pass) -> tuple[IntArray, FloatArray]:
    """Return the token proposed at each row of the pass, and its log-probability."""
    if now.draws is not None and rule.draws_proposals:
        return now.draws.token, now.draws.logprob
    return now.stats.top_token, now.stats.top_logprob


def _view(chains: Chains, p: int, rule: Revise, now: Pass, row_r: IntArray) -> BlockView:
    live_c, chain_r = regroup(now.chain_R[row_r])
    index_c, offset_r = now.index_C[live_c], now.offset_R[row_r]
    index_r, masked_r = index_c[chain_r], now.masked_R[row_r]
    token_R, logprob_R = _proposals(rule, now)
    assert now.held_logprob_R is not None

    def leave_one_out(filled_r: BoolArray) -> FloatArray:
        assert now.leave_one_out is not None
        logprob_r = np.full(len(row_r), np.nan)
        if filled_r.any():
            logprob_r[filled_r] = now.leave_one_out(row_r[filled_r])
        return logprob_r

    return BlockView(
        chain_R=chain_r,
        position_R=chains.start_N[index_r] + offset_r,
        offset_R=offset_r,
        masked_R=masked_r,
        token_R=np.where(masked_r, -1, now.request.token_R[row_r]),
        held_logprob_R=np.where(masked_r, np.nan, now.held_logprob_R[row_r]),
        logq_R=np.where(masked_r, np.nan, chains.logq_NB[index_r, offset_r]),
        proposal_R=token_R[row_r],
        proposal_logprob_R=logprob_R[row_r],
        stats=now.stats.take(row_r),
        forward_C=chains.pass_N[index_c],
        filling_C=chains.filling_N[index_c],
        memory=chains.memory[p].revise.at(index_c, chain_r, offset_r),
        numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
        **({"apart": leave_one_out} if rule.judges_apart else {}),
    )


def _checked(rule: Revise, moves: Moves, view: BlockView) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return the rows to fill, mask again and edit, after checking that the rule may change them."""
    none = np.zeros(len(view), bool)
    commit, remask, edit = (none if m is None else m for m in (moves.commit_R, moves.remask_R, moves.edit_R))
    filled_R = ~view.masked_R
    for marked, allowed, may in (
        (commit, none if rule.order_id is None else view.masked_R, "fill only masked positions"),
        (remask, filled_R, "mask only filled positions"),
        (edit, filled_R & ~remask, "edit only filled positions that it does not mask"),
    ):
        if np.shape(marked) != (len(view),) or marked.dtype != np.bool_ or (marked & ~allowed).any():
            note = " (none with a commit rule)" if rule.order_id is None and marked is commit else ""
            raise ModelOutputError(
                f"revise rule '{rule.spec}' must return one boolean per position and {may}{note}"
            )
    return commit, remask, edit


def _revised(
    chains: Chains, now: Pass, rows: IntArray, edited: BoolArray, token: IntArray, logq: FloatArray
) -> Revised:
    """Return the changes at ``rows``: a new token where ``edited``, a mask elsewhere."""
    index, offset = now.index_R[rows], now.offset_R[rows]
    assert now.held_logprob_R is not None
    columns: dict[str, NDArray[Any]] = {
        "sample": chains.sample_N[index],
        "order": chains.policy_N[index],
        "forward": chains.forward_N[index],
        "position": chains.start_N[index] + offset,
        "event": np.where(edited, "edit", "remask"),
        "old_token": now.request.token_R[rows],
        "old_logq": np.minimum(now.held_logprob_R[rows], 0.0),
        "new_token": np.where(edited, token, chains.mask_id),
        "logq": np.where(edited, np.minimum(logq, 0.0), np.nan),
    }
    return Revised(index, offset, columns)


def apply_changes(chains: Chains, revised: Revised, recorder: TraceRecorder) -> None:
    """Write the changed tokens and record them."""
    index, offset, columns = revised.index_r, revised.offset_r, revised.columns
    edited = columns["event"] == "edit"
    chains.tokens_NL[index, columns["position"]] = columns["new_token"]
    chains.logq_NB[index[edited], offset[edited]] = columns["logq"][edited]
    chains.open_NB[index[~edited], offset[~edited]] = True
    chains.filled_NB[index[~edited], offset[~edited]] = False
    np.subtract.at(chains.filled_N, index[~edited], 1)
    recorder.add_revisions(columns)
