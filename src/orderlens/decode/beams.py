"""Generation under ``beams=K`` (Order-Token Search): drafts are compared at the start of each block.

A draft is one pass of a path: a token drawn at every masked position that the model sees, of which the
policy commits its set in the block. Its score is the log-probability of the block's drawn tokens given the
rest: in one more state the block is masked again and later positions hold their drawn tokens. A path's score
is the sum over its blocks. Every path has K drafts; the best K of all are decoded to the end of the block.

Without later positions (a block-causal model, the last block) that state is the pass itself and is not
evaluated again.

Shape letters: N chains, n drafts of one text, C chains of a batch, R rows, L later positions, W window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orderlens.common.rng import keyed_generator
from orderlens.decode.chains import Chain, Chains
from orderlens.decode.extra_inputs import in_batches
from orderlens.decode.head import start_reduction, take_rows, target_stats
from orderlens.decode.passes import Columns, Pass, PassRequest, TraceRecorder
from orderlens.decode.rounds import Rounds
from orderlens.decode.search import SearchBatch, SearchedPath, SearchedText, count_states
from orderlens.models.protocol import FloatArray, IntArray, Model, Rows, StateBatch
from orderlens.rules.search import Beams
from orderlens.rules.stats import DrawInputs


class DraftPass(Rounds):
    """The first pass of a block, and the score of each chain's draft."""

    def __init__(
        self,
        model: Model,
        chains: Chains,
        members: IntArray,
        recorder: TraceRecorder,
        *,
        temperature: float,
        sample_seed: int,
    ) -> None:
        """Create the pass; arguments as in ``Rounds``, and the seed of the draws."""
        super().__init__(
            model, chains, members, recorder, lambda _: None,
            temperature=temperature, stop_at_eos=False, alone=False,
        )  # fmt: skip
        self.static_P = np.zeros_like(self.static_P)  # a draft has a token at every masked position
        self.sample_seed = sample_seed
        self.score_C, self.n_scored_C = np.zeros(len(members)), np.zeros(len(members), np.int64)
        self.later: tuple[StateBatch, Rows] | None = None

    def run(self) -> None:
        """Evaluate, score and commit."""
        self._prefill()
        self._finish(self._evaluate()())

    def _rows(self, states: StateBatch) -> Rows:
        """Evaluate the states; keep the rows of the masked positions after the block apart."""
        chains, width = self.chains, states.tokens_NW.shape[1]
        position_CW = states.starts_N[:, None] + np.arange(width)
        fill_end_C = np.array([chains.canvases[n].fill_end for n in self.chain_C])
        after_C = chains.start_N[self.chain_C] + chains.block_size
        later_CW = (position_CW >= after_C[:, None]) & (position_CW < fill_end_C[:, None])
        state_L, offset_L = np.nonzero(later_CW & (states.tokens_NW == self.model.mask_id))
        if not len(state_L):
            return super()._rows(states)
        count = len(states.row_state_R)
        rows = super()._rows(
            replace(
                states,
                row_state_R=np.concatenate((states.row_state_R, state_L)),
                row_offset_R=np.concatenate((states.row_offset_R, offset_L)),
            )
        )
        own = replace(states, row_state_R=state_L, row_offset_R=offset_L)
        self.later = own, take_rows(rows, np.arange(count, count + len(state_L)))
        return take_rows(rows, np.arange(count))

    def _finish(self, now: Pass) -> None:
        score_C, n_scored_C = self._scores(now)  # model calls come before any change
        super()._finish(now)
        self.score_C, self.n_scored_C = score_C, n_scored_C

    def _scores(self, now: Pass) -> tuple[FloatArray, IntArray]:
        """Return each chain's score and the number of states that it needed."""
        assert now.draws is not None
        states, chains = now.request.states, self.chains
        logprob_R, n_scored_C = now.draws.logprob.copy(), np.zeros(len(self.chain_C), np.int64)
        if self.later is not None:
            later, rows = self.later
            inputs = DrawInputs(self._temperature_of(self._later_request(now, later)), self._numbers(later))
            drafted = start_reduction(rows, self.model.eos_ids, None, inputs)().draws
            assert drafted is not None
            tokens_CW = states.tokens_NW.copy()
            tokens_CW[later.row_state_R, later.row_offset_R] = drafted.token
            scored = np.unique(later.row_state_R)
            n_scored_C[scored] = 1

            def work(k: IntArray) -> None:
                chain_c = scored[k]
                mine = np.flatnonzero(np.isin(states.row_state_R, chain_c))
                state_r = np.searchsorted(chain_c, states.row_state_R[mine])
                own = states.slots_N[chain_c], states.starts_N[chain_c], tokens_CW[chain_c]
                found = self.session.evaluate(StateBatch(*own, state_r, states.row_offset_R[mine]))
                assert now.draws is not None
                targets_r = now.draws.token[mine]
                logprob_R[mine] = target_stats(found, self.model.eos_ids, targets_r).target_logprob

            in_batches(self.model, len(scored), work)
        position_R = chains.start_N[now.index_R] + now.offset_R
        logprob_R[position_R >= chains.requested_end_N[now.index_R]] = 0.0
        score_C: FloatArray = np.bincount(now.chain_R, logprob_R, len(self.chain_C)).astype(np.float64)
        return score_C, n_scored_C

    def _later_request(self, now: Pass, later: StateBatch) -> PassRequest:
        """Return the later rows as a request; a temperature schedule starts anew in every block."""
        start_L = self.chains.start_N[self.chain_C][later.row_state_R]
        position_L = later.starts_N[later.row_state_R] + later.row_offset_R
        offset_L = (position_L - start_L) % self.chains.block_size
        return PassRequest(now.index_C, later, offset_L, np.ones(len(offset_L), bool), now.request.open_CB)

    def _numbers(self, later: StateBatch) -> FloatArray:
        """Return one uniform number per later position, keyed by chain and block."""
        chains, count_C = self.chains, np.bincount(later.row_state_R, minlength=len(self.chain_C))
        parts = [
            keyed_generator(
                self.sample_seed, chains.samples[chains.sample_N[n]].id, chains.keys[chains.policy_N[n]],
                "draft", int(chains.block_N[n]),
            ).random(count)
            for n, count in zip(self.chain_C, count_C, strict=True)
        ]  # fmt: skip
        return np.concatenate(parts)


