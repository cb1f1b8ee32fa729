"""A census as a run: where its spans lie, what it costs, and the tables of its units.

A unit holds whole texts and, per text, the offsets of its spans. Its traces are those of the
rules over the spans; the table ``census`` holds log p of every state. Does not know files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from orderlens.common.grid import Canvas
from orderlens.decode.batches import BatchLimit
from orderlens.decode.census import STATES_AT_ONCE, Span, census_batch, evaluate_spans
from orderlens.errors import UserInputError, counted
from orderlens.metrics.census import LARGEST_SPAN
from orderlens.models.abilities import CountsParameters
from orderlens.models.protocol import FloatArray, Model
from orderlens.rules import parse_policies
from orderlens.runs.compute import BuildTables, ComputeContext, canvases
from orderlens.runs.job import Job, Orders, make_job
from orderlens.runs.options import Computing, ModelLike
from orderlens.runs.request import BadValueError
from orderlens.runs.spec import CPU_FLOPS, CPU_UNIT_S, DEFAULT_BATCH, RunSpec, Unit
from orderlens.runs.tables import TraceLabels, float_type, reveal_table, scored_outputs
from orderlens.store.schema import table_schema
from orderlens.texts.samples import EncodedSample, Sample, encode_samples, in_chat

LARGEST_UNASKED = 12
"""Positions of a span (4,095 states) up to which a census starts without being confirmed."""
UNIT_STATES = 1 << 16
"""Largest number of states per work unit of several texts: some seconds on a GPU, and a bound on memory."""
PROBED = (64, 256, 1024)
"""States that are timed, one number after another, to estimate how long a large census takes."""
PROBE_S = 0.5
"""Seconds of a probe after which no larger one is needed."""
HELD = 80
"""Bytes of memory per position and state at the peak: statistics while evaluating, subsets afterwards."""
_log = logging.getLogger(__name__)


def census_job(
    model: ModelLike,
    samples: Iterable[Sample],
    orders: Orders,
    options: Computing,
    *,
    span: int = 10,
    start: int = 0,
    positions: Sequence[int] = (),
    spans: int | None = None,
    allow_short: bool = False,
    chat: bool = False,
    yes: bool = False,
) -> Job:
    """Return the job of evaluating all states of spans of fixed targets.

    Args:
        model: the model.
        samples: texts with targets.
        orders: rules whose paths are looked up; forced-ar where none is given.
        options: how to lay out and cut the work.
        span: positions of each span.
        start: offset in the target at which the span starts.
        positions: offsets of the span's positions in the target, instead.
        spans: number of spans to spread over each target, instead.
        allow_short: shorten spans that end past their target, instead of refusing them.
        chat: put each prompt in the model's chat template.
        yes: start however many states there are.
    """
    size = len(positions) or span
    if not 1 <= size <= LARGEST_SPAN:
        why = f"must be from 1 to {LARGEST_SPAN}: a span has 2^span states; several spans cost far less"
        raise BadValueError("span", size, why)
    chosen = parse_policies(orders or "forced-ar")
    for policy in chosen:
        policy.refuse_to_score()
    loaded = options.load(model)
    encoded = encode_samples(loaded, in_chat(loaded, samples) if chat else samples, need_target=True)
    job = make_job(
        "census",
        loaded,
        chosen,
        encoded,
        options,
        unit_size=_unit_size(loaded, options, (1 << size) * (spans or 1), encoded),
        span=size,
        spans=spans,
        start=None if spans or positions else start,
        positions=tuple(sorted(positions)) or None,
        chat=chat or None,
    )
    return _with_spans(job, allow_short, yes)


def _with_spans(job: Job, allow_short: bool, yes: bool) -> Job:
    """Lay the spans into the texts; refuse those that do not fit, and large ones that are not confirmed."""
    whole = Unit(tuple(job.samples))
    places = [
        {"spans": _places(job.spec, sample, canvas, allow_short)}
        for sample, canvas in zip(job.samples, canvases(job.spec, whole), strict=True)
    ]
    found = unit_spans(job.spec, replace(whole, extras=tuple(places)))
    ids = set[str]()
    for span in found:
        span.refuse_misfit()
        if span.id in ids:
            raise UserInputError(f"sample id '{span.text.id}' occurs in two tasks; a census needs unique ids")
        ids.add(span.id)
    if max(span.size for span in found) > LARGEST_UNASKED:
        cost = _cost(job.model, found)
        if not yes:
            raise UserInputError(f"{cost}; add --yes (yes=True) to start, or use a smaller --span")
        _log.warning("%s", cost)
    return replace(job, extras=places)


def _places(spec: RunSpec, sample: EncodedSample, canvas: Canvas, allow_short: bool) -> list[tuple[int, ...]]:
    """Return the offsets of each span of one text."""
    size, length = spec.span or 0, len(sample.target)
    if spec.spans is not None:
        size = min(size, length) if allow_short else size
        return spread_spans(sample, canvas, size, spec.spans)
    offsets = spec.positions or tuple(range(spec.start or 0, (spec.start or 0) + size))
    if not allow_short:
        return [offsets]
    if offsets[0] >= length:
        raise UserInputError(
            f"sample '{sample.id}': its target of {length} tokens has no position {offsets[0]}; use a "
            "smaller --start, other --positions, or leave the text out"
        )
    end = _block_end(sample, canvas, offsets[0])
    return [tuple(offset for offset in offsets if offset < min(length, end))]


def _block_end(sample: EncodedSample, canvas: Canvas, offset: int) -> int:
    """Return the offset in the target at which the block of an offset ends."""
    return Span(sample, canvas, (offset,), "").block_start + canvas.block_size - len(sample.prompt)


def spread_spans(sample: EncodedSample, canvas: Canvas, size: int, count: int) -> list[tuple[int, ...]]:
    """Return ``count`` spans, evenly chosen among those that tile the blocks of the target."""
    tiles, start = list[int](), 0
    while start + size <= len(sample.target):
        end = _block_end(sample, canvas, start)
        tiles += [start] if start + size <= end else []
        start = start + size if start + size <= end else end
    if len(tiles) < count:
        raise UserInputError(
            f"sample '{sample.id}': its target of {len(sample.target)} tokens in blocks of "
            f"{canvas.block_size} has room for {counted(len(tiles), 'span')} of {size} positions, not "
            f"{count}; use fewer --spans or a smaller --span"
        )
    chosen = np.linspace(0, len(tiles) - 1, count).astype(int)
    return [tuple(range(tiles[place], tiles[place] + size)) for place in chosen]


def unit_spans(spec: RunSpec, unit: Unit) -> list[Span]:
    """Return the spans of a unit's texts; where a text may have several, their ids say where they start."""
    return [
        Span(sample, canvas, tuple(span), sample.id if spec.spans is None else f"{sample.id}@{span[0]}")
        for sample, canvas, extra in zip(unit.samples, canvases(spec, unit), unit.extras, strict=True)
        for span in extra["spans"]
    ]


