"""``samples``: one row per trace of a run, computed chunk by chunk by ``metrics.trace_table``.

``likelihood`` states whether a trace's summed log q is a likelihood of the sampler that its policy defines.
The value is in the run's spec; without it, it is derived from the policy, if its code is installed. A trace
that revealed a position past the requested length before a requested one has none. The
number of passes of traces with revisions comes from ``outputs`` and ``revisions``, because passes without a
reveal count too.

``content`` is what a sample's id stands for: its prompt and, where it was scored, its target. Two runs may
use one id for different texts, which tables and the display of a sample distinguish by content.
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
from orderlens.metrics.trace_table import CORE, FLAGS, GROUPS, ContentDrops, TraceArrays, trace_table
from orderlens.store.codec import trace_starts
from orderlens.store.schema import SCHEMAS, TRACE_KEY
from orderlens.store.sources import RunSource

KEYS = tuple(name for name in SCHEMAS["reveals"].names if name in TRACE_KEY)
"""The trace key, in column order."""
CHUNK_ROWS = 1 << 18
"""Reveals per chunk of work; row groups can be much smaller."""

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
        pa.field("n_overflow_before", pa.int64()),
        pa.field("n_passes", pa.int64()),
        pa.field("n_passes_requested", pa.int64()),
        pa.field("n_passes_lookahead", pa.int64()),
        pa.field("likelihood", pa.string()),
    ]
)
"""Columns without additional groups of statistics."""
Passes: TypeAlias = Mapping[tuple[Any, ...], int]
"""Trace key → number of forward passes."""
DRAWN = "|drawn"
"""Suffix of a label in a spec's ``likelihood`` for the value at temperatures above 0."""


@lru_cache
def samples_schema(*groups: str, run: bool) -> pa.Schema:
    """Return the schema of ``samples`` with groups of statistics; ``run`` adds the run column in front."""
    empty = SCHEMAS["reveals"].empty_table().select(columns_read(groups))
    schema = samples_of(empty, {}, {}, groups).schema
    return schema.insert(0, pa.field("run", pa.string())) if run else schema


def columns_read(groups: Collection[str]) -> list[str]:
    """Return the columns of ``reveals`` that the statistics of these groups need."""
    return list(dict.fromkeys((*KEYS, *CORE, *(name for group in groups for name in GROUPS[group]))))


def sample_chunks(
    sources: Mapping[str, RunSource], groups: Collection[str] = (), drops: ContentDrops = "special"
) -> Iterator[pa.Table]:
    """Yield one row per trace, in storage order, with the run's name as first column.

    Args:
        sources: the runs by name.
        groups: names of additional statistics, from ``metrics.trace_table.GROUPS``.
        drops: the tokens that content statistics leave out.
    """
    for run, source in sources.items():
        passes = revising_passes(source)
        work = partial(samples_of, spec=source.spec, passes=passes, groups=groups, drops=drops)
        chunks = merged_chunks(source.traces(columns_read(groups), dictionaries=True))
        for table in _in_threads(work, chunks):
            yield table.add_column(0, "run", pa.repeat(run, table.num_rows))


def first_samples(sources: Mapping[str, RunSource]) -> pa.Table:
    """Return the rows of the first chunk of traces, with the run's name."""
    for run, source in sources.items():
        chunk = next(source.traces(columns_read(())), None)
        if chunk is not None:
            table = samples_of(chunk, source.spec, {})
            return table.add_column(0, "run", pa.repeat(run, table.num_rows))
    return samples_schema(run=True).empty_table()