class BeamBatch(SearchBatch):
    """Decodes every prompt under policies with ``beams=K``; chain j K + i of a text is draft i of path j."""

    def run(self) -> tuple[Columns, list[Chain]]:
        """Decode all texts to their end; return the columns of the kept paths and their chains."""
        while live := [text for text in self.texts if len(self._open(text))]:
            score_N = self._draft(live)
            kept = {text: self._kept(text, score_N) for text in live}
            self._decode([n for own_K in kept.values() for n in own_K.tolist()])
            for text, own_K in kept.items():
                self._advance(text, own_K)
        return self._result()

    def _draft(self, live: Sequence[SearchedText]) -> FloatArray:
        """Make the first pass of every draft; count its states and return the scores of all chains [N]."""
        chains, recorder = self.chains, TraceRecorder()
        score_N, n_scored_N = np.zeros(len(self.paths)), np.zeros(len(self.paths), np.int64)
        drafts = {text: [n for n in self._open(text).tolist() if chains.open_NB[n].any()] for text in live}
        members = [n for own in drafts.values() for n in own]

        def work(batch: Sequence[int]) -> None:
            now = DraftPass(
                self.model, chains, np.asarray(batch), recorder,
                temperature=self.temperature, sample_seed=self.sample_seed,
            )  # fmt: skip
            now.run()
            score_N[batch], n_scored_N[batch] = now.score_C, now.n_scored_C

        self._in_batches(members, work, lambda batch: [n for n in batch if not chains.pass_N[n]])
        if members:
            self._add_reveals(recorder.columns()[0])
        for text, own in drafts.items():
            for n in own:
                looked = count_states(self.paths[n].blocks[-1]) - 1
                text.states[int(chains.block_N[n])] += looked + int(n_scored_N[n])
            for n in own[:: _width(text)]:  # the drafts of a path share one pass
                text.states[int(chains.block_N[n])] += 1
        return score_N

    def _kept(self, text: SearchedText, score_N: FloatArray) -> IntArray:
        """Add the scores to those of the paths; return the chains of the K best drafts."""
        gain_n = score_N[text.chain_n]
        text.value_n = text.before_n + gain_n
        kept_K, _ = text.rule.survivors(text.value_n, gain_n, text.weight_n, 0.0)
        return text.chain_n[kept_K]

    def _decode(self, members: Sequence[int]) -> None:
        """Decode the rest of the block of the kept chains that have not ended; count their states."""
        own = [n for n in members if self.chains.reason[n] is None]
        text_of = {int(n): text for text in self.texts for n in text.chain_n}
        before = {n: self._states_of(n) for n in own}
        super()._decode(own)
        for n in own:
            text_of[n].states[int(self.chains.block_N[n])] += self._states_of(n) - before[n]

    def _states_of(self, n: int) -> int:
        """Return the states of a chain's path in its current block; 0 if the block had nothing to fill."""
        blocks = self.paths[n].blocks
        is_current = bool(blocks) and blocks[-1]["block"][0] == self.chains.block_N[n]
        return count_states(blocks[-1]) if is_current else 0

    def _advance(self, text: SearchedText, kept_K: IntArray) -> None:
        """Copy each kept chain to all drafts of a path, and let those that have not ended enter a block."""
        chains, chain_n, width = self.chains, text.chain_n, _width(text)
        latest = kept_K[np.argmax(chains.block_N[kept_K])]  # others may have ended in an earlier block
        self.on_reveals(int(chains.filled_NB[latest].sum()))
        source_n = np.repeat(kept_K, width)
        value_n = text.value_n[source_n - chain_n[0]]
        paths = [self.paths[n] for n in source_n]
        for n, path in zip(chain_n.tolist(), paths, strict=True):
            self.paths[n] = SearchedPath(list(path.blocks), path.entropy)
        chains.adopt(chain_n, source_n)
        ended_n = np.array([chains.reason[n] is not None for n in chain_n])
        is_copy_n = np.arange(len(chain_n)) % width > 0
        text.value_n = text.before_n = np.where(ended_n & is_copy_n, -np.inf, value_n)
        for n in self._open(text).tolist():
            chains.next_block(n)


def _width(text: SearchedText) -> int:
    """Return K."""
    assert isinstance(text.rule, Beams)
    return text.rule.width
