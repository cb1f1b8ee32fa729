"""``compute``: the tables of one unit, from its spec and a model; ``begin``: only what needs the model.

A module-level function over plain data: every engine calls it, in this process or in another one, where
``open_model`` loads the model that the spec names. The decoder is called here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from orderlens.common.grid import Canvas
from orderlens.decode.batches import BatchLimit
from orderlens.decode.chains import Watch
from orderlens.decode.couplings import coupling_table
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.measure import PERTURBATIONS, circulation_table, noise_table
from orderlens.decode.passes import Columns
from orderlens.decode.score import score_batch
from orderlens.decode.target_states import plan_canvases
from orderlens.models.loading import load_model
from orderlens.models.protocol import Anchor, Model
from orderlens.registry import Registry
from orderlens.rules import Policy, parse_policies
from orderlens.runs.options import with_block_size
from orderlens.runs.spec import RunSpec, refuse_other_model
from orderlens.runs.tables import (
    TraceLabels,
    float_type,
    generated_outputs,
    reveal_table,
    revision_table,
    scored_outputs,
    token_table,
)
from orderlens.runs.units import Unit
from orderlens.texts.samples import EncodedSample

Tables: TypeAlias = dict[str, pa.Table]
Finish: TypeAlias = Callable[[], Tables]
"""Makes the tables of what was decoded, once, in whatever thread."""


@dataclass(frozen=True, slots=True)
class Local:
    """What only the computing process has; all of it may be left out.

    Attributes:
        orders: policy objects by spec, where a rule is in no registry.
        limit: how many sequences fit in memory, as learned so far.
        on_reveals: is told of every advance.
        watch: is shown texts while they are decoded.
        pieces: texts of token ids, as far as they were needed.
    """

    orders: dict[str, Policy] = field(default_factory=dict)
    limit: BatchLimit | None = None
    on_reveals: Callable[[int], None] | None = None
    watch: Watch | None = None
    pieces: dict[int, str | None] = field(default_factory=dict)

    def orders_of(self, spec: RunSpec, unit: Unit) -> list[Policy]:
        """Return the unit's policies as objects."""
        wanted = spec.orders if unit.orders is None else unit.orders
        return parse_policies([self.orders.get(name, name) for name in wanted])


Kind: TypeAlias = Callable[[RunSpec, Unit, Model, Local], Finish]
KINDS: Registry[Kind] = Registry(
    "kind of run",
    {
        "score": "orderlens.runs.compute:score_unit",
        "generate": "orderlens.runs.compute:generate_unit",
        "measure": "orderlens.runs.compute:measure_unit",
        "evaluate": "orderlens.tasks.evaluation.grading:evaluate_unit",
    },
)
"""How the units of a kind of run are computed."""


def compute(spec: RunSpec, unit: Unit, model: Model, local: Local | None = None) -> Tables:
    """Return the tables of one unit; they depend on ``spec``, ``unit`` and the model's weights only."""
    return begin(spec, unit, model, local or Local())()


def begin(spec: RunSpec, unit: Unit, model: Model, local: Local) -> Finish:
    """Decode one unit and return what makes its tables, so that the model need not wait for that."""
    found = KINDS.get(spec.kind)(spec, unit, model, local)

    def finish() -> Tables:
        tables = found()
        return tables | ({"tokens": token_table(model, tables, local.pieces)} if "outputs" in tables else {})

    return finish


def open_model(
    spec: RunSpec, *, name: str | None = None, device: str | None = None, dtype: str | None = None
) -> Model:
    """Load the model that ``spec`` names, or the same under the ``name`` it has on this machine.

    Raises:
        RunError: what is loaded under that name has other weights or another precision.
    """
    model = load_model(name or str(spec.model["name"]), device=device, dtype=dtype)
    model = with_block_size(model, spec.block_size)
    refuse_other_model(spec, model)
    return model


def score_unit(spec: RunSpec, unit: Unit, model: Model, local: Local) -> Finish:
    """Score a batch of targets; measure circulation, couplings and noise floor where asked for."""
    orders = local.orders_of(spec, unit)
    limit = local.limit or _limit(spec, unit, model)
    columns = score_batch(model, unit.samples, orders, spec.anchor, local.on_reveals, limit)
    labels = TraceLabels(unit.samples, orders, None, None)
    measured = _measurements(spec, unit, model, orders, columns, limit)
    return lambda: {
        "reveals": reveal_table(columns, labels, model, float_type(model)),
        "outputs": scored_outputs(model, labels),
        **measured,
    }


