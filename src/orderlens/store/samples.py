"""``samples``: one row per trace of a run, computed chunk by chunk by ``metrics.trace_table``.

``likelihood`` says what a trace's summed log q is for the sampler that its policy defines. The run's spec
says so; where it does not, it follows from the policy, if its code is installed. Passes of traces with
revisions come from ``outputs`` and ``revisions``: those that reveal nothing count as well.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from orderlens.errors import OrderLensError
from orderlens.metrics.segments import AnyArray, Segments
from orderlens.metrics.trace_table import CORE, FLAGS, GROUPS, TraceArrays, trace_table
from orderlens.store.codec import trace_starts
from orderlens.store.schema import SCHEMAS, TRACE_KEY
from orderlens.store.sources import Source

KEYS = tuple(name for name in SCHEMAS["reveals"].names if name in TRACE_KEY)
"""The trace key in the order of columns."""
CHUNK_ROWS = 1 << 18
"""Reveals that are worked on at a time: row groups of a run can be much smaller."""

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
        pa.field("n_passes", pa.int64()),
        pa.field("n_passes_requested", pa.int64()),
        pa.field("n_passes_lookahead", pa.int64()),
        pa.field("likelihood", pa.string()),
    ]
)
"""Columns without any group of further statistics."""
Passes: TypeAlias = Mapping[tuple[Any, ...], int]
"""Trace key → forward passes."""
DRAWN = "|drawn"
"""Ending of a label in a spec's ``likelihood`` whose value holds at temperatures above 0 only."""


@lru_cache
def samples_schema(*groups: str, run: bool) -> pa.Schema:
    """Return the columns of ``samples`` with groups of statistics, with or without the run before them."""
    empty = SCHEMAS["reveals"].empty_table().select(columns_read(groups))
    schema = samples_of(empty, {}, {}, groups).schema
    return schema.insert(0, pa.field("run", pa.string())) if run else schema


def columns_read(groups: Collection[str]) -> list[str]:
    """Return the columns of ``reveals`` that the table with these groups of statistics reads."""
    return list(dict.fromkeys((*KEYS, *CORE, *(name for group in groups for name in GROUPS[group]))))


def sample_chunks(sources: Mapping[str, Source], groups: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield one row per trace of runs by name, in the order of the store, with the run's name first.

    Args:
        sources: the runs.
        groups: further statistics, of ``metrics.trace_table.GROUPS``.
    """
    for run, source in sources.items():
        work = partial(samples_of, spec=source.spec, passes=revising_passes(source), groups=groups)
        chunks = merged_chunks(source.traces(columns_read(groups), dictionaries=True))
        for table in _in_threads(work, chunks):
            yield table.add_column(0, "run", pa.repeat(run, table.num_rows))


def first_samples(sources: Mapping[str, Source]) -> pa.Table:
    """Return the rows of the traces that are read first, with the run's name."""
    for run, source in sources.items():
        chunk = next(source.traces(columns_read(())), None)
        if chunk is not None:
            table = samples_of(chunk, source.spec, {})
            return table.add_column(0, "run", pa.repeat(run, table.num_rows))
    return samples_schema(run=True).empty_table()


def merged_chunks(chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield neighbouring chunks together, about ``CHUNK_ROWS`` rows at a time."""
    waiting: list[pa.Table] = []
    for chunk in chunks:
        waiting.append(chunk)
        if sum(table.num_rows for table in waiting) >= CHUNK_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if any(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)


def _in_threads(work: Callable[[pa.Table], pa.Table], chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield ``work`` of each chunk in order, with a few in flight: numpy lets go of the interpreter."""
    count = min(2, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        running: deque[Future[pa.Table]] = deque()
        for chunk in chunks:
            running.append(pool.submit(work, chunk))
            if len(running) > count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def revising_passes(source: Source) -> Passes:
    """Return the passes of traces whose tokens are revised: as stated, or up to the last revision."""
    found: dict[tuple[Any, ...], int] = {}
    for name, column, offset in (("outputs", "n_passes", 0), ("revisions", "forward", 1)):
        if name not in source.tables() or column not in source.schema(name).names:
            continue
        for table in source.scan(name, [*KEYS, column]):
            if column in table.column_names:  # a part without any value leaves it out
                known = table.filter(table[column].is_valid()).group_by(KEYS).aggregate([(column, "max")])
                for row in known.to_pylist():
                    key = tuple(row[name] for name in KEYS)
                    found[key] = max(found.get(key, 0), row[f"{column}_max"] + offset)
    return found


def samples_of(
    table: pa.Table, spec: Mapping[str, Any], passes: Passes, groups: Collection[str] = ()
) -> pa.Table:
    """Return one row per trace of a chunk of whole, contiguous traces of the run with ``spec``.

    Args:
        table: the chunk, with at least ``columns_read(groups)``.
        spec: of the run.
        passes: of ``revising_passes``.
        groups: further statistics, of ``metrics.trace_table.GROUPS``.
    """
    whole = Segments(np.append(trace_starts(table), table.num_rows))
    keys = table.select(list(KEYS)).take(pa.array(whole.starts))
    columns = {name: keys[name].cast(SAMPLES_SCHEMA.field(name).type) for name in KEYS}
    known = None
    if passes:
        rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        known = np.array([passes.get(row, 0) for row in rows], np.int64)
    found = trace_table(trace_arrays(table, whole, known), groups)
    columns |= {name: pa.array(values) for name, values in found.items()}
    stated = spec.get("likelihood")
    pairs = zip(columns["order"].to_pylist(), columns["temperature"].to_pylist(), strict=True)
    columns["likelihood"] = pa.array([likelihood(stated, *pair) for pair in pairs], pa.string())
    further = [name for name in columns if name not in SAMPLES_SCHEMA.names]
    return pa.table({name: columns[name] for name in (*SAMPLES_SCHEMA.names, *further)})


def trace_arrays(table: pa.Table, whole: Segments, known_S: AnyArray | None = None) -> TraceArrays:
    """Return a chunk of traces as arrays; see ``TraceArrays.of``."""
    names = [name for name in table.column_names if name not in (*KEYS, "run", "step")]
    return TraceArrays.of({name: _array(table[name], name) for name in names}, whole, known_S)


def _array(column: pa.ChunkedArray, name: str) -> AnyArray:
    """Return a column as numbers: a flag without a value is false, any other number NaN."""
    if name in FLAGS:
        return np.asarray(column.fill_null(False).to_numpy(), bool)
    if pa.types.is_boolean(column.type) or name == "n_tied":
        column = column.cast(pa.float32())
    values = np.asarray(column.to_numpy())
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


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
