"""The slow, obvious decoder: one forward of the whole window per pass, one sample, no cache, no batching.

Kept beside the fast path so that the two can be compared; never used for real work. It calls nothing but
``model.log_probs`` and the rules of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.decode.chains import given_tokens
from orderlens.decode.head import draw_stats, position_stats, target_stats
from orderlens.decode.numbers import draw_stream, rule_stream
from orderlens.decode.places import plan_canvases
from orderlens.decode.select import PolicyMemory, choose
from orderlens.grid import Canvas
from orderlens.models.protocol import Anchor, FloatArray, IntArray, LogProbRows, Model
from orderlens.orders.protocol import Order, StaticOrder
from orderlens.orders.view import StepView
from orderlens.policies.policy import Policy
from orderlens.samples import EncodedSample
from orderlens.stats import DrawStats, PositionStats, TargetStats


@dataclass(frozen=True, slots=True)
class PlainReveal:
    """One revealed token: absolute position, token, log q, and the pass that committed it."""

    position: int
    token: int
    logq: float
    forward: int = 0


def score_plainly(
    model: Model, sample: EncodedSample, policy: Policy | Order, anchor: Anchor | None = None
) -> list[PlainReveal]:
    """Score one sample under one policy, a whole-window forward at every pass."""
    canvas = plan_canvases(model.block_size, [sample], anchor or model.anchor)[0]
    truth = _text(model, sample, canvas)
    window = np.where(_to_fill(canvas, len(truth)), model.mask_id, truth)
    walk = _Walk(model, sample, Policy.of(policy), canvas)
    for block, start in enumerate(canvas.block_starts):
        masked = [
            i
            for i in range(start, min(start + canvas.block_size, canvas.requested_end))
            if window[i] != truth[i]
        ]
        walk.enter(block, start, masked)
        while masked:
            log_p = walk.log_probs(window)
            stats = target_stats(LogProbRows(log_p[masked]), model.eos_ids, truth[masked])
            for place in walk.choose(masked, stats):
                walk.reveal(masked[place], int(truth[masked[place]]), log_p)
            for reveal in walk.this_pass():
                window[reveal.position] = reveal.token
                masked.remove(reveal.position)
    return walk.reveals


def generate_plainly(
    model: Model,
    sample: EncodedSample,
    policy: Policy | Order,
    n_tokens: int,
    *,
    temperature: float = 0.0,
    sample_seed: int = 0,
    stop_at_eos: bool = True,
    anchor: Anchor | None = None,
) -> list[PlainReveal]:
    """Generate from one prompt under one policy that revises nothing, a whole-window forward per pass."""
    canvas, chosen = (
        plan_canvases(model.block_size, [sample], anchor or model.anchor, n_tokens)[0],
        Policy.of(policy),
    )
    chosen.refuse_to_generate()
    window = np.full(max(canvas.end, canvas.total), model.mask_id)
    window[: canvas.total] = given_tokens(sample, canvas, model.mask_id)
    walk = _Walk(model, sample, chosen, canvas)
    for block, start in enumerate(canvas.block_starts):
        stop = min(start + canvas.block_size, canvas.fill_end)
        masked = [i for i in range(start, stop) if window[i] == model.mask_id]
        filled = list(masked)
        walk.enter(block, start, masked)
        stream = draw_stream(sample_seed, sample.id, chosen.spec, block)
        while masked:
            log_p = walk.log_probs(window)
            rows = LogProbRows(log_p[masked])
            plain = position_stats(rows, model.eos_ids)
            stats: PositionStats | DrawStats = plain
            tokens = plain.top_token
            numbers = stream.random(canvas.block_size)[np.array(masked) - start]
            if temperature > 0:
                draws = draw_stats(rows, plain, temperature, numbers)
                tokens = draws.token
                stats = draws if chosen.draws_first(temperature) else plain
            for place in walk.choose(masked, stats):
                walk.reveal(masked[place], int(tokens[place]), log_p)
            for reveal in walk.this_pass():
                window[reveal.position] = reveal.token
                masked.remove(reveal.position)
        if stop_at_eos and not canvas.n_suffix and np.isin(window[filled], list(model.eos_ids)).any():
            break
    return walk.reveals


class _Walk:
    """One chain going through its blocks: where it stands, what it revealed, what its rules remember."""

    def __init__(self, model: Model, sample: EncodedSample, policy: Policy, canvas: Canvas) -> None:
        self.model, self.sample, self.policy, self.canvas = model, sample, policy, canvas
        self.reveals: list[PlainReveal] = []
        self.forwards = 0

    def enter(self, block: int, start: int, masked: list[int]) -> None:
        self.block, self.start, self.filling, self.passes = block, start, len(masked), 0
        self.memory = PolicyMemory.empty(1, self.canvas.block_size)
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

    def choose(self, masked: list[int], stats: PositionStats | TargetStats | DrawStats) -> list[int]:
        """Return the chosen places in ``masked``, first one first, and count the pass."""
        self.passes += 1
        self.forwards += 1
        if self.policy.is_static:
            now = [i for i, position in enumerate(masked) if self.due[position] == self.passes - 1]
            return sorted(now, key=lambda i: self.place[masked[i]])
        one = np.zeros(1, np.int64)
        chain, offset = np.zeros(len(masked), np.int64), np.array(masked) - self.start
        numbers = self.stream.random(self.canvas.block_size)[offset]
        view = StepView(
            chain, np.array(masked), offset, one + self.block, one + len(self.reveals), one + self.passes - 1,
            one + self.filling, stats, self.memory.order.at(one, chain, offset), lambda: numbers,
        )  # fmt: skip
        place = np.array([self.place.get(position, 0) for position in masked])
        choice = choose(self.policy, view, self.memory, one, place)
        choice.commit()
        chosen = np.flatnonzero(choice.chosen_R).tolist()
        return sorted(chosen, key=lambda place: (-choice.score_R[place], place))

    def reveal(self, position: int, token: int, log_p: FloatArray) -> None:
        self.reveals.append(PlainReveal(position, token, float(log_p[position, token]), self.forwards - 1))

    def this_pass(self) -> list[PlainReveal]:
        return [reveal for reveal in self.reveals if reveal.forward == self.forwards - 1]


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
