"""Path statistics per trace, computed chunk by chunk with numpy (float64, ddof = 0).

The definitions are those of the metrics: mean and variance over all reveals within the requested length, the
same over content (neither EOS nor special), NaN where there is nothing to average.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.store.codec import trace_starts
from orderlens.store.schema import SCHEMAS, TRACE_KEY

_KEYS = tuple(name for name in SCHEMAS["reveals"].names if name in TRACE_KEY)
TRACE_COLUMNS = (*_KEYS, "logq", "is_eos", "is_special", "is_overflow")
"""Columns of ``reveals`` that ``sample_table`` reads."""

SAMPLES_SCHEMA = pa.schema(
    [pa.field(name, SCHEMAS["reveals"].field(name).type) for name in _KEYS]
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
    ]
)


def sample_table(chunks: Iterable[pa.Table]) -> pa.Table:
    """Return one row per trace from chunks of whole, contiguous traces."""
    tables = [_chunk(chunk) for chunk in chunks if chunk.num_rows]
    return pa.concat_tables(tables) if tables else SAMPLES_SCHEMA.empty_table()


def _chunk(table: pa.Table) -> pa.Table:
    starts = trace_starts(table)
    logq = table["logq"].to_numpy().astype(np.float64)
    counted = ~_flag(table, "is_overflow")
    eos = _flag(table, "is_eos") & counted
    content = counted & ~eos & ~_flag(table, "is_special")
    n, mean, var, total = _moments(logq, counted, starts)
    n_content, content_mean, content_var, _ = _moments(logq, content, starts)
    n_eos = np.add.reduceat(eos, starts, dtype=np.int64)
    n_overflow = np.add.reduceat(~counted, starts, dtype=np.int64)
    numbers = [n, mean, var, n_content, content_mean, content_var, total, n_eos, n_overflow]
    keys = table.select(list(_KEYS)).take(starts)
    columns = [keys[name].cast(SAMPLES_SCHEMA.field(name).type) for name in _KEYS]
    return pa.table([*columns, *(pa.array(item) for item in numbers)], schema=SAMPLES_SCHEMA)


def _flag(table: pa.Table, name: str) -> NDArray[np.bool_]:
    """Return a flag column with null as False, shape [rows]."""
    column = table[name]
    if column.null_count == len(column):
        return np.zeros(len(column), bool)
    return np.asarray((column.fill_null(False) if column.null_count else column).to_numpy(), bool)


def _moments(
    values: NDArray[np.float64], mask: NDArray[np.bool_], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return count, mean, variance (ddof = 0) and sum of the masked values of each trace, all [traces]."""
    n = np.add.reduceat(mask, starts, dtype=np.int64)
    total = np.add.reduceat(np.where(mask, values, 0.0), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / n
        apart = values - np.repeat(mean, np.diff(starts, append=len(values)))
        apart *= apart
        apart[~mask] = 0.0  # also where the mean is undefined
        var = np.add.reduceat(apart, starts) / n
    return n, mean, var, np.where(n > 0, total, np.nan)
