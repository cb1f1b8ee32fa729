"""Fixed-sequence scoring: all samples, policies and blocks of a batch in parallel.

With a fixed target every block's prefix is known. The clean sequence is prefilled once, and each block under
each policy becomes an independent *chain* of at most ``block_size`` passes. A position's ``rank`` is the pass
that reveals it. Ranks describe a chain completely: the positions with ``rank < t`` are visible at pass t.
The ranks of static policies are known in advance, so all their passes form one wave; adaptive policies need
one wave per pass. Equal states within a wave (for example the fully masked block) are evaluated once, and
only requested rows reach the head. Positions revealed in one pass have their log q from that pass.

Shape letters: O policies, M blocks of all samples, B block size, P (policy, block, pass) triples of a wave,
U distinct states, R rows. Does not depend on files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.common.grid import Canvas
from orderlens.common.rng import NumberRows, rule_stream
from orderlens.decode.batches import (
    BatchLimit,
    ProgressReporter,
    interleave,
    run_in_batches,
    split_for_overlap,
)
from orderlens.decode.chains import NEVER
from orderlens.decode.choose import choose
from orderlens.decode.extra_inputs import ExtraSource, PolicyMemory, Remaining
from orderlens.decode.head import self_certainty, take_rows
from orderlens.decode.passes import Columns, StateRecorder
from orderlens.decode.target_states import BoolArray, TargetStates, check_fits, plan_canvases
from orderlens.models.abilities import seeds_blocks
from orderlens.models.protocol import Anchor, IntArray, Model, Rows, Session
from orderlens.rules.orders import Order, StaticOrder
from orderlens.rules.policy import Policy
from orderlens.rules.stats import TargetStats
from orderlens.rules.view import StepView
from orderlens.texts.samples import EncodedSample

Advance = Callable[[int], None]
Triples = tuple[IntArray, IntArray, IntArray]


def score_batch(
    model: Model,
    samples: Sequence[EncodedSample],
    policies: Sequence[Policy | Order],
    anchor: Anchor | None = None,
    on_reveals: Advance | None = None,
    limit: BatchLimit | None = None,
    open_session: Callable[[], Session] | None = None,
    recorder: StateRecorder | None = None,
) -> Columns:
    """Score every sample under every policy; return trace columns sorted by (sample, order, step).

    Args:
        model: any model; its block size is the grid.
        samples: encoded samples with targets.
        policies: policies or orders of any kind, without revise rules.
        anchor: where the grid starts; the model's own choice by default.
        on_reveals: called with the number of newly scored tokens.
        limit: maximum number of samples per batch; reduced when memory runs out.
        open_session: opens a session; the model's ``open_session`` by default.
        recorder: receives the states of all passes, if given.
    """
    chosen = [Policy.of(policy) for policy in policies]
    for policy in chosen:
        policy.refuse_to_score()
    canvases = plan_canvases(model.block_size, samples, anchor or model.anchor)
    check_fits(model, samples, canvases)
    parts: list[Columns] = []
    report, batch_limit = ProgressReporter(on_reveals), limit or BatchLimit()

    def states_of(part: Sequence[int]) -> TargetStates:
        return TargetStates(model, [samples[i] for i in part], [canvases[i] for i in part], open_session)

    def work(members: Sequence[int]) -> None:
        report.start()
        halves = split_for_overlap(members, len(chosen))
        scorers = [Scorer(states_of(half), chosen, report, recorder is not None) for half in halves]
        interleave(scorer.passes() for scorer in scorers)
        for half, scorer in zip(halves, scorers, strict=True):
            columns = scorer.columns()
            parts.append({**columns, "sample": np.asarray(half)[columns["sample"]]})
            if recorder is not None:
                recorder.passes += scorer.state_columns(np.asarray(half))

    def retry_all(members: Sequence[int]) -> Sequence[int]:
        report.failed()
        return members

    for members in equal_windows(model, canvases):
        run_in_batches(batch_limit, model, members, work, lambda i: f"sample '{samples[i].id}'", retry_all)
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    in_order = np.lexsort((merged["step"], merged["order"], merged["sample"]))
    return {name: values[in_order] for name, values in merged.items()}


def equal_windows(model: Model, canvases: Sequence[Canvas]) -> Iterator[list[int]]:
    """Group samples of equal window width: all samples, or equal canvas lengths under full attention."""
    widths = [model.block_size if model.attention == "block-causal" else canvas.total for canvas in canvases]
    for width in sorted(set(widths)):
        yield [index for index, value in enumerate(widths) if value == width]


@dataclass(frozen=True, slots=True)
class _Wave:
    """The states of one wave: block, visible and masked positions, row of each position, chosen positions."""

    m_P: IntArray
    visible_PB: BoolArray
    masked_PB: BoolArray
    row_PB: IntArray
    stats: TargetStats
    rows: Rows
    chosen_PB: BoolArray


class Scorer:
    """Walks the policies over states: one chain per policy and block; ``columns`` gives the traces."""

    def __init__(
        self,
        states: TargetStates,
        policies: Sequence[Policy],
        on_reveals: Advance,
        keeps_states: bool = False,
    ) -> None:
        self.states, self.blocks, self.samples = states, states.blocks, states.samples
        self.policies, self.on_reveals = policies, on_reveals
        self.recorder = StateRecorder() if keeps_states else None
        self.filling_M = self.blocks.open_MB.sum(axis=1)
        self.before_M = _before(self.blocks.sample_M, self.filling_M)
        self.static_O = np.array([policy.is_static for policy in policies])
        shape = (len(policies), *self.blocks.open_MB.shape)
        self.rank_OMB = np.full(shape, NEVER)
        self.place_OMB = np.zeros(shape, np.int64)
        self._plan_static_paths()
        adaptive = {o: policy for o, policy in enumerate(policies) if not policy.is_static}
        self.memory = {o: PolicyMemory.empty(shape[1], shape[2]) for o in adaptive}
        self.numbers = {o: NumberRows(shape[1], shape[2], self._opener(adaptive[o])) for o in adaptive}
        names = ("logq", "max_logprob", "second_logprob", "entropy", "competitor_logprob", "score")
        self.found: dict[str, np.ndarray[Any, Any]] = {name: np.full(shape, np.nan) for name in names}
        self.found |= {name: np.zeros(shape, np.int64) for name in ("top_token", "n_tied")}
        if any(policy.looks_ahead for policy in policies):
            self.found["n_lookahead"] = np.zeros(shape, np.int64)
        if keeps_states:
            self.found["self_certainty"] = np.full(shape, np.nan)

    def passes(self) -> Iterator[None]:
        """Score all waves; yield in every wave, as soon as the device has its work."""
        for o_P, m_P, t_P in self._waves():
            finish = self._begin_wave(o_P, m_P, t_P)
            yield
            finish()

    def _opener(self, policy: Policy) -> Callable[[int], np.random.Generator]:
        blocks = self.blocks
        return lambda m: rule_stream(
            policy.seed, self.samples[blocks.sample_M[m]].id, policy.spec, int(blocks.block_M[m])
        )

    def _plan_static_paths(self) -> None:
        for o, policy in enumerate(self.policies):
            if not isinstance(policy.order, StaticOrder):
                continue
            for m, open_B in enumerate(self.blocks.open_MB):
                places, sample = np.flatnonzero(open_B), self.samples[self.blocks.sample_M[m]]
                path, passes = policy.planned(len(places), sample.id, int(self.blocks.block_M[m]))
                self.place_OMB[o, m, places[path]] = np.arange(len(path))
                if policy.is_static:
                    self.rank_OMB[o, m, places[path]] = passes

    def _waves(self) -> Iterator[Triples]:
        """Yield (policy, block, pass) triples: one wave if all policies are static, else one per pass."""
        if self.static_O.all():
            yield self._static_triples()
            return
        for t in count():
            masked_OM = (self.blocks.open_MB & (self.rank_OMB >= t)).any(axis=2)
            o, m = np.nonzero(masked_OM)
            if not len(o):
                return
            yield o, m, np.full(len(o), t)

    def _static_triples(self) -> Triples:
        last_OM = np.where(self.rank_OMB == NEVER, -1, self.rank_OMB).max(axis=2)
        o, m, t = np.nonzero(np.arange(int(last_OM.max()) + 1) <= last_OM[..., None])
        return o, m, t

    def _begin_wave(self, o_P: IntArray, m_P: IntArray, t_P: IntArray) -> Callable[[], None]:
        """Start the forwards of a wave; return a function that waits, chooses and records."""
        rank_PB = self.rank_OMB[o_P, m_P]
        shown_PB = rank_PB < t_P[:, None]
        visible_PB = self.blocks.given_MB[m_P] | shown_PB
        masked_PB = self.blocks.open_MB[m_P] & ~shown_PB
        due_PB = rank_PB == t_P[:, None]
        due_only_P = self.static_O[o_P] & (self.recorder is None)
        wanted_PB = np.where(due_only_P[:, None], due_PB, masked_PB)
        first_U, state_P = distinct_states(m_P, visible_PB)
        wanted_UB = np.zeros((len(first_U), wanted_PB.shape[1]), bool)
        np.logical_or.at(wanted_UB, state_P, wanted_PB)
        row_UB, rows, pending = self.states.start_evaluation(m_P[first_U], visible_PB[first_U], wanted_UB)

        def finish() -> None:
            stats, chosen_PB = pending(), due_PB & self.static_O[o_P][:, None]
            if self.recorder is not None:
                p_R, offset_R = np.nonzero(masked_PB)
                seen = stats.positions.take(row_UB[state_P[p_R], offset_R])
                self.recorder.add({"order": o_P, "m": m_P, "forward": t_P}, visible_PB, p_R, seen)
            wave = _Wave(m_P, visible_PB, masked_PB, row_UB[state_P], stats, rows, chosen_PB)
            for o in np.flatnonzero(~self.static_O):
                mine = np.flatnonzero(o_P == o)
                if len(mine):
                    self._choose(int(o), mine, t_P[mine], wave)
            p_C, offset_C = np.nonzero(chosen_PB)
            row_C = row_UB[state_P[p_C], offset_C]
            self.rank_OMB[o_P[p_C], m_P[p_C], offset_C] = t_P[p_C]
            where = o_P[p_C], m_P[p_C], offset_C
            self._record(where, stats.take(row_C))
            if self.recorder is not None:
                row_u, place_C = np.unique(row_C, return_inverse=True)  # orders share states
                certainty_u = self_certainty(take_rows(rows, row_u), self.states.model.mask_id)
                self.found["self_certainty"][where] = certainty_u[place_C]
            self.on_reveals(len(p_C))

        return finish

    def _choose(self, o: int, mine: IntArray, t_C: IntArray, wave: _Wave) -> None:
        """Apply one adaptive policy to the masked positions of its chains."""
        m_C = wave.m_P[mine]
        chain_R, offset_R = np.nonzero(wave.masked_PB[mine])
        m_R, p_R = m_C[chain_R], mine[chain_R]
        row_R = wave.row_PB[p_R, offset_R]
        left_C = wave.masked_PB[mine].sum(axis=1)
        view = StepView(
            chain_R=chain_R,
            position_R=self.blocks.start_M[m_R] + offset_R,
            offset_R=offset_R,
            block_C=self.blocks.block_M[m_C],
            step_C=self.before_M[m_C] + self.filling_M[m_C] - left_C,
            forward_C=t_C,
            filling_C=self.filling_M[m_C],
            stats=wave.stats.take(row_R),
            memory=self.memory[o].order.at(m_C, chain_R, offset_R),
            numbers=lambda: self.numbers[o].rows(m_C, t_C)[chain_R, offset_R],
        )
        n_lookahead_C = np.zeros(len(mine), np.int64)

        def look_ahead(tried_Kk: IntArray, _: bool) -> Remaining:
            n_lookahead_C[:] += np.bincount(chain_R[tried_Kk[:, 0]], minlength=len(mine))
            return self._after(wave, p_R[tried_Kk[:, 0]], offset_R[tried_Kk])

        source = ExtraSource(lambda: take_rows(wave.rows, row_R), look_ahead)
        place_R = self.place_OMB[o, m_R, offset_R]
        choice = choose(self.policies[o], view, self.memory[o], m_C, place_R, source)
        choice.commit()
        wave.chosen_PB[p_R, offset_R] = choice.chosen_R
        self.found["score"][o, m_R, offset_R] = choice.score_R
        self.found["n_tied"][o, m_R, offset_R] = choice.tied_R
        if self.policies[o].looks_ahead:
            self.found["n_lookahead"][o, m_R, offset_R] = n_lookahead_C[chain_R]

    def _after(self, wave: _Wave, p_K: IntArray, offset_Kk: IntArray) -> Remaining:
        """Return the statistics of the remaining masks after each set takes its most probable tokens."""
        m_K, here = wave.m_P[p_K], (np.arange(len(p_K))[:, None], offset_Kk)
        shown_KB = np.where(wave.visible_PB[p_K], self.blocks.clean_MB[m_K], self.states.model.mask_id)
        shown_KB[here] = wave.stats.positions.top_token[wave.row_PB[p_K[:, None], offset_Kk]]
        masked_KB = wave.masked_PB[p_K]
        masked_KB[here] = False
        return self.states.remaining_after(m_K, shown_KB, masked_KB)

    def _record(self, where: Triples, stats: TargetStats) -> None:
        self.states.refuse_impossible(where[1], where[2], stats)
        values: dict[str, NDArray[Any]] = {
            "logq": np.minimum(stats.target_logprob, 0.0),
            "max_logprob": np.minimum(stats.positions.top_logprob, 0.0),
            "second_logprob": stats.positions.second_logprob,
            "entropy": stats.positions.entropy,
            "competitor_logprob": stats.competitor_logprob,
            "top_token": stats.positions.top_token,
        }
        for name, value in values.items():
            self.found[name][where] = value

    def _passes_of_blocks(self) -> tuple[IntArray, IntArray]:
        """Return the passes of each policy's blocks [O, M], and those of the sample's earlier blocks."""
        passes_OM = np.where(self.rank_OMB == NEVER, -1, self.rank_OMB).max(axis=2) + 1
        return passes_OM, np.stack([_before(self.blocks.sample_M, passes_M) for passes_M in passes_OM])

    def state_columns(self, sample_S: IntArray) -> list[dict[str, NDArray[Any]]]:
        """Return the recorded states once all waves are done; ``sample_S`` numbers the samples."""
        assert self.recorder is not None
        blocks, (_, earlier_OM) = self.blocks, self._passes_of_blocks()
        for part in self.recorder.passes:
            m = part.pop("m")
            part |= {"sample": sample_S[blocks.sample_M[m]], "block": blocks.block_M[m]}
            part |= {"start": blocks.start_M[m], "forward": earlier_OM[part["order"], m] + part["forward"]}
        return self.recorder.passes

    def columns(self) -> Columns:
        """Return the trace columns, once all waves are done."""
        blocks = self.blocks
        o, m, b = np.nonzero(np.broadcast_to(blocks.open_MB, self.rank_OMB.shape))
        score = np.where(self.static_O[o], -self.place_OMB[o, m, b], self.found.pop("score")[o, m, b])
        by = np.lexsort(
            (b, -score, self.rank_OMB[o, m, b], m, o)
        )  # within a set: higher score first, then left to right
        o, m, b = o[by], m[by], b[by]
        rank = self.rank_OMB[o, m, b]
        passes_OM, earlier_OM = self._passes_of_blocks()
        n_committed = np.zeros((*passes_OM.shape, int(passes_OM.max())), np.int64)
        np.add.at(n_committed, (o, m, rank), 1)
        chain = o * len(blocks.sample_M) + m
        flat = {name: values[o, m, b] for name, values in self.found.items()}
        if "n_lookahead" in flat:  # the count of a pass is recorded on the first token of its set
            flat["n_lookahead"][1:][(chain[1:] == chain[:-1]) & (rank[1:] == rank[:-1])] = 0
        if seeds_blocks(self.states.model):
            is_blank_M = ~blocks.given_MB.any(axis=1) & (blocks.start_M > 0)
            flat["is_seed"] = (b == 0) & (rank == 0) & is_blank_M[m]
        return {
            **flat,
            "target_logprob": flat["logq"],
            "sample": blocks.sample_M[m],
            "order": o,
            "block": blocks.block_M[m],
            "step": self.before_M[m] + np.arange(len(o)) - np.searchsorted(chain, chain),
            "forward": earlier_OM[o, m] + rank,
            "position": blocks.start_M[m] + b,
            "token_id": blocks.clean_MB[m, b],
            "is_overflow": np.zeros(len(o), bool),
            "n_committed": n_committed[o, m, rank],
        }


def distinct_states(m_P: IntArray, visible_PB: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the first index of each distinct (block, visible set), and the state of each triple."""
    bits = np.packbits(visible_PB, axis=1)
    keys = np.concatenate([m_P.astype(">i8")[:, None].view(np.uint8).reshape(len(m_P), 8), bits], axis=1)
    packed = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1])))[:, 0]
    _, first_U, state_P = np.unique(packed, return_index=True, return_inverse=True)
    return first_U, state_P


def _before(sample_M: IntArray, count_M: IntArray) -> IntArray:
    """Return the sum of ``count_M`` over the same sample's earlier blocks."""
    running = np.cumsum(count_M) - count_M
    result: IntArray = running - running[np.searchsorted(sample_M, sample_M)]
    return result
