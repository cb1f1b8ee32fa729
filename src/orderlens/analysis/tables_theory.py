"""What the uniform-spreading theory says of the run's traces: exact Jensen loss beside Var."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.path import SIGMAS
from orderlens.metrics.segments import FloatArray

_COLUMNS = (
    Column("jensen", "Jensen loss"),
    Column("second_order", "2nd order"),
    Column("outside_radius", "outside radius"),
    Column("rho_var", "ρ(Var, loss)", 2),
    Column("rho_min", "ρ(min, loss)", 2),
    Column("rho_bottleneck", "ρ(q<1/2, loss)", 2),
)


def theory(study: Study) -> list[Table]:
    """Return the exact loss of uneven confidence per order and noise scale, and how well Var orders it."""
    frame = study.scored if len(study.scored) else study.decoded
    rows = [
        _row(study, frame[frame["order"] == order], order, sigma)
        for order in study.orders(frame)
        for sigma in SIGMAS
    ]
    source = "of fixed targets" if len(study.scored) else "generated: q is the chosen token's"
    notes = (
        "Jensen loss: n·g(mean) − Σ g(log q_t), nats per sequence, exact.",
        "2nd order: −(n/2)·g''(mean)·Var with the sign of g''.",
        "outside radius: share of traces whose sd exceeds |mean|, where the expansion need not converge.",
        "ρ: Spearman over traces between a statistic and the exact loss per token; Var need not order it.",
        f"Traces are {source}.",
    )
    title = "Uniform spreading: what uneven confidence costs under noise of scale σ"
    return [Table("theory", title, ("order", "sigma"), _COLUMNS, tuple(rows), notes)]


def _row(study: Study, part: pd.DataFrame, order: str, sigma: float) -> dict[str, Cell]:
    mean, var, n = (part[name].to_numpy(np.float64) for name in ("mean", "var", "n"))
    loss = part[f"jensen_{sigma:g}"].to_numpy(np.float64)
    columns = part.assign(
        jensen=loss,
        second_order=-n / 2 * _curvature(mean, sigma) * var,
        outside_radius=np.where(np.isfinite(mean), np.sqrt(var) > np.abs(mean), np.nan),
    )
    found = study.estimates(columns, ["jensen", "second_order", "outside_radius"])
    cells: dict[str, Cell] = dict(zip(("jensen", "second_order", "outside_radius"), found, strict=True))
    for name, column in (("rho_var", "var"), ("rho_min", "min"), ("rho_bottleneck", "bottleneck_rate")):
        cells[name] = _rank(part[column].to_numpy(np.float64), loss / n)
    return {"order": order, "sigma": f"{sigma:g}", **cells}


def _rank(statistic: FloatArray, loss: FloatArray) -> Estimate:
    known = np.isfinite(statistic) & np.isfinite(loss)
    value = rank_correlation(statistic[known], loss[known])
    why = None if np.isfinite(value) else "constant, or fewer than 2 traces"
    return Estimate(value, n=int(known.sum()), n_undefined=int((~known).sum()), why=why)


def _curvature(mean: FloatArray, sigma: float) -> FloatArray:
    """Return g''(mean), NaN where the mean is not a finite negative number."""
    from orderlens.theory import d2

    out = np.full(len(mean), np.nan)
    inside = np.isfinite(mean) & (mean < 0)
    out[inside] = d2(mean[inside], sigma)
    return out
