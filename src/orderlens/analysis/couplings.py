"""Measured couplings per set and per trace, joined with the traces they belong to. Frames in, frames out.

A set's coupling is the mean over the paths it was measured along, its incoherence their max − min. A trace's
coupling is the sum over its sets along its own path: where only some were drawn, their sum scaled up. The
parts of Var follow from a trace's own moments and the sets' rows along that path; ``metrics.passes`` has the
identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis.traces import TRACE, trace_rows
from orderlens.store.reader import Run

NOT_MEASURED = "not measured: score policies that commit sets with --couplings N"
VAR_PARTS = ("between", "inside", "coupling_between", "coupling_inside")


def measured_sets(run: Run) -> pd.DataFrame:
    """Return one row per measured set: its coupling, incoherence, exact value, bound, size and gap.

    ``gap`` is the smallest distance of two positions; ``squares`` is Σ z² − Σ y² and ``pass_squares``
    k (z̄² − ȳ²) along the trace's own path; ``own`` is the coupling along it.
    """
    frame = trace_rows(run, "couplings")
    if not len(frame):
        names = ["size", "n_sets", "coupling", "least", "most", "exact", "bound", "incoherence", "gap"]
        return frame[[*TRACE, "forward"]].assign(**dict.fromkeys(names, np.nan))
    keys = [*TRACE, "forward"]
    groups = frame.groupby(keys, dropna=False, sort=False)
    out = groups.agg(
        size=("size", "first"),
        n_sets=("n_sets", "first"),
        coupling=("coupling", "mean"),
        least=("coupling", "min"),
        most=("coupling", "max"),
        exact=("joint_coupling", "first"),
        bound=("entropy_bound", "first"),
        paths=("path", "size"),
    ).reset_index()
    own = frame[frame["path"] == 0]
    sums = pd.DataFrame([_sums(row) for row in own.itertuples()], index=own.index)
    merged = out.merge(pd.concat([own[keys], sums], axis=1), on=keys, how="left")
    return merged.assign(incoherence=merged["most"] - merged["least"])


def _sums(row: Any) -> dict[str, float]:
    y, z = np.asarray(row.logq, np.float64), np.asarray(row.sequential, np.float64)
    return {
        "gap": float(np.diff(np.sort(np.asarray(row.positions))).min()),
        "own": float(z.sum() - y.sum()),
        "squares": float(z @ z - y @ y),
        "pass_squares": float((z.sum() ** 2 - y.sum() ** 2) / len(y)),
    }


def traced(sets: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return scored traces with ``coupling`` (summed over their sets, nats) and the parts of Var.

    A trace of one token per pass has coupling 0. One whose sets were not measured has none, and one of which
    only some sets were measured has no parts.
    """
    out = frame.copy()
    one_by_one = (out["n_passes_requested"] == out["n"]).to_numpy()
    if len(sets):
        names = ["own", "squares", "pass_squares"]
        grouped = sets.groupby(TRACE, dropna=False, sort=False)
        found = grouped[names].sum().assign(measured=grouped.size(), n_sets=grouped["n_sets"].first())
        joined = out[TRACE].merge(found.reset_index(), on=TRACE, how="left")
        joined.index = out.index
    else:
        joined = pd.DataFrame(
            np.nan,
            index=out.index,
            columns=["own", "squares", "pass_squares", "measured", "n_sets"],
        )
    scale = joined["n_sets"] / joined["measured"]
    out["coupling"] = np.where(one_by_one, 0.0, joined["own"] * scale)
    whole = one_by_one | (joined["measured"] == joined["n_sets"]).to_numpy()
    own, squares, pass_squares = (
        np.where(one_by_one, 0.0, joined[name]) for name in ("own", "squares", "pass_squares")
    )
    n, mean = out["n"].to_numpy(np.float64), out["mean"].to_numpy(np.float64)
    shift = mean**2 - (mean + own / n) ** 2  # ȳ² − z̄²
    between = pass_squares / n + shift
    out["between"] = np.where(whole, out["var_between"], np.nan)
    out["inside"] = np.where(whole, out["var_inside"], np.nan)
    out["coupling_between"] = np.where(whole, between, np.nan)
    out["coupling_inside"] = np.where(whole, squares / n + shift - between, np.nan)
    out["var_one_by_one"] = out[list(VAR_PARTS)].sum(axis=1, min_count=len(VAR_PARTS))
    return out
