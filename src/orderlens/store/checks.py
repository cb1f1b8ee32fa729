"""Checks of stored tables, applied before a commit and again by ``verify``.

They work on sorted tables with complete traces. Does not depend on files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.errors import ModelOutputError, UserInputError
from orderlens.store.codec import trace_starts
from orderlens.store.schema import EVENTS, TRACE_KEY

CHECKED_COLUMNS = (*TRACE_KEY, "step", "forward", "position", "logq", "n_committed")
"""Columns of ``reveals`` that ``table_problems`` reads."""


def check_table(name: str, table: pa.Table, unit: str) -> None:
    """Reject a table that must not be stored.

    Raises:
        ModelOutputError: ``logq`` is NaN or positive.
        UserInputError: steps or positions do not form complete traces.
    """
    values = logq_problem(table) if name in _CHECKS else None
    if values:
        raise ModelOutputError(f"unit '{unit}': {values}; the model's log-probabilities are not normalised")
    shape = next((text for check in _CHECKS.get(name, ()) if (text := check(table))), None)
    if shape:
        raise UserInputError(f"unit '{unit}': {shape}; a unit must contain complete traces")


def table_problems(name: str, table: pa.Table) -> list[str]:
    """Return the problems of a sorted table, one line per kind."""
    checks = (logq_problem, *_CHECKS[name]) if name in _CHECKS else ()
    return [text for check in checks if (text := check(table))]


def logq_problem(table: pa.Table) -> str | None:
    """Describe the ``logq`` values that are NaN or above 0; null is allowed."""
    values = table["logq"].to_numpy()
    bad = np.flatnonzero(~(values <= 0) & table["logq"].is_valid().to_numpy())
    return f"logq = {values[bad[0]]} at {_where(table, int(bad[0]))}{_more(bad)}" if len(bad) else None


def trace_problem(table: pa.Table) -> str | None:
    """Describe where the steps of a trace are not 0…n−1, or a position occurs twice."""
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


def pass_problem(table: pa.Table) -> str | None:
    """Describe where ``forward`` decreases in a trace, or a pass has more reveals than ``n_committed``."""
    forward = table["forward"].to_numpy()
    traces = np.zeros(table.num_rows, bool)
    traces[trace_starts(table)] = True
    back = np.flatnonzero((forward < 0) | (~traces & (np.diff(forward, prepend=0) < 0)))
    if len(back):
        row = int(back[0])
        return f"forward {forward[row]} after a later pass at {_where(table, row)}{_more(back)}"
    passes = np.flatnonzero(traces | (np.diff(forward, prepend=-1) != 0))
    lengths = np.diff(passes, append=table.num_rows)
    committed = table["n_committed"].fill_null(np.iinfo(np.int32).max).to_numpy()
    few = np.flatnonzero(committed < np.repeat(lengths, lengths))
    if len(few):
        row = int(few[0])
        return f"n_committed {committed[row]} in a pass with more reveals at {_where(table, row)}{_more(few)}"
    return None


def revision_problem(table: pa.Table) -> str | None:
    """Describe revisions with the wrong tokens: a remask has no new token, a reveal has no old one."""
    event = table["event"].to_numpy(zero_copy_only=False)
    old, new = (table[name].is_valid().to_numpy() for name in ("old_token", "new_token"))
    wrong = np.flatnonzero(
        ~np.isin(event, EVENTS) | (new == (event == "remask")) | (old == (event == "reveal"))
    )
    if len(wrong):
        row = int(wrong[0])
        tokens = [table[name][row].as_py() for name in ("old_token", "new_token")]
        return (
            f"event '{event[row]}' with old_token {tokens[0]} and new_token {tokens[1]} at "
            f"{_where(table, row)}{_more(wrong)}"
        )
    return None


_CHECKS = {"reveals": (trace_problem, pass_problem), "revisions": (revision_problem,)}
"""Table → its checks, in addition to that of ``logq``."""


def _repeated(trace: NDArray[np.int64], position: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rows that repeat a (trace, position) of an earlier row."""
    ranked = np.lexsort((position, trace))
    same = (np.diff(trace[ranked]) == 0) & (np.diff(position[ranked]) == 0)
    return np.sort(ranked[1:][same])


def _where(table: pa.Table, row: int) -> str:
    names = ("sample_id", "order", "seed")
    values = {name: table[name][row].as_py() for name in names}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _more(rows: NDArray[np.int64]) -> str:
    return f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
