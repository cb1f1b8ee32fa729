"""Computes the tables of one work unit: ``decode_unit`` does the part that needs the model.

The functions take plain data, so any process can call them; ``open_model`` loads the model that a spec names.
Only this module calls the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from orderlens.common.grid import Canvas
from orderlens.decode.batches import BatchLimit
from orderlens.decode.census import STATES_AT_ONCE
from orderlens.decode.chains import Watch
from orderlens.decode.couplings import coupling_table
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.measure import circulation_table, noise_table, rescorings
from orderlens.decode.passes import Columns, StateRecorder
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import plan_canvases
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.registry import Registry
from orderlens.rules import Policy, parse_policies
from orderlens.runs.options import with_block_size
from orderlens.runs.spec import RunSpec, Unit, refuse_changed_files, refuse_other_model
from orderlens.runs.tables import (
    TraceLabels,
    float_type,
    generated_outputs,
    reveal_table,
    revision_table,
    scored_outputs,
    state_table,
    token_table,
)
from orderlens.texts.samples import EncodedSample

Tables: TypeAlias = dict[str, pa.Table]
BuildTables: TypeAlias = Callable[[], Tables]
"""Builds the tables of a decoded unit; called once, in any thread."""


@dataclass(frozen=True, slots=True)
class ComputeContext:
    """Objects of the computing process that are not part of a unit; all are optional.

    Attributes:
        orders: policy objects by spec, for rules that are not registered.
        limit: number of sequences that fit in memory, as measured so far.
        on_reveals: called with the number of new reveals.
        watch: receives texts while they are decoded.
        pieces: cache of the texts of token ids.
    """

    orders: dict[str, Policy] = field(default_factory=dict)
    limit: BatchLimit | None = None
    on_reveals: Callable[[int], None] | None = None
    watch: Watch | None = None
    pieces: dict[int, str | None] = field(default_factory=dict)

    def orders_of(self, spec: RunSpec, unit: Unit) -> list[Policy]:
        """Return the unit's policies as objects."""
        wanted = spec.orders if unit.orders is None else unit.orders
        policies = parse_policies([self.orders.get(name, name) for name in wanted])
        for policy in policies:
            refuse_changed_files(spec.files, policy.files)
        return policies


Kind: TypeAlias = Callable[[RunSpec, Unit, Model, ComputeContext], BuildTables]
KINDS: Registry[Kind] = Registry(
    "kind of run",
    {
        "score": "orderlens.runs.compute:score_unit",
        "generate": "orderlens.runs.compute:generate_unit",
        "measure": "orderlens.runs.compute:measure_unit",
        "evaluate": "orderlens.tasks.evaluation.grading:evaluate_unit",
        "census": "orderlens.runs.census:census_unit",
        "census-texts": "orderlens.tasks.evaluation.texts:texts_unit",
    },
)
"""Kind of run → function that decodes a unit of it."""


def compute(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext | None = None) -> Tables:
    """Return the tables of one unit; they depend on ``spec``, ``unit`` and the model's weights only."""
    return decode_unit(spec, unit, model, context or ComputeContext())()


def decode_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Decode one unit and return the function that builds its tables; the model is then free."""
    build = KINDS.get(spec.kind)(spec, unit, model, context)

    def finish() -> Tables:
        tables = build()
        return tables | (
            {"tokens": token_table(model, tables, context.pieces)} if "outputs" in tables else {}
        )

    return finish


def open_model(
    spec: RunSpec, *, name: str | None = None, device: str | None = None, dtype: str | None = None
) -> Model:
    """Load the model of ``spec`` with its format of weights; ``name`` is its name here, if it differs.

    Raises:
        RunError: the loaded model has other weights or another precision.
    """
    weights = spec.model.get("weights")
    model = load_model(name or str(spec.model["name"]), device=device, dtype=dtype, weights=weights)
    model = with_block_size(model, spec.block_size)
    refuse_other_model(spec, model)
    return model


def score_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Score a batch of targets; measure circulation, couplings and noise floor if requested."""
    orders = context.orders_of(spec, unit)
    limit = context.limit or _limit(spec, unit, model)
    recorder = StateRecorder() if spec.limit_states is not None else None
    advance = _with_rescorings(spec, model, context.on_reveals)
    columns = score_batch(model, unit.samples, orders, spec.anchor, advance, limit, recorder=recorder)
    labels = TraceLabels(unit.samples, orders, None, None)
    measured = _measurements(spec, unit, model, orders, columns, limit, advance)
    return lambda: {
        "reveals": reveal_table(columns, labels, model, float_type(model)),
        "outputs": scored_outputs(model, labels),
        **measured,
        **_kept_states(spec, recorder, labels),
    }


def _kept_states(spec: RunSpec, recorder: StateRecorder | None, labels: TraceLabels) -> Tables:
    if recorder is None or spec.limit_states is None:
        return {}
    return {"states": state_table(recorder.columns(spec.limit_states), labels)}