def merged_chunks(chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Merge consecutive chunks into chunks of about ``CHUNK_ROWS`` rows."""
    waiting: list[pa.Table] = []
    for chunk in chunks:
        waiting.append(chunk)
        if sum(table.num_rows for table in waiting) >= CHUNK_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if any(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)


def _in_threads(work: Callable[[pa.Table], pa.Table], chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield ``work(chunk)`` in order, computed by two threads: numpy releases the interpreter lock."""
    count = min(2, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        running: deque[Future[pa.Table]] = deque()
        for chunk in chunks:
            running.append(pool.submit(work, chunk))
            if len(running) > count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def revising_passes(source: RunSource) -> Passes:
    """Return the passes of traces with revisions: the stored number, or up to the last revision."""
    found: dict[tuple[Any, ...], int] = {}
    for name, column, offset in (("outputs", "n_passes", 0), ("revisions", "forward", 1)):
        if name not in source.tables() or column not in source.schema(name).names:
            continue
        for table in source.scan(name, [*KEYS, column]):
            if column in table.column_names:  # a part with only nulls does not store it
                known = table.filter(table[column].is_valid()).group_by(KEYS).aggregate([(column, "max")])
                for row in known.to_pylist():
                    key = tuple(row[name] for name in KEYS)
                    found[key] = max(found.get(key, 0), row[f"{column}_max"] + offset)
    return found


def samples_of(
    table: pa.Table,
    spec: Mapping[str, Any],
    passes: Passes,
    groups: Collection[str] = (),
    drops: ContentDrops = "special",
) -> pa.Table:
    """Return one row per trace of a chunk of complete, contiguous traces.

    Args:
        table: the chunk, with at least ``columns_read(groups)``.
        spec: of the run.
        passes: the result of ``revising_passes``.
        groups: names of additional statistics, from ``metrics.trace_table.GROUPS``.
        drops: the tokens that content statistics leave out.
    """
    traces = Segments(np.append(trace_starts(table), table.num_rows))
    keys = table.select(list(KEYS)).take(pa.array(traces.starts))
    columns = {name: keys[name].cast(SAMPLES_SCHEMA.field(name).type) for name in KEYS}
    known = None
    if passes:
        rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        known = np.array([passes.get(row, 0) for row in rows], np.int64)
    found = trace_table(trace_arrays(table, traces, known, drops), groups)
    columns |= {name: pa.array(values) for name, values in found.items()}
    stated = spec.get("likelihood")
    told = zip(*(columns[name].to_pylist() for name in _DECIDES), strict=True)
    columns["likelihood"] = pa.array([likelihood(stated, *values) for values in told], pa.string())
    further = [name for name in columns if name not in SAMPLES_SCHEMA.names]
    return pa.table({name: columns[name] for name in (*SAMPLES_SCHEMA.names, *further)})


def trace_arrays(
    table: pa.Table, traces: Segments, known_S: AnyArray | None = None, drops: ContentDrops = "special"
) -> TraceArrays:
    """Return a chunk of traces as arrays; see ``TraceArrays.of``."""
    names = [name for name in table.column_names if name not in (*KEYS, "run", "step")]
    return TraceArrays.of({name: _array(table[name], name) for name in names}, traces, known_S, drops)


def _array(column: pa.ChunkedArray, name: str) -> AnyArray:
    """Return a column as numbers; null becomes False in a flag and NaN in other columns."""
    if name in FLAGS:
        return np.asarray(column.fill_null(False).to_numpy(), bool)
    if pa.types.is_boolean(column.type) or name == "n_tied":
        column = column.cast(pa.float32())
    values = np.asarray(column.to_numpy())
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


_DECIDES = ("order", "temperature", "n_overflow_before")


def likelihood(
    stated: Mapping[str, str] | None, label: str, temperature: float | None, n_overflow_before: int = 0
) -> str | None:
    """Return ``exact``, ``estimate`` or ``none``; None if unknown.

    Args:
        stated: the spec's values by label, if it has them.
        label: of the policy.
        temperature: None or NaN when scoring.
        n_overflow_before: overflow tokens that a requested token is conditioned on. If there are any, the
            sum of log q is not a likelihood of the text.
    """
    if n_overflow_before:
        return "none"
    drawn = temperature is not None and temperature > 0
    if stated is None:
        return _implied(label, drawn)
    return stated.get(f"{label}{DRAWN}", stated.get(label)) if drawn else stated.get(label)


@lru_cache(maxsize=1024)
def _implied(label: str, drawn: bool) -> str | None:
    """Return the value derived from the policy; None if its code is not installed."""
    from orderlens.rules import parse_policy

    try:
        return parse_policy(label).likelihood(1.0 if drawn else None)
    except OrderLensError:
        return None


@lru_cache(maxsize=1024)
def label_and_seed(spec: str) -> tuple[str, int | None]:
    """Return label and seed of an order's spec as in traces; the spec itself if its code is not installed."""
    from orderlens.rules import parse_policy

    try:
        policy = parse_policy(spec)
    except OrderLensError:
        return spec, None
    return policy.label, policy.seed


def order_labels(orders: Iterable[object]) -> list[str]:
    """Return the labels of orders' specs, sorted."""
    return sorted({label_and_seed(str(spec))[0] for spec in orders})


CONTENT = ("temperature", "prompt_text", "prompt_ids", "text", "token_ids")
"""Columns of ``outputs`` that make up the content of a sample."""


def content(row: Mapping[str, Any]) -> list[Any]:
    """Return the prompt and, for a scored row, the target: the text, or the tokens if no text is stored."""
    parts = [row.get("prompt_text") or row.get("prompt_ids")]
    return parts if row["temperature"] is not None else [*parts, row.get("text") or row.get("token_ids")]


def same_content(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two rows have the same prompt and, if both were scored, the same target."""
    pairs = list(zip(content(first), content(second), strict=False))
    return any(one is not None for one, _ in pairs) and all(one == other for one, other in pairs)
