"""Decode a batch of chains of equal window width, pass by pass, to the end.

Each round is one forward pass of every unfinished chain. The policy chooses the positions to commit; tokens
are drawn, or the most probable ones used; a revise rule may change tokens of the block; all changes are
recorded. A chain with a finished block either ends (EOS in the block, or canvas full) or caches the block's
keys and moves to the next one. Finished chains leave the batch.

Shape letters: C chains of the batch, B block size, W window, R rows. Does not depend on files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode.chains import Chains
from orderlens.decode.choose import ChosenRows, choose_rows, committed_tokens
from orderlens.decode.extra_inputs import Remaining, leave_one_out_logprobs, remaining_stats
from orderlens.decode.head import self_certainty, start_reduction, take_rows
from orderlens.decode.passes import Pass, PassRequest, StateRecorder, TraceRecorder, dedupe_initial_states
from orderlens.decode.revise import Revised, apply_changes, revise_rows
from orderlens.decode.speculate import Speculator
from orderlens.models.abilities import seeds_blocks
from orderlens.models.protocol import FloatArray, IntArray, Model, Rows, StateBatch
from orderlens.rules.stats import DrawInputs, DrawStats, PendingStats

Advance = Callable[[int], None]


class Rounds:
    """Decodes chains of equal window width, one pass of all of them per round."""

    def __init__(
        self,
        model: Model,
        chains: Chains,
        members: IntArray,
        recorder: TraceRecorder,
        on_reveals: Advance,
        *,
        temperature: float,
        stop_at_eos: bool,
        alone: bool = True,
        states: StateRecorder | None = None,
        one_block: bool = False,
    ) -> None:
        """Create a batch.

        Args:
            model: the model.
            chains: all chains of the call.
            members: indices of this batch's chains.
            recorder: collects reveals and revisions.
            on_reveals: called with the number of new tokens.
            temperature: of the draws, or its schedule.
            stop_at_eos: whether a text ends with the block that contains an EOS.
            alone: no other batch runs alternately with this one, so speculation can use idle device time.
            states: receives the state of every chain in every pass, if given.
            one_block: chains leave the batch at the end of their current block.
        """
        self.one_block = one_block
        self.model, self.chains, self.chain_C = model, chains, members
        self.recorder, self.on_reveals = recorder, on_reveals
        self.temperature, self.stop_at_eos, self.states = temperature, stop_at_eos, states
        self.blockwise = model.attention == "block-causal"
        self.static_P = np.array([policy.is_static for policy in chains.policies])
        self.revises_P = np.array([policy.revise is not None for policy in chains.policies])
        self.revises = bool(self.revises_P.any())
        self.looks_ahead = any(policy.looks_ahead for policy in chains.policies)
        self.seeds = seeds_blocks(model)
        self.n_lookahead_C = np.zeros(0, np.int64)
        self.session = model.open_session()
        self.prefix_C: IntArray | None = None  # prefix number of each chain; None after the first pass
        speculator = Speculator(self.session, chains, members, model.eos_ids, temperature)
        plain = alone and not self.revises and not self.looks_ahead and states is None
        plain = plain and not isinstance(temperature, TemperatureSchedule)
        self.speculator = speculator if plain else None

    def run(self) -> None:
        """Decode all chains to their end, each from its current state."""
        for _ in self.passes():
            pass

    def passes(self) -> Iterator[None]:
        """Decode all chains to their end; yield in every pass, as soon as the device has its work.

        A caller that alternates between batches overlaps device work of one with host work of another. A
        chain changes only after its model calls have succeeded, so a batch that runs out of memory can be
        repeated with fewer chains.
        """
        self._prefill()
        while True:
            self._leave_done_blocks()  # first: a resumed chain may already have finished its block
            if not len(self.chain_C):
                return
            evaluated = self._evaluate()
            yield
            self._finish(evaluated())

    def _prefill(self) -> None:
        """Cache every distinct prefix once; all policies of a prompt share it."""
        chains = self.chains
        prefixes = [chains.tokens_NL[n, : chains.start_N[n]] for n in self.chain_C]
        keys = [
            (chains.canvases[n].offset, prefix.tobytes())
            for n, prefix in zip(self.chain_C, prefixes, strict=True)
        ]
        distinct = dict(zip(keys, prefixes, strict=True))
        self.session.prefill(list(distinct.values()), [offset for offset, _ in distinct])
        place = {key: index for index, key in enumerate(distinct)}
        self.prefix_C = np.array([place[key] for key in keys])
        self.session.keep(self.prefix_C)

    def _finish(self, now: Pass) -> None:
        """Choose, commit and revise after one forward pass of every chain."""
        if self.looks_ahead:
            now = self._with_lookahead(now)
        choice = choose_rows(self.chains, now, self.temperature)
        revised = revise_rows(self.chains, now, choice) if self.revises else []
        committed = np.flatnonzero(choice.chosen_R)
        tokens = committed_tokens(now, choice)
        certainty = self._certainty(now, committed)
        if self.states is not None:  # from here on memory cannot run out, so no pass is recorded twice
            self._record_state(self.states, now)
        self._commit(now, choice, tokens, committed, certainty)
        for change in revised:
            apply_changes(self.chains, change, self.recorder)
        self._count_pass(now, committed, revised)

    def _evaluate(self) -> Callable[[], Pass]:
        """Start evaluating every chain's window and reducing the requested rows."""
        request = self._request()

        def without_speculation() -> tuple[Rows, PendingStats]:
            rows = self._rows(request.states)
            targets_R = np.where(request.masked_R, 0, request.token_R) if self.revises else None  # 0: any id
            return rows, start_reduction(rows, self.model.eos_ids, targets_R, self._draw_inputs(request))

        begin = self.speculator.begin if self.speculator else lambda _, start: start()
        rows, pending = begin(request, without_speculation)

        def finished() -> Pass:
            found = pending()
            return Pass(request, rows, found.positions, found.draws, found.target_logprob)

        return finished

    def _rows(self, states: StateBatch) -> Rows:
        """Evaluate states; in the first pass equal states only once, unless a speculator is active."""
        prefix_C, self.prefix_C = self.prefix_C, None
        if prefix_C is None or self.speculator is not None:
            return self.session.evaluate(states)
        distinct, row_R = dedupe_initial_states(states, prefix_C)
        return take_rows(self.session.evaluate(distinct), row_R)

    def _request(self) -> PassRequest:
        """Return the request of the next pass: every chain's window, and the rows that its policy needs."""
        chains, index_C = self.chains, self.chain_C
        open_CB, policy_C = chains.open_NB[index_C], chains.policy_N[index_C]
        wanted_CB = open_CB
        if self.static_P.any() and self.states is None:
            due_CB = chains.rank_NB[index_C] == chains.pass_N[index_C][:, None]
            wanted_CB = np.where(self.static_P[policy_C][:, None], due_CB, open_CB)
        if self.revises:
            wanted_CB = wanted_CB | (chains.filled_NB[index_C] & self.revises_P[policy_C][:, None])
        chain_R, offset_R = np.nonzero(wanted_CB)
        start_C = chains.start_N[index_C]
        if self.blockwise:
            low_C, width = start_C, self.model.block_size
        else:
            low_C, width = np.zeros_like(start_C), chains.width(int(index_C[0]))
        tokens_CW = chains.tokens_NL[index_C[:, None], low_C[:, None] + np.arange(width)]
        inside_R = offset_R if self.blockwise else offset_R + start_C[chain_R]
        states = StateBatch(np.arange(len(index_C)), low_C, tokens_CW, chain_R, inside_R)
        masked_R = open_CB[chain_R, offset_R] if self.revises else np.ones(len(chain_R), bool)
        return PassRequest(index_C, states, offset_R, masked_R, open_CB)

    def _draw_inputs(self, request: PassRequest) -> DrawInputs | None:
        """Return each row's temperature and uniform number; they do not depend on batch or speculation."""
        if self.temperature == 0:
            return None
        numbers_CB = self.chains.draws.rows(request.index_C, self.chains.pass_N[request.index_C])
        return DrawInputs(self._temperature_of(request), numbers_CB[request.chain_R, request.offset_R])

    def _temperature_of(self, request: PassRequest) -> float | FloatArray:
        """Return the temperature of all rows, or [R] under a schedule."""
        heat = self.temperature
        if not isinstance(heat, TemperatureSchedule):
            return heat
        if heat.by_position:
            return np.asarray(heat.at(request.offset_R / max(1, self.model.block_size - 1)))
        filling_C = self.chains.filling_N[request.index_C]
        revealed_C = filling_C - request.open_CB.sum(axis=1)
        share_C = np.minimum(revealed_C / np.maximum(1, filling_C - 1), 1.0)
        return np.asarray(heat.at(share_C[request.chain_R]))

    def _with_lookahead(self, now: Pass) -> Pass:
        """Return the pass with its look-ahead functions, which count the look-ahead states per chain."""
        self.n_lookahead_C = np.zeros(len(now.index_C), np.int64)

        def look_ahead(tried_Kk: IntArray, drawn: bool) -> Remaining:
            chain_K = now.chain_R[tried_Kk[:, 0]]
            self.n_lookahead_C += np.bincount(chain_K, minlength=len(self.n_lookahead_C))
            token_R = now.stats.top_token if now.draws is None or not drawn else now.draws.token
            return self._after(now, tried_Kk, token_R)

        def leave_one_out(filled: IntArray) -> FloatArray:
            chain_K = now.chain_R[filled]
            self.n_lookahead_C += np.bincount(chain_K, minlength=len(self.n_lookahead_C))
            low_K, inside_K, tokens_KW = self._windows(now, filled)
            return leave_one_out_logprobs(self.model, self.session, chain_K, low_K, tokens_KW, inside_K)

        return replace(now, look_ahead=look_ahead, leave_one_out=leave_one_out)

    def _windows(self, now: Pass, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return the window around each row: its start, the row's offset in it, and its tokens."""
        index_K, inside_K = now.index_C[now.chain_R[rows]], now.offset_R[rows]
        low_K, width = self.chains.start_N[index_K], self.model.block_size
        if not self.blockwise:
            inside_K, low_K, width = (
                inside_K + low_K, np.zeros_like(low_K), self.chains.width(int(now.index_C[0]))
            )  # fmt: skip
        return low_K, inside_K, self.chains.tokens_NL[index_K[:, None], low_K[:, None] + np.arange(width)]

    def _after(self, now: Pass, tried_Kk: IntArray, token_R: IntArray) -> Remaining:
        """Return the statistics of the remaining masks after each set of rows is filled with its tokens."""
        chain_K = now.chain_R[tried_Kk[:, 0]]
        low_K, _, tokens_KW = self._windows(now, tried_Kk[:, 0])
        here = np.arange(len(tried_Kk))[:, None], now.request.states.row_offset_R[tried_Kk]
        tokens_KW[here] = token_R[tried_Kk]
        open_KB = self.chains.open_NB[now.index_C[chain_K]]
        wanted_KW = open_KB if self.blockwise else tokens_KW == self.model.mask_id
        wanted_KW[here] = False
        return remaining_stats(self.model, self.session, chain_K, low_K, tokens_KW, wanted_KW)

    def _certainty(self, now: Pass, committed: IntArray) -> dict[str, FloatArray]:
        """Return the column ``self_certainty`` of the committed rows, if states are kept."""
        if self.states is None or not self.states.with_certainty:
            return {}
        return {"self_certainty": self_certainty(take_rows(now.rows, committed), self.model.mask_id)}

    def _commit(
        self,
        now: Pass,
        choice: ChosenRows,
        draws: DrawStats | None,
        committed: IntArray,
        more: dict[str, FloatArray],
    ) -> None:
        """Write and record the committed tokens, and store the rules' memory."""
        chains, stats = self.chains, now.stats.take(committed)
        chain_r, offset_r = now.chain_R[committed], now.offset_R[committed]
        index_r = self.chain_C[chain_r]
        position_r = chains.start_N[index_r] + offset_r
        token_r = stats.top_token if draws is None else draws.token
        logq_r = np.minimum(stats.top_logprob if draws is None else draws.logprob, 0.0)
        count_C = np.bincount(chain_r, minlength=len(self.chain_C))
        place_r = _places_in_set(chain_r, offset_r, choice.score_R[committed], count_C)
        columns: dict[str, NDArray[Any]] = {
            **more,
            "sample": chains.sample_N[index_r],
            "order": chains.policy_N[index_r],
            "block": chains.block_N[index_r],
            "step": chains.step_N[index_r] + place_r,
            "forward": chains.forward_N[index_r],
            "position": position_r,
            "token_id": token_r,
            "top_token": stats.top_token,
            "logq": logq_r,
            "max_logprob": np.minimum(stats.top_logprob, 0.0),
            "second_logprob": stats.second_logprob,
            "entropy": stats.entropy,
            "is_overflow": position_r >= chains.requested_end_N[index_r],
            "n_tied": choice.tied_R[committed],
            "n_committed": count_C[chain_r],
        }
        if draws is not None and self.temperature:
            columns["tempered_logq"] = np.minimum(draws.tempered_logprob, 0.0)
        if self.looks_ahead:  # the count of the pass is recorded on the first token of its set
            columns["n_lookahead"] = np.where(place_r == 0, self.n_lookahead_C[chain_r], 0)
        if self.seeds:
            window_rB = chains.start_N[index_r, None] + np.arange(chains.block_size)
            blank_r = (chains.tokens_NL[index_r[:, None], window_rB] == chains.mask_id).all(axis=1)
            columns["is_seed"] = blank_r & (offset_r == 0) & (position_r > 0)
        self.recorder.add_reveals(columns)
        chains.tokens_NL[index_r, position_r] = token_r
        chains.open_NB[index_r, offset_r] = False
        chains.filled_NB[index_r, offset_r] = True
        chains.logq_NB[index_r, offset_r] = logq_r
        chains.step_N[self.chain_C] += count_C
        chains.filled_N[self.chain_C] += count_C
        choice.commit()

    def _record_state(self, states: StateRecorder, now: Pass) -> None:
        chains, index_C = self.chains, now.index_C
        start_C, masked = chains.start_N[index_C], np.flatnonzero(now.masked_R)
        names = {"sample": chains.sample_N, "order": chains.policy_N, "block": chains.block_N}
        names |= {"forward": chains.forward_N, "start": chains.start_N}
        block_CB = chains.tokens_NL[index_C[:, None], start_C[:, None] + np.arange(chains.block_size)]
        columns = {name: values_N[index_C] for name, values_N in names.items()}
        states.add(columns, block_CB != chains.mask_id, now.chain_R[masked], now.stats.take(masked))

    def _count_pass(self, now: Pass, committed: IntArray, revised: Sequence[Revised]) -> None:
        chains, index_C = self.chains, self.chain_C
        if self.revises:
            count = len(index_C)
            chains.full_passes_N[index_C] += np.bincount(now.chain_R[now.masked_R], minlength=count) == 0
            chains.unchanged_N[index_C] = np.bincount(now.chain_R[committed], minlength=count) == 0
            for change in revised:
                chains.unchanged_N[change.index_r] = False
        chains.pass_N[index_C] += 1
        chains.forward_N[index_C] += 1
        self._report_progress()

    def _report_progress(self) -> None:
        """Report the newly filled positions; a position that is masked and refilled counts once."""
        chains, index_C = self.chains, self.chain_C
        new_C = chains.filled_N[index_C] - chains.reported_N[index_C]
        if (n_new := int(new_C[new_C > 0].sum())) > 0:
            chains.reported_N[index_C] = np.maximum(chains.reported_N[index_C], chains.filled_N[index_C])
            self.on_reveals(n_new)

    def _leave_done_blocks(self) -> None:
        """Advance every chain with a finished block, or end it and drop it from the batch."""
        chains = self.chains
        while (done := np.flatnonzero(chains.done_with_block(self.chain_C))).size:
            self.prefix_C = None
            ending = {int(c): chains.ending(int(self.chain_C[c]), self.stop_at_eos) for c in done}
            moving = np.array([c for c, reason in ending.items() if reason is None], np.int64)
            moving = moving[:0] if self.one_block else moving
            if self.blockwise and len(moving):
                index = self.chain_C[moving]
                position = chains.start_N[index][:, None] + np.arange(chains.block_size)
                self.session.extend(moving, chains.tokens_NL[index[:, None], position])
            for c in moving:
                chains.next_block(int(self.chain_C[c]))
            for c, reason in ending.items():
                chains.reason[self.chain_C[c]] = reason
            leaving = {c for c, reason in ending.items() if reason is not None or self.one_block}
            staying = np.array([c for c in range(len(self.chain_C)) if c not in leaving], np.int64)
            if len(staying) < len(self.chain_C):
                self.session.keep(staying)
                self.chain_C = self.chain_C[staying]
            if not len(self.chain_C):
                return


def _places_in_set(chain_r: IntArray, offset_r: IntArray, score_r: FloatArray, count_C: IntArray) -> IntArray:
    """Return each committed row's place in its chain's set: higher score first, then left to right."""
    if count_C.max(initial=0) <= 1:
        return np.zeros(len(chain_r), np.int64)
    by_r = np.lexsort((offset_r, -score_r, chain_r))
    place_r = np.empty(len(by_r), np.int64)
    place_r[by_r] = np.arange(len(by_r)) - (np.cumsum(count_C) - count_C)[chain_r]
    return place_r