def measure_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Measure circulation and noise floor of a batch without storing its traces."""
    orders = context.orders_of(spec, unit)
    limit = context.limit or _limit(spec, unit, model)
    advance = _with_rescorings(spec, model, context.on_reveals)
    columns = score_batch(model, unit.samples, orders, spec.anchor, advance, limit)
    measured = _measurements(spec, unit, model, orders, columns, limit, advance)
    return lambda: measured


def _with_rescorings(
    spec: RunSpec, model: Model, on_reveals: Callable[[int], None] | None
) -> Callable[[int], None] | None:
    """Return a callback that reports a token once it is scored as often as the noise floor needs."""
    if on_reveals is None or not _measures_noise(spec):
        return on_reveals
    times, scored = 1 + rescorings(model), 0

    def advance(count: int) -> None:
        nonlocal scored
        before, scored = scored // times, scored + count
        on_reveals(scored // times - before)

    return advance


def _measures_noise(spec: RunSpec) -> bool:
    return bool(spec.noise_floor) or spec.kind == "measure"


def generate_unit(spec: RunSpec, unit: Unit, model: Model, context: ComputeContext) -> BuildTables:
    """Decode a batch of prompts."""
    orders = context.orders_of(spec, unit)
    settings = settings_of(spec, unit)
    limit = context.limit or _limit(spec, unit, model)
    recorder = StateRecorder() if spec.limit_states is not None else None
    generation = generate_batch(
        model, unit.samples, orders, settings, context.on_reveals, limit, context.watch, recorder
    )
    sample_seed = settings.sample_seed if settings.temperature > 0 else None
    labels = TraceLabels(unit.samples, orders, settings.temperature, sample_seed)

    def finish() -> Tables:
        tables = {
            "reveals": reveal_table(generation.columns, labels, model, float_type(model)),
            "outputs": generated_outputs(model, labels, generation.chains),
        }
        if any(policy.revise is not None for policy in orders):
            tables["revisions"] = revision_table(generation.revisions, labels, float_type(model))
        return tables | _kept_states(spec, recorder, labels)

    return finish


def score_left_to_right(
    model: Model, samples: Sequence[EncodedSample], anchor: Anchor | None
) -> list[list[float]]:
    """Return the log-probability of every target token (nats) in forced order, for each sample."""
    columns = score_batch(model, samples, parse_policies("forced-ar"), anchor)
    owner, logq = np.asarray(columns["sample"]), np.asarray(columns["logq"], np.float64)
    return [logq[owner == index].tolist() for index in range(len(samples))]


def settings_of(spec: RunSpec, unit: Unit) -> GenerationSettings:
    """Return the generation settings of a unit."""
    assert spec.max_new_tokens is not None
    assert unit.temperature is not None
    return GenerationSettings(
        spec.max_new_tokens,
        unit.temperature,
        spec.seed or 0,
        spec.stop_at_eos is not False,
        spec.anchor,
        spec.overflow or "fill",
    )


def planned_reveals(spec: RunSpec, unit: Unit) -> int:
    """Return the maximum number of progress steps of a unit; canvases are rounded up to whole blocks."""
    if spec.kind == "census-texts":
        return len(unit.samples)
    if spec.kind == "census":
        return sum((1 << len(span)) - 1 for extra in unit.extras for span in extra["spans"])
    n_orders = len(spec.orders if unit.orders is None else unit.orders)
    if spec.max_new_tokens is None:
        return n_orders * sum(len(sample.target) for sample in unit.samples)
    return n_orders * sum(canvas.fill_end - canvas.prompt_length for canvas in canvases(spec, unit))


def longest_canvas(items: Iterable[tuple[RunSpec, Unit]]) -> int:
    """Return the length of the longest canvas; 0 if the model chooses where grids start."""
    found = (canvas for spec, unit in items if spec.anchor is not None for canvas in canvases(spec, unit))
    return max((max(canvas.end, canvas.total) for canvas in found), default=0)


def canvases(spec: RunSpec, unit: Unit) -> list[Canvas]:
    """Return the canvas of each sample of the unit."""
    assert spec.anchor is not None
    overflow = spec.overflow or "fill"
    return plan_canvases(spec.block_size, unit.samples, spec.anchor, spec.max_new_tokens, overflow)


def batch_limit(kind: str, model: Model, longest: int) -> BatchLimit | None:
    """Return the first batch size in sequences; None leaves it to each unit."""
    if kind == "measure":  # a few short texts with the model's own anchor
        return None
    return BatchLimit(STATES_AT_ONCE) if kind == "census" else BatchLimit.suggested(model, longest)


def _limit(spec: RunSpec, unit: Unit, model: Model) -> BatchLimit:
    return BatchLimit.suggested(model, longest_canvas([(spec, unit)]))


def _measurements(
    spec: RunSpec,
    unit: Unit,
    model: Model,
    orders: Sequence[Policy],
    columns: Columns,
    limit: BatchLimit | None = None,
    on_reveals: Callable[[int], None] | None = None,
) -> Tables:
    tables: Tables = {}
    if spec.circulation is not None:
        tables["circulation"] = circulation_table(
            model, unit.samples, orders, columns, spec.circulation, anchor=spec.anchor
        )
    if spec.couplings is not None:
        tables["couplings"] = coupling_table(
            model, unit.samples, orders, columns, spec.couplings, anchor=spec.anchor, limit=limit
        )
    if _measures_noise(spec):
        tables["noise"] = noise_table(
            model, unit.samples, orders, columns, anchor=spec.anchor, limit=limit, on_reveals=on_reveals
        )
    return tables
