"""What must hold in every stored table; used before a commit and again by ``verify``.

Works on sorted tables with whole traces. Knows columns, not files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.errors import ModelOutputError, UserInputError
from orderlens.store.codec import trace_starts
from orderlens.store.schema import TRACE_KEY

CHECKED_COLUMNS = (*TRACE_KEY, "step", "position", "logq")
"""Columns of ``reveals`` that ``reveal_problems`` reads."""


def check_table(name: str, table: pa.Table, unit: str) -> None:
    """Refuse a table that a run must not hold.

    Raises:
        ModelOutputError: ``logq`` is NaN or positive.
        UserInputError: steps or positions do not form whole traces.
    """
    if name != "reveals" or not table.num_rows:
        return
    values = logq_problem(table)
    if values:
        raise ModelOutputError(f"unit '{unit}': {values}; the model's log-probabilities are not normalised")
    shape = trace_problem(table)
    if shape:
        raise UserInputError(f"unit '{unit}': {shape}; a unit holds whole traces")


def reveal_problems(table: pa.Table) -> list[str]:
    """Return what is wrong with sorted reveals, one line per kind of problem."""
    return [text for text in (logq_problem(table), trace_problem(table)) if text] if table.num_rows else []


def logq_problem(table: pa.Table) -> str | None:
    """Say which ``logq`` is not a log-probability: NaN, null or above 0."""
    values = table["logq"].to_numpy()
    bad = np.flatnonzero(~(values <= 0))
    return f"logq = {values[bad[0]]} at {_where(table, int(bad[0]))}{_more(bad)}" if len(bad) else None


def trace_problem(table: pa.Table) -> str | None:
    """Say where steps are not 0…n−1 or a position occurs twice within a trace."""
    starts = trace_starts(table)
    lengths = np.diff(starts, append=table.num_rows)
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    steps = table["step"].to_numpy()
    wrong = np.flatnonzero(steps != expected)
    if len(wrong):
        row = int(wrong[0])
        return f"step {steps[row]} instead of {expected[row]} at {_where(table, row)}{_more(wrong)}"
    trace = np.repeat(np.arange(len(starts)), lengths)
    twice = _repeated(trace, table["position"].to_numpy())
    if len(twice):
        row = int(twice[0])
        return f"position {table['position'][row]} is revealed twice at {_where(table, row)}{_more(twice)}"
    return None


def _repeated(trace: NDArray[np.int64], position: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rows whose (trace, position) occurred before."""
    ranked = np.lexsort((position, trace))
    same = (np.diff(trace[ranked]) == 0) & (np.diff(position[ranked]) == 0)
    return np.sort(ranked[1:][same])


def _where(table: pa.Table, row: int) -> str:
    names = ("sample_id", "order", "seed")
    values = {name: table[name][row].as_py() for name in names}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _more(rows: NDArray[np.int64]) -> str:
    return f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
