"""Asking revise rules: what a pass fills, edits and takes back, checked, recorded and applied.

Shape letters: R rows of the pass, c chains and r rows of one policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.choose import BoolArray, ChosenRows, naming
from orderlens.decode.passes import Columns, Pass, Recorder, per_count, regroup
from orderlens.errors import ModelOutputError
from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rules.revise.protocol import BlockView, Moves, Revise


@dataclass(frozen=True, slots=True)
class Revised:
    """What one revise rule changes of the tokens held before this pass: chain and offset, and the columns."""

    index_r: IntArray
    offset_r: IntArray
    columns: Columns


def revise_rows(chains: Chains, now: Pass, choice: ChosenRows) -> list[Revised]:
    """Ask every revise rule about its rows; note in ``choice`` what it fills where it chooses positions."""
    policy_R = chains.policy_N[now.index_R]
    found = []
    for p, policy in enumerate(chains.policies):
        row_r = np.flatnonzero(policy_R == p)
        if policy.revise is not None and len(row_r):
            found += _ask(chains, p, policy.revise, now, row_r, choice)
    return found


def _ask(
    chains: Chains, p: int, rule: Revise, now: Pass, row_r: IntArray, choice: ChosenRows
) -> list[Revised]:
    """Ask policy ``p``'s rule; blocks past its last pass are filled without it."""
    token_R, logprob_R = _proposals(rule, now)
    index_r, masked_r = now.index_R[row_r], now.masked_R[row_r]
    closing_r = chains.pass_N[index_r] >= per_count(rule.passes, chains.filling_N[index_r])
    commit_r, remask_r, edit_r = masked_r & closing_r, *np.zeros((2, len(row_r)), bool)
    asked = np.flatnonzero(~closing_r)
    if len(asked):
        view = _view(chains, p, rule, now, row_r[asked])
        with naming(f"revise rule '{rule.spec}'", rule):
            moves = rule.revise(view)
        commit_r[asked], remask_r[asked], edit_r[asked] = _checked(rule, moves, view)
        edit_r[asked] &= (view.proposal_R != view.token_R) & (view.proposal_R != chains.mask_id)
        choice.on_commit.append(view.memory.commit)
    if rule.order_id is not None:
        choice.chosen_R[row_r], choice.score_R[row_r] = commit_r, logprob_R[row_r]
    at = np.flatnonzero(remask_r | edit_r)
    row = row_r[at]
    return [_revised(chains, now, row, edit_r[at], token_R[row], logprob_R[row])] if len(at) else []


def _proposals(rule: Revise, now: Pass) -> tuple[IntArray, FloatArray]:
    """Return the token that each row of the pass would take, and its log-probability."""
    if now.draws is not None and rule.draws_proposals:
        return now.draws.token, now.draws.logprob
    return now.stats.top_token, now.stats.top_logprob


def _view(chains: Chains, p: int, rule: Revise, now: Pass, row_r: IntArray) -> BlockView:
    live_c, chain_r = regroup(now.chain_R[row_r])
    index_c, offset_r = now.index_C[live_c], now.offset_R[row_r]
    index_r, masked_r = index_c[chain_r], now.masked_R[row_r]
    token_R, logprob_R = _proposals(rule, now)
    assert now.held_logprob_R is not None

    def apart(held_r: BoolArray) -> FloatArray:
        assert now.apart is not None
        logprob_r = np.full(len(row_r), np.nan)
        if held_r.any():
            logprob_r[held_r] = now.apart(row_r[held_r])
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
        **({"apart": apart} if rule.judges_apart else {}),
    )


def _checked(rule: Revise, moves: Moves, view: BlockView) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return the rows that are filled, masked again and edited, once they are known to be allowed."""
    nothing = np.zeros(len(view), bool)
    commit, remask, edit = (
        nothing if m is None else m for m in (moves.commit_R, moves.remask_R, moves.edit_R)
    )
    held_R = ~view.masked_R
    for given, allowed, what in (
        (commit, nothing if rule.order_id is None else view.masked_R, "fill masked"),
        (remask, held_R, "take back held"),
        (edit, held_R & ~remask, "edit other held"),
    ):
        if np.shape(given) != (len(view),) or given.dtype != np.bool_ or (given & ~allowed).any():
            alone = " (none beside a commit rule)" if rule.order_id is None and given is commit else ""
            raise ModelOutputError(
                f"revise rule '{rule.spec}' must give one boolean per position and {what} positions "
                f"only{alone}"
            )
    return commit, remask, edit


def _revised(
    chains: Chains, now: Pass, rows: IntArray, edited: BoolArray, token: IntArray, logq: FloatArray
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
        "old_token": now.request.token_R[rows],
        "old_logq": np.minimum(now.held_logprob_R[rows], 0.0),
        "new_token": np.where(edited, token, chains.mask_id),
        "logq": np.where(edited, np.minimum(logq, 0.0), np.nan),
    }
    return Revised(index, offset, columns)


def apply_changes(chains: Chains, revised: Revised, recorder: Recorder) -> None:
    """Write the changed tokens and record them."""
    index, offset, columns = revised.index_r, revised.offset_r, revised.columns
    edited = columns["event"] == "edit"
    chains.tokens_NL[index, columns["position"]] = columns["new_token"]
    chains.logq_NB[index[edited], offset[edited]] = columns["logq"][edited]
    chains.open_NB[index[~edited], offset[~edited]] = True
    chains.held_NB[index[~edited], offset[~edited]] = False
    np.subtract.at(chains.filled_N, index[~edited], 1)
    recorder.add_revisions(columns)
