"""The slow, obvious decoder: one forward of the whole window per step, one sample, no cache, no batching.

Kept beside the fast path so that the two can be compared; never used for real work. It calls nothing but
``model.log_probs`` and the orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.decode.head import draw_stats, position_stats, target_stats
from orderlens.errors import UserInputError
from orderlens.grid import Canvas
from orderlens.models.protocol import Anchor, FloatArray, LogProbRows, Model
from orderlens.orders.protocol import ConfidenceOrder, DrawingOrder, OracleOrder, Order, StaticOrder
from orderlens.rng import keyed_generator
from orderlens.samples import EncodedSample


@dataclass(frozen=True, slots=True)
class PlainReveal:
    """One revealed token: absolute position, token and log q."""

    position: int
    token: int
    logq: float


def score_plainly(
    model: Model, sample: EncodedSample, order: Order, anchor: Anchor | None = None
) -> list[PlainReveal]:
    """Score one sample under one order, a whole-window forward at every step."""
    canvas = Canvas.plan(len(sample.prompt), len(sample.target), model.block_size, anchor or model.anchor)
    truth = np.full(canvas.end, model.mask_id)
    truth[: canvas.requested_end] = np.concatenate([sample.prompt, sample.target])
    window = np.where(np.arange(canvas.end) < canvas.prompt_length, truth, model.mask_id)
    reveals = []
    for block, start in enumerate(canvas.block_starts):
        stop = min(start + canvas.block_size, canvas.requested_end)
        masked = list(range(max(start, canvas.prompt_length), stop))
        n_positions, first = len(masked), masked[0]
        for step in range(n_positions):
            log_p = model.log_probs(window.tolist(), canvas.offset)
            rows = LogProbRows(log_p[masked])
            if isinstance(order, StaticOrder):
                position = first + int(order.path(n_positions, sample.id, block)[step])
            elif isinstance(order, OracleOrder):
                position = masked[
                    int(np.argmax(order.scores(target_stats(rows, model.eos_ids, truth[masked]))))
                ]
            elif isinstance(order, ConfidenceOrder):
                position = masked[int(np.argmax(order.scores(position_stats(rows, model.eos_ids))))]
            else:
                raise UserInputError(f"order '{order.spec}' is of no known kind")
            reveals.append(
                PlainReveal(position, int(truth[position]), float(log_p[position, truth[position]]))
            )
            window[position] = truth[position]
            masked.remove(position)
    return reveals


def generate_plainly(
    model: Model,
    sample: EncodedSample,
    order: Order,
    n_tokens: int,
    *,
    temperature: float = 0.0,
    sample_seed: int = 0,
    stop_at_eos: bool = True,
    anchor: Anchor | None = None,
) -> list[PlainReveal]:
    """Generate from one prompt under one order, a whole-window forward at every step."""
    canvas = Canvas.plan(len(sample.prompt), n_tokens, model.block_size, anchor or model.anchor)
    window = np.full(canvas.end, model.mask_id)
    window[: canvas.prompt_length] = sample.prompt
    reveals: list[PlainReveal] = []
    for block, start in enumerate(canvas.block_starts):
        masked = list(range(max(start, canvas.prompt_length), start + canvas.block_size))
        uniforms = block_uniforms(sample_seed, sample.id, order, block, canvas.block_size)
        n_positions, first = len(masked), masked[0]
        for step in range(n_positions):
            log_p = model.log_probs(window.tolist(), canvas.offset)
            numbers = uniforms[step, np.array(masked) - start]
            forced = None
            if isinstance(order, StaticOrder):
                forced = first + int(order.path(n_positions, sample.id, block)[step])
            position, token = _pick(model, log_p, masked, order, forced, temperature, numbers)
            reveals.append(PlainReveal(position, token, float(log_p[position, token])))
            window[position] = token
            masked.remove(position)
        if (
            stop_at_eos
            and np.isin(
                window[max(start, canvas.prompt_length) : start + canvas.block_size], list(model.eos_ids)
            ).any()
        ):
            break
    return reveals


def block_uniforms(sample_seed: int, sample_id: str, order: Order, block: int, block_size: int) -> FloatArray:
    """Return the uniform numbers [step, offset in block] behind every draw of one block."""
    return keyed_generator(sample_seed, sample_id, order.spec, "draw", block).random((block_size, block_size))


def _pick(
    model: Model,
    log_p: FloatArray,
    masked: list[int],
    order: Order,
    forced: int | None,
    temperature: float,
    numbers: FloatArray,
) -> tuple[int, int]:
    rows = LogProbRows(log_p[masked])
    stats = position_stats(rows, model.eos_ids)
    tokens = stats.top_token
    draws = None
    if temperature > 0:
        draws = draw_stats(rows, stats, temperature, numbers)
        tokens = draws.token
    if forced is not None:
        place = masked.index(forced)
    elif isinstance(order, DrawingOrder) and draws is not None:
        place = int(np.argmax(order.draw_scores(draws)))
    elif isinstance(order, ConfidenceOrder):
        place = int(np.argmax(order.scores(stats)))
    else:
        raise UserInputError(f"order '{order.spec}' cannot generate")
    return masked[place], int(tokens[place])
