"""The reference decoder: one sample, one forward pass over the whole window per pass, no cache, no batching.

Slow and simple. Tests compare the fast decoder with it. Besides the rules of a policy it calls only
``model.log_probs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from orderlens.common.grid import Canvas, Overflow
from orderlens.common.rng import draw_stream, rule_stream
from orderlens.common.temperature import TemperatureSchedule
from orderlens.decode.chains import initial_canvas
from orderlens.decode.choose import BoolArray, choose
from orderlens.decode.extra_inputs import ExtraSource, PolicyMemory, Remaining
from orderlens.decode.head import draw_stats, position_stats, target_stats
from orderlens.decode.target_states import plan_canvases
from orderlens.models.protocol import Anchor, FloatArray, IntArray, LogProbRows, Model
from orderlens.rules.orders import Order, StaticOrder
from orderlens.rules.policy import Policy
from orderlens.rules.revise import BlockView, Revise
from orderlens.rules.stats import DrawStats, PositionStats, TargetStats, positions_of
from orderlens.rules.view import StepView
from orderlens.texts.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class ReferenceEvent:
    """One change of the canvas: position, new token, log q, pass, and kind of event.

    ``n_lookahead`` is the number of look-ahead states of the pass, on the first token that it revealed.
    """

    position: int
    token: int
    logq: float
    forward: int = 0
    event: str = "reveal"
    n_lookahead: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """A generated text: all events, the final tokens, the number of passes."""

    events: list[ReferenceEvent]
    tokens: IntArray
    n_passes: int

    @property
    def reveals(self) -> list[ReferenceEvent]:
        """The last reveal of every position."""
        last = {event.position: event for event in self.events if event.event == "reveal"}
        return [event for event in self.events if event is last.get(event.position)]

    @property
    def revisions(self) -> list[ReferenceEvent]:
        """All other events, by pass and position."""
        reveals = {id(event) for event in self.reveals}
        others = [event for event in self.events if id(event) not in reveals]
        return sorted(others, key=lambda event: (event.forward, event.position))


def reference_score(
    model: Model, sample: EncodedSample, policy: Policy | Order, anchor: Anchor | None = None
) -> list[ReferenceEvent]:
    """Score one sample under one policy, with one whole-window forward per pass."""
    canvas = plan_canvases(model.block_size, [sample], anchor or model.anchor)[0]
    truth = _text(model, sample, canvas)
    window = np.where(_to_fill(canvas, len(truth)), model.mask_id, truth)
    chain = _ReferenceChain(model, sample, Policy.of(policy), canvas)
    for block, start in enumerate(canvas.block_starts):
        masked = [
            i
            for i in range(start, min(start + canvas.block_size, canvas.requested_end))
            if window[i] != truth[i]
        ]
        chain.enter(block, start, masked)
        while masked:
            log_p = chain.log_probs(window)
            stats = target_stats(LogProbRows(log_p[masked]), model.eos_ids, truth[masked])
            for place in chain.choose(masked, stats, log_p, window):
                chain.reveal(masked[place], int(truth[masked[place]]), log_p)
            for reveal in chain.this_pass():
                window[reveal.position] = reveal.token
                masked.remove(reveal.position)
    return chain.events


def reference_generate(
    model: Model, sample: EncodedSample, policy: Policy | Order, n_tokens: int, **options: Any
) -> list[ReferenceEvent]:
    """Return the reveals of ``reference_text``: the last one of every position."""
    return reference_text(model, sample, policy, n_tokens, **options).reveals


def reference_text(
    model: Model,
    sample: EncodedSample,
    policy: Policy | Order,
    n_tokens: int,
    *,
    temperature: float = 0.0,
    sample_seed: int = 0,
    stop_at_eos: bool = True,
    anchor: Anchor | None = None,
    overflow: Overflow = "fill",
) -> ReferenceText:
    """Generate from one prompt under one policy, with one whole-window forward per pass."""
    canvas, chosen = (
        plan_canvases(model.block_size, [sample], anchor or model.anchor, n_tokens, overflow)[0],
        Policy.of(policy),
    )
    chosen.refuse_to_generate()
    window = np.full(max(canvas.end, canvas.total), model.mask_id)
    window[: canvas.total] = initial_canvas(sample, canvas, model.mask_id)
    chain = _ReferenceChain(model, sample, chosen, canvas)
    for block, start in enumerate(canvas.block_starts):
        stop = min(start + canvas.block_size, canvas.fill_end)
        filling = [i for i in range(start, stop) if window[i] == model.mask_id]
        chain.enter(block, start, filling)
        stream = draw_stream(sample_seed, sample.id, chosen.spec, block)
        while not chain.is_done(window, filling):
            log_p, before = chain.log_probs(window), len(chain.events)
            numbers = stream.random(canvas.block_size)[np.array(filling) - start]
            heat = _temperatures(temperature, canvas, start, filling, window[filling] != model.mask_id)
            chain.make_pass(window, filling, log_p, heat, numbers)
            for event in chain.events[before:]:
                window[event.position] = event.token
        if stop_at_eos and not canvas.n_suffix and np.isin(window[filling], list(model.eos_ids)).any():
            break
    return ReferenceText(chain.events, window, chain.n_passes)


def _temperatures(
    temperature: float, canvas: Canvas, start: int, filling: list[int], revealed: BoolArray
) -> FloatArray:
    """Return the temperature at each position to fill, one after the other."""
    found = []
    for position in filling:
        if not isinstance(temperature, TemperatureSchedule):
            found.append(temperature)
            continue
        place, last = int(revealed.sum()), len(filling) - 1
        if temperature.by_position:
            place, last = position - start, canvas.block_size - 1
        share = 0.0 if last == 0 else min(1.0, place / last)
        found.append((1 - share) * temperature.start + share * temperature.end)
    return np.array(found)


class _ReferenceChain:
    """The state of one chain: its current block, its events, and the memory of its rules."""

    def __init__(self, model: Model, sample: EncodedSample, policy: Policy, canvas: Canvas) -> None:
        self.model, self.sample, self.policy, self.canvas = model, sample, policy, canvas
        self.events: list[ReferenceEvent] = []
        self.n_passes = self.n_lookahead = 0
        self.rule_tokens: dict[int, int] = {}
        self.drawn: dict[int, int] = {}

    def enter(self, block: int, start: int, masked: list[int]) -> None:
        self.block, self.start, self.filling, self.block_passes = block, start, len(masked), 0
        self.memory = PolicyMemory.empty(1, self.canvas.block_size)
        self.logq: dict[int, float] = {}
        self.post_passes, self.changed, self.rows_made = 0, True, 0
        self.stream = rule_stream(self.policy.seed, self.sample.id, self.policy.spec, block)
        self.place: dict[int, int] = {}
        self.due: dict[int, int] = {}
        if isinstance(self.policy.order, StaticOrder) and masked:
            path, passes = self.policy.planned(len(masked), self.sample.id, block)
            self.place = {masked[int(entry)]: t for t, entry in enumerate(path)}
            self.due = {masked[int(entry)]: int(t) for entry, t in zip(path, passes, strict=True)}

    def log_probs(self, window: IntArray) -> FloatArray:
        seen = window if self.model.attention == "block-causal" else window[: self.canvas.total]
        return self.model.log_probs(seen.tolist(), self.canvas.offset)

    def choose(
        self,
        masked: list[int],
        stats: PositionStats | TargetStats | DrawStats,
        log_p: FloatArray,
        window: IntArray,
    ) -> list[int]:
        """Return the chosen indices into ``masked``, in reveal order, and count the pass."""
        self.block_passes += 1
        self.n_passes += 1
        self.n_lookahead = 0
        if self.policy.is_static:
            now = [i for i, position in enumerate(masked) if self.due[position] == self.block_passes - 1]
            return sorted(now, key=lambda i: self.place[masked[i]])
        one = np.zeros(1, np.int64)
        chain, offset = np.zeros(len(masked), np.int64), np.array(masked) - self.start
        numbers = self.numbers()[offset]
        view = StepView(
            chain, np.array(masked), offset, one + self.block, one + len(self.events),
            one + self.block_passes - 1, one + self.filling, stats,
            self.memory.order.at(one, chain, offset), lambda: numbers,
        )  # fmt: skip
        place = np.array([self.place.get(position, 0) for position in masked])
        source = ExtraSource(
            lambda: LogProbRows(log_p[masked]),
            lambda tried, drawn: self._look_ahead(masked, tried, drawn, log_p, window),
        )
        choice = choose(self.policy, view, self.memory, one, place, source)
        choice.commit()
        self.rule_tokens = (
            {} if choice.token_R is None else dict(zip(masked, choice.token_R.tolist(), strict=True))
        )
        chosen = np.flatnonzero(choice.chosen_R).tolist()
        return sorted(chosen, key=lambda place: (-choice.score_R[place], place))

    def is_done(self, window: IntArray, filling: list[int]) -> bool:
        """Return whether the block has no mask left and its policy makes no further change."""
        rule = self.policy.revise
        if (window[filling] == self.model.mask_id).any():
            return False
        if rule is None or not filling or self.block_passes >= rule.passes(self.filling):
            return True
        return rule.is_done(self.post_passes, self.changed)

    def _look_ahead(
        self, masked: list[int], tried: IntArray, drawn: bool, log_p: FloatArray, window: IntArray
    ) -> Remaining:
        """Return the statistics of the remaining masks after each try, one whole-window forward each."""
        found: list[tuple[int, float, float]] = []
        for state, places in enumerate(tried.tolist()):
            after = window.copy()
            for place in places:
                best = int(log_p[masked[place]].argmax())
                after[masked[place]] = self.drawn.get(masked[place], best) if drawn else best
            seen = len(after) if self.model.attention == "block-causal" else self.canvas.total
            everywhere = [i for i in range(seen) if after[i] == self.model.mask_id]
            inside = [i for i in masked if after[i] == self.model.mask_id]
            rest = inside if self.model.attention == "block-causal" else everywhere
            stats = position_stats(LogProbRows(self.log_probs(after)[rest]), self.model.eos_ids)
            found += [(state, y, h) for y, h in zip(stats.top_logprob, stats.entropy, strict=True)]
        self.n_lookahead += len(tried)
        state_r, logprob_r, entropy_r = (np.array(column) for column in zip(*found, strict=True))
        return Remaining(state_r, logprob_r, entropy_r)

    def make_pass(
        self, window: IntArray, filling: list[int], log_p: FloatArray, heat: FloatArray, numbers: FloatArray
    ) -> None:
        """Record the reveals, edits and remasks of one pass."""
        rows = LogProbRows(log_p[filling])
        stats = position_stats(rows, self.model.eos_ids)
        draws = draw_stats(rows, self.model.eos_ids, heat, numbers) if heat.max() > 0 else None
        masked, before = np.flatnonzero(window[filling] == self.model.mask_id), len(self.events)
        self.post_passes += not len(masked)
        rule, chosen = self.policy.revise, []
        if self.policy.is_planned_by_revise or not len(masked):
            self.block_passes, self.n_passes, self.n_lookahead = self.block_passes + 1, self.n_passes + 1, 0
        else:
            self.drawn = {} if draws is None else dict(zip(filling, draws.token.tolist(), strict=True))
            seen = draws if draws is not None and self.policy.draws_first(heat.max()) else stats
            places = self.choose([filling[i] for i in masked], seen.take(masked), log_p, window)
            chosen = masked[places].tolist()
        if rule is not None:
            drawn = draws if rule.draws_proposals else None
            filled = self.revise(rule, window, filling, log_p, drawn or stats)
            chosen = filled if self.policy.is_planned_by_revise else chosen
        for place in chosen:
            best = self.rule_tokens.get(filling[place], stats.top_token[place])
            token = int(best if draws is None else draws.token[place])
            self.reveal(filling[place], token, log_p)
        self.changed = len(self.events) > before

    def numbers(self) -> FloatArray:
        """Return this pass's random numbers of the rules, one per position of the block."""
        while self.rows_made < self.block_passes:
            self.row, self.rows_made = self.stream.random(self.canvas.block_size), self.rows_made + 1
        return self.row

    def revise(
        self,
        rule: Revise,
        window: IntArray,
        filling: list[int],
        log_p: FloatArray,
        proposed: PositionStats | DrawStats,
    ) -> list[int]:
        """Apply the rule's edits and remasks, and return the places that it fills."""
        one, masked = np.zeros(1, np.int64), window[filling] == self.model.mask_id
        if self.block_passes > rule.passes(self.filling):
            return self._by_score(masked, proposed)
        chain, offset = np.zeros(len(filling), np.int64), np.array(filling) - self.start
        numbers, token = self.numbers()[offset], np.where(masked, -1, window[filling])
        drawn = proposed if isinstance(proposed, DrawStats) else None
        stats = positions_of(proposed)
        memory = self.memory.revise.at(one, chain, offset)
        view = BlockView(
            chain, np.array(filling), offset, masked, token,
            np.where(masked, np.nan, log_p[filling, token]),
            np.array([self.logq.get(position, np.nan) for position in filling]),
            drawn.token if drawn else stats.top_token, drawn.logprob if drawn else stats.top_logprob, stats,
            one + self.block_passes - 1, one + self.filling, memory, lambda: numbers,
            lambda filled: self._leave_one_out(window, filling, filled),
        )  # fmt: skip
        moves = rule.revise(view)
        memory.commit()
        for place in _places(moves.remask_R):
            self.record("remask", filling[place], self.model.mask_id, np.nan)
        for place in _places(moves.edit_R):
            if (new := int(view.proposal_R[place])) not in (token[place], self.model.mask_id):
                self.record("edit", filling[place], new, float(log_p[filling[place], new]))
        return self._by_score(moves.commit_R, proposed)

    def _by_score(self, chosen: BoolArray | None, proposed: PositionStats | DrawStats) -> list[int]:
        logprob = proposed.logprob if isinstance(proposed, DrawStats) else proposed.top_logprob
        return sorted(_places(chosen), key=lambda place: (-logprob[place], place))

    def _leave_one_out(self, window: IntArray, filling: list[int], filled: BoolArray) -> FloatArray:
        """Return each token's log-probability with only it masked, one whole-window forward each."""
        found = np.full(len(filling), np.nan)
        for place in np.flatnonzero(filled).tolist():
            hidden = window.copy()
            hidden[filling[place]] = self.model.mask_id
            found[place] = self.log_probs(hidden)[filling[place], window[filling[place]]]
        self.n_lookahead += int(filled.sum())
        return found

    def reveal(self, position: int, token: int, log_p: FloatArray) -> None:
        self.record("reveal", position, token, float(log_p[position, token]), self.n_lookahead)
        self.n_lookahead = 0

    def record(self, event: str, position: int, token: int, logq: float, n_lookahead: int = 0) -> None:
        self.events.append(ReferenceEvent(position, token, logq, self.n_passes - 1, event, n_lookahead))
        self.logq[position] = logq

    def this_pass(self) -> list[ReferenceEvent]:
        return [reveal for reveal in self.events if reveal.forward == self.n_passes - 1]


def _places(chosen: BoolArray | None) -> list[int]:
    return [] if chosen is None else np.flatnonzero(chosen).tolist()


def _text(model: Model, sample: EncodedSample, canvas: Canvas) -> IntArray:
    text = np.concatenate([sample.prompt, sample.target, sample.suffix])
    truth = np.full(max(canvas.end, len(text)), model.mask_id)
    truth[: len(text)] = text
    return truth


def _to_fill(canvas: Canvas, length: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    position = np.arange(length)
    fill: np.ndarray[tuple[int], np.dtype[np.bool_]] = (position >= canvas.prompt_length) & (
        position < canvas.requested_end
    )
    return fill