def measure_unit(spec: RunSpec, unit: Unit, model: Model, local: Local) -> Finish:
    """Measure circulation and noise floor of a batch without keeping its traces."""
    orders = local.orders_of(spec, unit)
    limit, tell = local.limit or _limit(spec, unit, model), _shares(spec, unit, local)
    columns = score_batch(model, unit.samples, orders, spec.anchor, limit=limit)
    tell()
    measured = _measurements(spec, unit, model, orders, columns, limit, tell)
    return lambda: measured


def _shares(spec: RunSpec, unit: Unit, local: Local) -> Callable[[], None]:
    """Return what tells that one of the parts of measuring is done: each is an equal share of the unit."""
    parts, total, done = PERTURBATIONS + 2, reveals_ahead(spec, unit), count(1)

    def tell() -> None:
        now = next(done)
        if local.on_reveals is not None:
            local.on_reveals(total * now // parts - total * (now - 1) // parts)

    return tell


def generate_unit(spec: RunSpec, unit: Unit, model: Model, local: Local) -> Finish:
    """Decode a batch of prompts."""
    orders = local.orders_of(spec, unit)
    settings = settings_of(spec, unit)
    limit = local.limit or _limit(spec, unit, model)
    generation = generate_batch(model, unit.samples, orders, settings, local.on_reveals, limit, local.watch)
    sample_seed = settings.sample_seed if settings.temperature > 0 else None
    labels = TraceLabels(unit.samples, orders, settings.temperature, sample_seed)

    def finish() -> Tables:
        tables = {
            "reveals": reveal_table(generation.columns, labels, model, float_type(model)),
            "outputs": generated_outputs(model, labels, generation.chains),
        }
        if any(policy.revise is not None for policy in orders):
            tables["revisions"] = revision_table(generation.revisions, labels, float_type(model))
        return tables

    return finish


def score_left_to_right(
    model: Model, samples: Sequence[EncodedSample], anchor: Anchor | None
) -> list[list[float]]:
    """Return the log-probability of every target token (nats) in forced order, for each sample."""
    columns = score_batch(model, samples, parse_policies("forced-ar"), anchor)
    owner, logq = np.asarray(columns["sample"]), np.asarray(columns["logq"], np.float64)
    return [logq[owner == index].tolist() for index in range(len(samples))]


def settings_of(spec: RunSpec, unit: Unit) -> GenerationSettings:
    """Return how the unit's texts are decoded."""
    assert spec.max_new_tokens is not None
    assert unit.temperature is not None
    return GenerationSettings(
        spec.max_new_tokens, unit.temperature, spec.seed or 0, spec.stop_at_eos is not False, spec.anchor
    )


def reveals_ahead(spec: RunSpec, unit: Unit) -> int:
    """Return how many progress steps a unit takes at most: canvases are rounded up to whole blocks."""
    if spec.kind == "measure":
        return sum(len(sample.target) for sample in unit.samples)
    n_orders = len(spec.orders if unit.orders is None else unit.orders)
    if spec.max_new_tokens is None:
        return n_orders * sum(len(sample.target) for sample in unit.samples)
    return n_orders * sum(canvas.fill_end - canvas.prompt_length for canvas in canvases(spec, unit))


def longest_canvas(items: Iterable[tuple[RunSpec, Unit]]) -> int:
    """Return the positions of the longest canvas; 0 where the model itself decides where grids start."""
    found = (canvas for spec, unit in items if spec.anchor is not None for canvas in canvases(spec, unit))
    return max((max(canvas.end, canvas.total) for canvas in found), default=0)


def canvases(spec: RunSpec, unit: Unit) -> list[Canvas]:
    """Return the positions that each sample of the unit takes."""
    assert spec.anchor is not None
    return plan_canvases(spec.block_size, unit.samples, spec.anchor, spec.max_new_tokens)


def _limit(spec: RunSpec, unit: Unit, model: Model) -> BatchLimit:
    return BatchLimit.suggested(model, longest_canvas([(spec, unit)]))


def _measurements(
    spec: RunSpec,
    unit: Unit,
    model: Model,
    orders: Sequence[Policy],
    columns: Columns,
    limit: BatchLimit | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Tables:
    tables: Tables = {}
    if spec.circulation is not None:
        tables["circulation"] = circulation_table(
            model, unit.samples, orders, columns, spec.circulation, anchor=spec.anchor
        )
    tell()
    if spec.couplings is not None:
        tables["couplings"] = coupling_table(
            model, unit.samples, orders, columns, spec.couplings, anchor=spec.anchor, limit=limit
        )
    if spec.noise_floor or spec.kind == "measure":
        tables["noise"] = noise_table(
            model, unit.samples, orders, columns, anchor=spec.anchor, limit=limit, tell=tell
        )
    return tables
