"""Statistics per trace, computed chunk by chunk; the definitions are those of ``metrics.segments``.

``likelihood`` says what a trace's summed log q is for the sampler that its policy defines. The run's spec
says so; where it does not, it follows from the policy, if its code is installed. ``n_forwards`` follows from
the counted reveals and ``n_passes`` from all of them, but for policies that revise ``outputs`` states both:
passes that reveal nothing count as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.errors import OrderLensError
from orderlens.metrics.segments import Segments, trace_stats
from orderlens.store.codec import trace_starts
from orderlens.store.frame import fitted
from orderlens.store.schema import SCHEMAS, TRACE_KEY
from orderlens.store.sources import Source

KEYS = tuple(name for name in SCHEMAS["reveals"].names if name in TRACE_KEY)
"""The trace key in the order of columns."""
TRACE_COLUMNS = (*KEYS, "logq", "forward", "is_eos", "is_special", "is_overflow", "n_lookahead")
"""Columns of ``reveals`` that ``samples_of`` reads."""

SAMPLES_SCHEMA = pa.schema(
    [pa.field(name, SCHEMAS["reveals"].field(name).type) for name in KEYS]
    + [
        pa.field("n", pa.int64()),
        pa.field("mean", pa.float64()),
        pa.field("var", pa.float64()),
        pa.field("n_content", pa.int64()),
        pa.field("content_mean", pa.float64()),
        pa.field("content_var", pa.float64()),
        pa.field("log_prob", pa.float64()),
        pa.field("n_eos", pa.int64()),
        pa.field("n_overflow", pa.int64()),
        pa.field("n_forwards", pa.int64()),
        pa.field("n_passes", pa.int64()),
        pa.field("n_lookahead", pa.int64()),
        pa.field("likelihood", pa.string()),
    ]
)
Passes: TypeAlias = Mapping[tuple[Any, ...], int]
"""Trace key → forward passes, of the traces whose reveals do not tell."""
DRAWN = "|drawn"
"""Ending of a label in a spec's ``likelihood`` whose value holds at temperatures above 0 only."""


def samples_schema(*, run: bool) -> pa.Schema:
    """Return the columns of ``samples``, with or without the run's name before them."""
    return SAMPLES_SCHEMA.insert(0, pa.field("run", pa.string())) if run else SAMPLES_SCHEMA


def sample_chunks(sources: Mapping[str, Source], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield one row per trace of runs by name, as the reveals are read, with the columns of ``schema``."""
    for run, source in sources.items():
        passes = stated_passes(source)
        for chunk in source.traces(TRACE_COLUMNS, dictionaries=True):
            yield fitted(samples_of(chunk, source.spec, passes), schema, run)


def stated_passes(source: Source) -> Passes:
    """Return the forward passes that a run's ``outputs`` state."""
    names = source.schema("outputs").names if "outputs" in source.tables() else []
    found: dict[tuple[Any, ...], int] = {}
    if "n_forwards" in names:
        for table in source.scan("outputs", [name for name in (*KEYS, "n_forwards") if name in names]):
            if "n_forwards" in table.column_names:  # an older part lacks it
                for row in table.filter(table["n_forwards"].is_valid()).to_pylist():
                    found[tuple(row.get(name) for name in KEYS)] = int(row["n_forwards"])
    return found


def samples_of(table: pa.Table, spec: Mapping[str, Any], passes: Passes) -> pa.Table:
    """Return one row per trace of a chunk of whole, contiguous traces of the run with ``spec``.

    Args:
        table: the chunk, with at least ``TRACE_COLUMNS``.
        spec: of the run.
        passes: of ``stated_passes``.
    """
    if not table.num_rows:
        return SAMPLES_SCHEMA.empty_table()
    starts = trace_starts(table)
    keys = table.select(list(KEYS)).take(starts)
    whole = Segments(np.append(starts, table.num_rows).astype(np.int64))
    counted = ~flag(table, "is_overflow")
    eos, special = flag(table, "is_eos"), flag(table, "is_special")
    logq, forward = table["logq"].to_numpy(), table["forward"].to_numpy()
    n_overflow = whole.total(~counted).astype(np.int64)
    n_passes = np.asarray(whole.reduce(np.maximum, forward, -1), np.int64) + 1
    n_lookahead = whole.total(_counts(table, "n_lookahead") * counted).astype(np.int64)
    if not counted.all():
        eos, special, logq, forward = (item[counted] for item in (eos, special, logq, forward))
        whole = whole.kept(counted)
    found = trace_stats(logq, eos, ~eos & ~special, forward, whole)
    found |= {"n_overflow": n_overflow, "n_passes": n_passes, "n_lookahead": n_lookahead}
    columns = {name: keys[name].cast(SAMPLES_SCHEMA.field(name).type) for name in KEYS}
    if passes:
        known = [passes.get(tuple(row[name] for name in KEYS), -1) for row in keys.to_pylist()]
        for name in ("n_forwards", "n_passes"):
            found[name] = np.maximum(found[name], known)
    columns |= {name: pa.array(values) for name, values in found.items()}
    stated = spec.get("likelihood")
    pairs = zip(columns["order"].to_pylist(), columns["temperature"].to_pylist(), strict=True)
    columns["likelihood"] = pa.array([likelihood(stated, *pair) for pair in pairs], pa.string())
    return pa.table([columns[name] for name in SAMPLES_SCHEMA.names], schema=SAMPLES_SCHEMA)


def flag(table: pa.Table, name: str) -> NDArray[np.bool_]:
    """Return a flag column with null as False, shape [rows]."""
    column = table[name]
    if column.null_count == len(column):
        return np.zeros(len(column), bool)
    return np.asarray((column.fill_null(False) if column.null_count else column).to_numpy(), bool)


def _counts(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of counts with null as 0, shape [rows]."""
    column = table[name]
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    return np.asarray(column.fill_null(0).to_numpy(), np.int64)


def likelihood(stated: Mapping[str, str] | None, label: str, temperature: float | None) -> str | None:
    """Return ``exact``, ``estimate`` or ``none``; None where it is not known.

    Args:
        stated: the spec's own record by label, if it has one.
        label: of the policy.
        temperature: None or NaN when scoring.
    """
    drawn = temperature is not None and temperature > 0
    if stated is None:
        return _implied(label, drawn)
    return stated.get(f"{label}{DRAWN}", stated.get(label)) if drawn else stated.get(label)


@lru_cache(maxsize=1024)
def _implied(label: str, drawn: bool) -> str | None:
    """Return what follows from the policy; None where its code is not installed."""
    from orderlens.rules import parse_policy

    try:
        return parse_policy(label).likelihood(1.0 if drawn else None)
    except OrderLensError:
        return None


@lru_cache(maxsize=1024)
def label_and_seed(spec: str) -> tuple[str, int | None]:
    """Return label and seed of an order's spec as traces hold them; the spec where it is not installed."""
    from orderlens.rules import parse_policy

    try:
        policy = parse_policy(spec)
    except OrderLensError:
        return spec, None
    return policy.label, policy.seed


def order_labels(orders: Iterable[object]) -> list[str]:
    """Return the labels of orders' specs, sorted."""
    return sorted({label_and_seed(str(spec))[0] for spec in orders})
