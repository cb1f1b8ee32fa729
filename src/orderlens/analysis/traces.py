"""Traces of a run as flat arrays: whole traces chunk by chunk, in bounded memory.

Overflow rows are counted and dropped here, so that nothing behind this file meets them. Knows the columns of
``reveals``; does not know statistics, files, models or graders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments
from orderlens.store.codec import trace_starts
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, flag

CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Traces:
    """A chunk of whole traces without overflow rows, as flat arrays [N] and segments [S].

    ``keys`` has one row per trace, and no columns when the keys were not read. ``n_passes`` counts the passes
    that filled overflow positions too, ``n_ahead`` what they looked ahead; empty where that was not read.
    """

    keys: pd.DataFrame
    segments: Segments
    content: BoolArray
    eos: BoolArray
    columns: dict[str, AnyArray]
    n_overflow: FloatArray
    n_passes: FloatArray
    n_ahead: FloatArray


def known_traces(run: Run, samples: pd.DataFrame, columns: Sequence[str]) -> Iterator[Traces]:
    """Yield the run's traces again, in the order of its sample table, without reading their keys.

    The table tells how long each trace is, so only ``columns`` and the flags are read.
    """
    lengths = (samples["n"] + samples["n_overflow"]).to_numpy(np.int64)
    bounds, done = np.concatenate([[0], np.cumsum(lengths)]), 0
    for chunk in read_chunks(run, [*columns, "is_eos", "is_special", "is_overflow"]):
        first, last = np.searchsorted(bounds, [done, done + chunk.num_rows])
        yield _traces(chunk, Segments(bounds[first : last + 1] - done))
        done += chunk.num_rows


def read_traces(table: pa.Table) -> Traces:
    """Return a chunk of the store as arrays; overflow rows are counted and dropped."""
    starts = _starts(table)
    return _traces(table, Segments(np.append(starts, table.num_rows).astype(np.int64)))


def _traces(table: pa.Table, whole: Segments) -> Traces:
    keys = table.select([name for name in (*KEYS, "run") if name in table.column_names])
    arrays = {name: _array(table, name) for name in table.column_names if name not in _NOT_ARRAYS}
    inside = ~flag(table, "is_overflow")
    eos, special = flag(table, "is_eos"), flag(table, "is_special")
    n_overflow = whole.total(~inside)
    made = whole.reduce(np.maximum, arrays["forward"], -1) + 1 if "forward" in arrays else np.zeros(0)
    ahead = whole.total(np.nan_to_num(arrays["n_lookahead"])) if "n_lookahead" in arrays else np.zeros(0)
    frame = keys.take(pa.array(whole.starts)).to_pandas()
    if not inside.all():
        arrays = {name: values[inside] for name, values in arrays.items()}
        eos, special, whole = eos[inside], special[inside], whole.kept(inside)
    return Traces(frame, whole, ~eos & ~special, eos, arrays, n_overflow, np.asarray(made, np.float64), ahead)


_NOT_ARRAYS = frozenset((*KEYS, "run", "is_eos", "is_special", "is_overflow"))


def _starts(table: pa.Table) -> IntArray:
    """Return the first row of each trace: where the step falls back, checked against the keys."""
    if not table.num_rows:
        return np.zeros(0, np.int64)
    step = table["step"].to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(step[1:] <= step[:-1]) + 1])
    ends = np.append(starts[1:], table.num_rows) - 1
    keys = table.select([name for name in KEYS if name in table.column_names])
    if keys.take(pa.array(starts)).equals(keys.take(pa.array(ends))):
        return starts
    return trace_starts(table)  # a trace that does not begin at step 0


def _array(table: pa.Table, name: str) -> AnyArray:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.float32()) if column.null_count else column
    elif pa.types.is_integer(column.type) and name == "n_tied":
        column = column.cast(pa.float32())
    values = np.asarray(column.to_numpy())
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def read_chunks(run: Run, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield pieces of about CHUNK_ROWS rows; row groups of a run can be much smaller."""
    names = run.table("reveals").columns
    wanted = [*(["run"] if "run" in names else []), *columns]
    waiting: list[pa.Table] = []
    for chunk in run.iter_traces(wanted):
        waiting.append(chunk)
        if sum(table.num_rows for table in waiting) >= CHUNK_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if sum(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)
