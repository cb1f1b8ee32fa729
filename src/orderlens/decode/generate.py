"""The generator: many (prompt, policy) chains in one batch, each at its own pace.

Every chain owns a session slot. Each round is one forward pass of every unfinished chain: its policy chooses
the positions to commit, tokens are drawn or taken, a revise rule may change what the block holds, and all of
it is recorded. A chain whose block is done either ends (EOS in the block, or canvas full) or has the block's
keys cached and moves on. Finished chains leave the batch.

The canvas is rounded up to whole blocks, because the conditionals depend on how many masks are visible;
tokens past the requested length are recorded with ``is_overflow``. With a given suffix nothing is decoded
past the requested length.

Shape letters: C chains of the batch, B block size, W window, R rows. Knows nothing of files, text or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.batches import BatchLimit, run_within
from orderlens.decode.chains import Chain, Chains
from orderlens.decode.events import Columns, Recorder
from orderlens.decode.head import draw_stats, position_stats, take_rows, target_stats
from orderlens.decode.places import check_fits, plan_canvases
from orderlens.decode.select import Choice, choose
from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, FloatArray, IntArray, Model, Rows, StateBatch
from orderlens.orders.memory import Memory
from orderlens.orders.protocol import Order, StaticOrder
from orderlens.orders.view import StepView
from orderlens.policies.policy import Policy
from orderlens.policies.protocol import HeldView
from orderlens.samples import EncodedSample
from orderlens.stats import DrawStats, PositionStats

MAX_NEW_TOKENS = 16384
MIN_TEMPERATURE = 1e-4
"""Smallest temperature above 0: float32 logits near 16 are known to 2e-6, small against it."""
Advance = Callable[[int], None]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How to decode: length, temperature, stopping, grid."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    sample_seed: int = 0
    stop_at_eos: bool = True
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise UserInputError(
                f"max_new_tokens={self.max_new_tokens} must lie between 1 and {MAX_NEW_TOKENS}"
            )
        if not 0 <= self.temperature < np.inf:
            raise UserInputError(f"temperature={self.temperature} must be a finite number ≥ 0")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise UserInputError(
                f"temperature={self.temperature} lies between 0 and {MIN_TEMPERATURE:g}, where "
                "rounding decides the draws; use 0 to decode greedily"
            )


@dataclass(frozen=True, slots=True)
class Generation:
    """What one call produced: trace columns, revisions, and per chain its tokens and why it ended."""

    columns: Columns
    revisions: Columns
    chains: Sequence[Chain]


def generate_batch(
    model: Model,
    samples: Sequence[EncodedSample],
    policies: Sequence[Policy | Order],
    settings: GenerationSettings,
    on_reveals: Advance | None = None,
    limit: BatchLimit | None = None,
) -> Generation:
    """Decode every prompt under every policy; columns come sorted by (sample, order, step).

    When memory runs out, half of the unfinished chains wait and are taken up later where they stood;
    ``limit`` remembers how many fit.
    """
    chosen = [Policy.of(policy) for policy in policies]
    for policy in chosen:
        policy.refuse_to_generate()
    canvases = plan_canvases(
        model.block_size, samples, settings.anchor or model.anchor, settings.max_new_tokens
    )
    check_fits(model, samples, canvases)
    chains = Chains(model, samples, chosen, canvases, settings.sample_seed)
    chains.check_paths()
    recorder, advance, known = Recorder(), on_reveals or (lambda _: None), limit or BatchLimit()

    def work(batch: Sequence[int]) -> None:
        _Batch(model, chains, settings, recorder, advance, np.asarray(batch)).run()

    def name(n: int) -> str:
        return f"sample '{samples[chains.sample_N[n]].id}' under '{chosen[chains.policy_N[n]].spec}'"

    def unfinished(batch: Sequence[int]) -> list[int]:
        return [n for n in batch if chains.reason[n] is None]

    widths = [chains.width(n) for n in range(len(chains.canvases))]
    for width in sorted(set(widths)):
        run_within(known, model, [n for n, own in enumerate(widths) if own == width], work, name, unfinished)
    return Generation(recorder.reveals(), recorder.revisions(), chains.finished())


@dataclass(frozen=True, slots=True)
class _Pass:
    """The rows of one forward pass, sorted by chain, then left to right."""

    chain_R: IntArray
    offset_R: IntArray
    masked_R: BoolArray
    rows: Rows
    stats: PositionStats


@dataclass(frozen=True, slots=True)
class _Revised:
    """What one revise rule changes: chain and offset of each change, its columns, the rule's memory."""

    chain_r: IntArray
    offset_r: IntArray
    columns: Columns
    memory: Memory