def census_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Evaluate all states of the unit's spans and walk its rules through them."""
    orders, spans = context.orders_of(spec, unit), unit_spans(spec, unit)
    log_p, columns = census_batch(model, spans, orders, context.on_reveals, context.limit)
    labels = TraceLabels([span.sample for span in spans], orders, None, None)
    return lambda: {
        "reveals": reveal_table(columns, labels, model, float_type(model)),
        "outputs": scored_outputs(model, labels),
        "census": _census_table(spans, log_p, float_type(model)),
    }


def _census_table(spans: Sequence[Span], tables: Sequence[FloatArray], kind: pa.DataType) -> pa.Table:
    """Return the ``census`` rows of spans."""
    lists = pa.array([table.ravel() for table in tables], pa.list_(pa.float64()))
    columns = {
        "sample_id": [span.id for span in spans],
        "task": [span.text.task for span in spans],
        "text_id": [span.text.id for span in spans],
        "start": [span.offsets[0] for span in spans],
        "positions": [span.positions for span in spans],
        "log_p": lists.cast(pa.list_(kind)),
    }
    return pa.table(columns, schema=table_schema("census", real=kind))


def _unit_size(model: Model, options: Computing, states: int, samples: Sequence[EncodedSample]) -> int:
    """Return how many texts of ``states`` states each make a work unit of some seconds."""
    most = max(1, UNIT_STATES // states)
    if not options.stays_on_cpu(model):
        return most
    most = min(DEFAULT_BATCH, most)
    if not isinstance(model, CountsParameters):
        return most
    longest = max(len(item.prompt) + len(item.target) + len(item.suffix) for item in samples)
    width = longest if model.attention == "full" else model.block_size
    seconds = 2 * model.n_parameters * width * states / CPU_FLOPS
    return min(most, max(1, int(CPU_UNIT_S / seconds)))


def _cost(model: Model, spans: Sequence[Span]) -> str:
    """Say how many states, bytes and minutes a census takes, by timing a few states of a largest span."""
    states = sum(span.n_states for span in spans)
    each = 8 if model.precision == "float64" else 4
    stored = sum(span.size << span.size for span in spans) * each
    held = max(span.size << span.size for span in spans) * HELD
    largest = max(spans, key=lambda span: span.size)
    minutes = states * _seconds_each(model, largest) / 60
    return (
        f"{counted(len(spans), 'span')} of up to {largest.size} positions: {states:,} states, "
        f"{stored / 1e6:,.1f} MB stored, {held / 1e6:,.0f} MB of memory per span, about "
        f"{max(minutes, 0.1):,.1f} minutes here"
    )


def _seconds_each(model: Model, span: Span) -> float:
    """Return the time of one state: more and more states are timed until that takes long enough."""
    evaluate_spans(model, [span], BatchLimit(STATES_AT_ONCE), n_states=PROBED[0])  # warms up
    each = 0.0
    for count in PROBED:
        begin = time.perf_counter()
        evaluate_spans(model, [span], BatchLimit(STATES_AT_ONCE), n_states=count)
        each = (time.perf_counter() - begin) / count
        if each * count > PROBE_S:
            break
    return each
