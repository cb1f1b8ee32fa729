"""Forward passes behind each trace, whatever they were for, and whether they revealed tokens in sets.

Passes are the compute that policies are compared at.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.frames import TRACE
from orderlens.store.reader import Run


def total_passes(run: Run, frame: pd.DataFrame) -> pd.Series:
    """Return the passes of each trace: those that committed tokens, looked ahead, or only revised.

    Args:
        run: the runs behind the traces.
        frame: one row per trace with the trace key, ``run``, ``n_passes`` and ``n_ahead``, which count passes
            past the requested length too.
    """
    made = frame["n_passes"].to_numpy(np.float64)
    later = _revising(run)
    if later is not None:
        merged = frame[TRACE].merge(later, on=TRACE, how="left")["made"]
        made = np.fmax(made, merged.to_numpy(np.float64))
    return pd.Series(made + frame["n_ahead"].to_numpy(np.float64), index=frame.index)


def in_sets(frame: pd.DataFrame) -> pd.Series:
    """Return which traces show by the number of their passes that a pass revealed several tokens.

    Tokens past the requested length count, because the passes that revealed them do.

    Args:
        frame: one row per trace with ``n_passes``, ``n`` and ``n_overflow``.
    """
    return frame["n_passes"] < frame["n"] + frame["n_overflow"]


def _revising(run: Run) -> pd.DataFrame | None:
    """Return the passes of traces whose tokens were changed, counted by their last change."""
    if "revisions" not in run.tables:
        return None
    rows = trace_rows(run, "revisions", "forward")
    found = rows.groupby(TRACE, dropna=False, sort=False)["forward"].max() + 1
    return found.rename("made").reset_index()


def trace_rows(run: Run, name: str, *columns: str) -> pd.DataFrame:
    """Return columns of a table beside the trace key and ``run``, which a single run leaves out.

    Only these are read (all where none is named): the tokens of a large run would fill the memory.
    """
    table = run.table(name)
    wanted = [item for item in (*TRACE, *columns) if item in table.columns]
    frame = table.to_pandas(wanted if columns else None)
    return frame if "run" in frame.columns else frame.assign(run=run.names[0])