class _Batch:
    """Chains of one window width that advance together."""

    def __init__(
        self,
        model: Model,
        chains: Chains,
        settings: GenerationSettings,
        recorder: Recorder,
        on_reveals: Advance,
        members: IntArray,
    ) -> None:
        self.model, self.chains, self.settings = model, chains, settings
        self.recorder, self.on_reveals, self.chain_C = recorder, on_reveals, members
        self.blockwise = model.attention == "block-causal"
        self.revises = any(policy.revise is not None for policy in chains.policies)
        self.static_P = np.array([policy.is_static for policy in chains.policies])
        self.revises_P = np.array([policy.revise is not None for policy in chains.policies])
        self.session = model.open_session()

    def run(self) -> None:
        """Decode all chains to their end, each from where it stands.

        A chain changes only after the model calls it depends on have succeeded, so a run that fails for lack
        of memory can be repeated with fewer chains.
        """
        self._prefill()
        while True:
            self._leave_done_blocks()  # first: a chain taken up again may stand at the end of its block
            if not len(self.chain_C):
                return
            self._round()

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
        self.session.keep(np.array([place[key] for key in keys]))

    def _round(self) -> None:
        """Make one forward pass of every chain."""
        now = self._evaluate()
        choice, draws = self._choose(now)
        committed = np.flatnonzero(choice.chosen_R)
        revised = self._revise(now) if self.revises else []
        self._commit(now, choice, draws, committed)
        for change in revised:
            self._apply(change)
        self._count_pass(now, committed, revised)

    def _evaluate(self) -> _Pass:
        """Evaluate every chain's window and reduce the rows that somebody needs."""
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
        rows = self.session.evaluate(StateBatch(np.arange(len(index_C)), low_C, tokens_CW, chain_R, inside_R))
        stats = position_stats(rows, self.model.eos_ids)
        masked_R = open_CB[chain_R, offset_R] if self.revises else np.ones(len(chain_R), bool)
        return _Pass(chain_R, offset_R, masked_R, rows, stats)

    def _choose(self, now: _Pass) -> tuple[Choice, DrawStats | None]:
        """Return what every policy commits, over all rows, and at T > 0 the draws of the committed rows."""
        count, temperature = len(now.chain_R), self.settings.temperature
        policy = self.chains.policies[0]
        if len(self.chains.policies) == 1 and not (temperature or self.revises or policy.is_static):
            return self._ask(policy, now.chain_R, now.offset_R, now.stats), None  # nothing to merge
        merged = Choice(np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64), [])
        policy_C = self.chains.policy_N[self.chain_C]
        policy_R = policy_C[now.chain_R]
        drawing = np.zeros(count, bool)
        late = []
        for p in np.unique(policy_C):
            policy = self.chains.policies[p]
            mine = np.flatnonzero((policy_R == p) & now.masked_R)
            if policy.is_static:
                merged.chosen_R[mine] = True
                merged.score_R[mine] = -self.chains.place_NB[
                    self.chain_C[now.chain_R[mine]], now.offset_R[mine]
                ]
            elif policy.draws_first(temperature):
                drawing[mine] = True
                late.append((policy, mine))
            elif len(mine):
                self._ask_for(policy, now, mine, now.stats.take(mine), merged)
        if temperature == 0:
            return merged, None
        drawn = np.flatnonzero(drawing | merged.chosen_R)
        draws = draw_stats(
            take_rows(now.rows, drawn), now.stats.take(drawn), temperature, self._uniforms(now, drawn)
        )
        for policy, mine in late:
            if len(mine):
                self._ask_for(policy, now, mine, draws.take(np.searchsorted(drawn, mine)), merged)
        committed = np.flatnonzero(merged.chosen_R)
        return merged, draws.take(np.searchsorted(drawn, committed))

    def _ask_for(
        self, policy: Policy, now: _Pass, mine: IntArray, stats: PositionStats | DrawStats, into: Choice
    ) -> None:
        """Let one policy choose among its masked rows, and enter what it chose."""
        found = self._ask(policy, now.chain_R[mine], now.offset_R[mine], stats)
        into.chosen_R[mine] = found.chosen_R
        into.score_R[mine] = found.score_R
        into.tied_R[mine] = found.tied_R
        into.kept.extend(found.kept)

    def _ask(
        self, policy: Policy, chain_R: IntArray, offset_r: IntArray, stats: PositionStats | DrawStats
    ) -> Choice:
        """Let one policy choose among masked rows of its chains."""
        chains = self.chains
        live_c, chain_r = _regroup(chain_R)
        index_c = self.chain_C[live_c]
        memory = chains.memory[chains.policy_N[index_c[0]]]
        view = StepView(
            chain_R=chain_r,
            position_R=chains.start_N[index_c][chain_r] + offset_r,
            offset_R=offset_r,
            block_C=chains.block_N[index_c],
            step_C=chains.step_N[index_c],
            forward_C=chains.pass_N[index_c],
            filling_C=chains.filling_N[index_c],
            stats=stats,
            memory=memory.order.at(index_c, chain_r, offset_r),
            numbers=lambda: chains.numbers.rows(index_c, chains.pass_N[index_c])[chain_r, offset_r],
        )
        static = isinstance(policy.order, StaticOrder)
        place_r = chains.place_NB[index_c[chain_r], offset_r] if static else None
        return choose(policy, view, memory, index_c, place_r)

    def _uniforms(self, now: _Pass, rows: IntArray) -> FloatArray:
        """The number behind the draw at each row in this pass: the same for every way of asking."""
        numbers_CB = self.chains.draws.rows(self.chain_C, self.chains.pass_N[self.chain_C])
        return numbers_CB[now.chain_R[rows], now.offset_R[rows]]

    def _commit(self, now: _Pass, choice: Choice, draws: DrawStats | None, committed: IntArray) -> None:
        """Write the committed tokens, record them, and let the rules remember."""
        chains, stats = self.chains, now.stats.take(committed)
        chain_r, offset_r = now.chain_R[committed], now.offset_R[committed]
        index_r = self.chain_C[chain_r]
        position_r = chains.start_N[index_r] + offset_r
        token_r = stats.top_token if draws is None else draws.token
        logq_r = np.minimum(stats.top_logprob if draws is None else draws.logprob, 0.0)
        count_C = np.bincount(chain_r, minlength=len(self.chain_C))
        columns: dict[str, NDArray[Any]] = {
            "sample": chains.sample_N[index_r],
            "order": chains.policy_N[index_r],
            "block": chains.block_N[index_r],
            "step": chains.step_N[index_r]
            + _places_in_set(chain_r, offset_r, choice.score_R[committed], count_C),
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
        if draws is not None:
            columns["tempered_logq"] = np.minimum(draws.tempered_logprob, 0.0)
        self.recorder.add_reveals(columns)
        chains.tokens_NL[index_r, position_r] = token_r
        chains.open_NB[index_r, offset_r] = False
        chains.held_NB[index_r, offset_r] = True
        chains.logq_NB[index_r, offset_r] = logq_r
        chains.step_N[self.chain_C] += count_C
        choice.commit()
        self.on_reveals(len(committed))

    def _revise(self, now: _Pass) -> list[_Revised]:
        """Ask the revise rules about the tokens held before this pass."""
        policy_R = self.chains.policy_N[self.chain_C][now.chain_R]
        mine = {p: np.flatnonzero((policy_R == p) & ~now.masked_R) for p in np.flatnonzero(self.revises_P)}
        return [self._changes(int(p), now, held) for p, held in mine.items() if len(held)]

    def _changes(self, p: int, now: _Pass, held: IntArray) -> _Revised:
        chains, revise = self.chains, self.chains.policies[p].revise
        assert revise is not None
        live_c, chain_r = _regroup(now.chain_R[held])
        index_c, offset_r = self.chain_C[live_c], now.offset_R[held]
        index_r = index_c[chain_r]
        position_r = chains.start_N[index_r] + offset_r
        token_r = chains.tokens_NL[index_r, position_r]
        stats = target_stats(take_rows(now.rows, held), self.model.eos_ids, token_r)
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
            "new_token": np.where(edited, stats.positions.top_token[at], self.model.mask_id),
            "logq": np.where(edited, np.minimum(stats.positions.top_logprob[at], 0.0), np.nan),
        }
        return _Revised(index, offset_r[at], columns, memory)

    def _apply(self, revised: _Revised) -> None:
        """Write the changed tokens, record them, and let the rule remember."""
        chains, index, offset, columns = self.chains, revised.chain_r, revised.offset_r, revised.columns
        edited = columns["is_edit"]
        chains.tokens_NL[index, columns["position"]] = columns["new_token"]
        chains.logq_NB[index[edited], offset[edited]] = columns["logq"][edited]
        chains.open_NB[index[~edited], offset[~edited]] = True
        chains.held_NB[index[~edited], offset[~edited]] = False
        if len(index):
            self.recorder.add_revisions(columns)
        revised.memory.commit()

    def _count_pass(self, now: _Pass, committed: IntArray, revised: Sequence[_Revised]) -> None:
        chains, index_C = self.chains, self.chain_C
        if self.revises:
            count = len(index_C)
            chains.post_N[index_C] += np.bincount(now.chain_R[now.masked_R], minlength=count) == 0
            chains.settled_N[index_C] = np.bincount(now.chain_R[committed], minlength=count) == 0
            for change in revised:
                chains.settled_N[change.chain_r] = False
        chains.pass_N[index_C] += 1
        chains.forward_N[index_C] += 1

    def _leave_done_blocks(self) -> None:
        """End or advance every chain whose block is done; drop the ended ones."""
        chains = self.chains
        while (done := np.flatnonzero(chains.done_with_block(self.chain_C))).size:
            ending = {int(c): chains.ending(int(self.chain_C[c]), self.settings.stop_at_eos) for c in done}
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


def _regroup(chain_r: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values of a sorted array, and each entry's place among them."""
    new_r = np.ones(len(chain_r), bool)
    new_r[1:] = chain_r[1:] != chain_r[:-1]
    return chain_r[new_r], np.cumsum(new_r) - 1


def _places_in_set(chain_r: IntArray, offset_r: IntArray, score_r: FloatArray, count_C: IntArray) -> IntArray:
    """Return each committed row's place in its chain's set: higher score first, then left to right."""
    if count_C.max(initial=0) <= 1:
        return np.zeros(len(chain_r), np.int64)
    by_r = np.lexsort((offset_r, -score_r, chain_r))
    place_r = np.empty(len(by_r), np.int64)
    place_r[by_r] = np.arange(len(by_r)) - (np.cumsum(count_C) - count_C)[chain_r]
    return place_r
