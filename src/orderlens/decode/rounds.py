"""A batch of chains of one window width that advance together, pass by pass, to their ends.

Each round is one forward pass of every unfinished chain: its policy chooses the positions to commit, tokens
are drawn or taken, a revise rule may change what the block holds, and all of it is recorded. A chain whose
block is done either ends (EOS in the block, or canvas full) or has the block's keys cached and moves on.
Finished chains leave the batch.

Shape letters: C chains of the batch, B block size, W window, R rows. Knows nothing of files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.chains import Chains
from orderlens.decode.choose import ChosenRows, choose_rows, committed_tokens
from orderlens.decode.extra_inputs import hidden_logprobs, mean_entropies
from orderlens.decode.head import ask, take_rows
from orderlens.decode.passes import Pass, PassRequest, Recorder, dedupe_initial_states
from orderlens.decode.revise import Revised, apply_changes, revise_rows
from orderlens.decode.speculate import Speculator
from orderlens.models.protocol import FloatArray, IntArray, Model, Rows, StateBatch
from orderlens.rules.stats import Answer, DrawStats, Heat

Advance = Callable[[int], None]


class Rounds:
    """Chains of one window width that advance together."""

    def __init__(
        self,
        model: Model,
        chains: Chains,
        members: IntArray,
        recorder: Recorder,
        on_reveals: Advance,
        *,
        temperature: float,
        stop_at_eos: bool,
        alone: bool = True,
    ) -> None:
        """Make a batch.

        Args:
            model: what decodes.
            chains: all chains of the call.
            members: those of this batch.
            recorder: takes what happens.
            on_reveals: is told how many tokens are new.
            temperature: of the draws.
            stop_at_eos: a text ends with the block that holds an EOS.
            alone: no other batch advances in turn with this one, so that the device would wait for the host.
        """
        self.model, self.chains, self.chain_C = model, chains, members
        self.recorder, self.on_reveals = recorder, on_reveals
        self.temperature, self.stop_at_eos = temperature, stop_at_eos
        self.blockwise = model.attention == "block-causal"
        self.static_P = np.array([policy.is_static for policy in chains.policies])
        self.revises_P = np.array([policy.revise is not None for policy in chains.policies])
        self.revises = bool(self.revises_P.any())
        self.looks = any(policy.looks_ahead for policy in chains.policies)
        self.tries_C = np.zeros(0, np.int64)
        self.session = model.open_session()
        self.prefix_C: IntArray | None = None  # each chain's prefix by number, until the first pass
        speculator = Speculator(self.session, chains, members, model.eos_ids, temperature)
        self.speculator = speculator if alone and not self.revises and not self.looks else None

    def run(self) -> None:
        """Decode all chains to their end, each from where it stands."""
        for _ in self.passes():
            pass

    def passes(self) -> Iterator[None]:
        """Decode all chains to their end; stop in the middle of every pass, when the device has its work.

        Whoever steps through several batches in turn keeps the device busy with one while the host is busy
        with another. A chain changes only after the model calls it depends on have succeeded, so a run that
        fails for lack of memory can be repeated with fewer chains.
        """
        self._prefill()
        while True:
            self._leave_done_blocks()  # first: a chain taken up again may stand at the end of its block
            if not len(self.chain_C):
                return
            evaluated = self._evaluate()
            yield
            self._finish(evaluated())

    def _prefill(self) -> None:
        """Cache every distinct prefix once; the policies of a prompt share it."""
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
        if self.looks:
            now = self._with_look(now)
        choice = choose_rows(self.chains, now, self.temperature)
        revised = revise_rows(self.chains, now, choice) if self.revises else []
        committed = np.flatnonzero(choice.chosen_R)
        self._commit(now, choice, committed_tokens(now, choice), committed)
        for change in revised:
            apply_changes(self.chains, change, self.recorder)
        self._count_pass(now, committed, revised)

    def _evaluate(self) -> Callable[[], Pass]:
        """Start evaluating every chain's window and reducing the rows that somebody needs."""
        request = self._request()

        def plain() -> tuple[Rows, Answer]:
            rows = self._rows(request.states)
            targets_R = np.where(request.masked_R, 0, request.token_R) if self.revises else None  # 0: any id
            return rows, ask(rows, self.model.eos_ids, targets_R, self._heat(request))

        rows, answer = self.speculator.begin(request, plain) if self.speculator else plain()

        def finished() -> Pass:
            found = answer()
            return Pass(request, rows, found.positions, found.draws, found.target_logprob)

        return finished

    def _rows(self, states: StateBatch) -> Rows:
        """Evaluate states, alike ones of the first pass once; a speculator needs the state of every chain."""
        prefix_C, self.prefix_C = self.prefix_C, None
        if prefix_C is None or self.speculator is not None:
            return self.session.evaluate(states)
        distinct, row_R = dedupe_initial_states(states, prefix_C)
        return take_rows(self.session.evaluate(distinct), row_R)

    def _request(self) -> PassRequest:
        """Return what the next pass evaluates: every chain's window, and the rows that somebody needs."""
        chains, index_C = self.chains, self.chain_C
        open_CB, policy_C = chains.open_NB[index_C], chains.policy_N[index_C]
        wanted_CB = open_CB
        if self.static_P.any():
            due_CB = chains.rank_NB[index_C] == chains.pass_N[index_C][:, None]
            wanted_CB = np.where(self.static_P[policy_C][:, None], due_CB, open_CB)
        if self.revises:
            wanted_CB = wanted_CB | (chains.held_NB[index_C] & self.revises_P[policy_C][:, None])
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

    def _heat(self, request: PassRequest) -> Heat | None:
        """Return the number of the draw at each row in this pass: the same for every way of evaluating."""
        if self.temperature == 0:
            return None
        numbers_CB = self.chains.draws.rows(request.index_C, self.chains.pass_N[request.index_C])
        return Heat(self.temperature, numbers_CB[request.chain_R, request.offset_R])

    def _with_look(self, now: Pass) -> Pass:
        """Return the pass with a way to try positions; what is tried is counted per chain."""
        self.tries_C = np.zeros(len(now.index_C), np.int64)

        def look(tried: IntArray) -> FloatArray:
            self.tries_C += np.bincount(now.chain_R[tried], minlength=len(self.tries_C))
            return self._entropies_after(now, tried)

        def apart(held: IntArray) -> FloatArray:
            self.tries_C += np.bincount(now.chain_R[held], minlength=len(self.tries_C))
            low_K, inside_K, tokens_KW = self._windows(now, held)
            return hidden_logprobs(self.model, self.session, now.chain_R[held], low_K, tokens_KW, inside_K)

        return replace(now, look=look, apart=apart)

    def _windows(self, now: Pass, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return the window around each row: where it begins, the row's place in it, and its tokens."""
        index_K, inside_K = now.index_C[now.chain_R[rows]], now.offset_R[rows]
        low_K, width = self.chains.start_N[index_K], self.model.block_size
        if not self.blockwise:
            inside_K, low_K, width = (
                inside_K + low_K, np.zeros_like(low_K), self.chains.width(int(now.index_C[0]))
            )  # fmt: skip
        return low_K, inside_K, self.chains.tokens_NL[index_K[:, None], low_K[:, None] + np.arange(width)]

    def _entropies_after(self, now: Pass, tried: IntArray) -> FloatArray:
        """Return the mean entropy of what is masked after each try of a row's most probable token."""
        chain_K, each = now.chain_R[tried], np.arange(len(tried))
        low_K, inside_K, tokens_KW = self._windows(now, tried)
        tokens_KW[each, inside_K] = now.stats.top_token[tried]
        open_KB = self.chains.open_NB[now.index_C[chain_K]]
        wanted_KW = open_KB if self.blockwise else tokens_KW == self.model.mask_id
        wanted_KW[each, inside_K] = False
        return mean_entropies(self.model, self.session, chain_K, low_K, tokens_KW, wanted_KW)

    def _commit(self, now: Pass, choice: ChosenRows, draws: DrawStats | None, committed: IntArray) -> None:
        """Write the committed tokens, record them, and let the rules remember."""
        chains, stats = self.chains, now.stats.take(committed)
        chain_r, offset_r = now.chain_R[committed], now.offset_R[committed]
        index_r = self.chain_C[chain_r]
        position_r = chains.start_N[index_r] + offset_r
        token_r = stats.top_token if draws is None else draws.token
        logq_r = np.minimum(stats.top_logprob if draws is None else draws.logprob, 0.0)
        count_C = np.bincount(chain_r, minlength=len(self.chain_C))
        place_r = _places_in_set(chain_r, offset_r, choice.score_R[committed], count_C)
        columns: dict[str, NDArray[Any]] = {
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
        if self.looks:  # told once per pass, by the first token of its set
            columns["n_lookahead"] = np.where(place_r == 0, self.tries_C[chain_r], 0)
        self.recorder.add_reveals(columns)
        chains.tokens_NL[index_r, position_r] = token_r
        chains.open_NB[index_r, offset_r] = False
        chains.held_NB[index_r, offset_r] = True
        chains.logq_NB[index_r, offset_r] = logq_r
        chains.step_N[self.chain_C] += count_C
        chains.filled_N[self.chain_C] += count_C
        choice.commit()

    def _count_pass(self, now: Pass, committed: IntArray, revised: Sequence[Revised]) -> None:
        chains, index_C = self.chains, self.chain_C
        if self.revises:
            count = len(index_C)
            chains.post_N[index_C] += np.bincount(now.chain_R[now.masked_R], minlength=count) == 0
            chains.settled_N[index_C] = np.bincount(now.chain_R[committed], minlength=count) == 0
            for change in revised:
                chains.settled_N[change.index_r] = False
        chains.pass_N[index_C] += 1
        chains.forward_N[index_C] += 1
        self._tell_progress()

    def _tell_progress(self) -> None:
        """Report how much further the texts are than ever before: what is taken back is not told twice."""
        chains, index_C = self.chains, self.chain_C
        ahead_C = chains.filled_N[index_C] - chains.told_N[index_C]
        if (news := int(ahead_C[ahead_C > 0].sum())) > 0:
            chains.told_N[index_C] = np.maximum(chains.told_N[index_C], chains.filled_N[index_C])
            self.on_reveals(news)

    def _leave_done_blocks(self) -> None:
        """End or advance every chain whose block is done; drop the ended ones."""
        chains = self.chains
        while (done := np.flatnonzero(chains.done_with_block(self.chain_C))).size:
            self.prefix_C = None
            ending = {int(c): chains.ending(int(self.chain_C[c]), self.stop_at_eos) for c in done}
            moving = np.array([c for c, reason in ending.items() if reason is None], np.int64)
            if self.blockwise and len(moving):
                index = self.chain_C[moving]
                position = chains.start_N[index][:, None] + np.arange(chains.block_size)
                self.session.extend(moving, chains.tokens_NL[index[:, None], position])
            for c in moving:
                chains.next_block(int(self.chain_C[c]))
            for c, reason in ending.items():
                chains.reason[self.chain_C[c]] = reason
            staying = np.flatnonzero([chains.reason[n] is None for n in self.chain_C])
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
