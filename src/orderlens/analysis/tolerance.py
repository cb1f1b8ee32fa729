"""Noise tolerance: the theory's predicted loss of measured profiles against sampling temperature.

A token drawn at temperature T is the argmax of logits with Gumbel noise of scale T, whose standard deviation
is T π/√6. The theory's noise at T is taken as σ = T π/√6, with Gaussian noise of equal size. The loss per
token is −g(log q_t) averaged over a trace: of the trace at the lowest temperature of its order, and of the
trace that was measured at T. Prompts are resampled. Does not depend on models.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from orderlens.analysis.compare import Paired, wide_of
from orderlens.analysis.study import NOT_GENERATED, Study
from orderlens.analysis.table import Cell, Column, Table, never, table
from orderlens.analysis.traces import pick, picked_traces
from orderlens.metrics.estimate import Estimate, function_of_sums
from orderlens.metrics.path import log_success_rows
from orderlens.metrics.segments import FloatArray, divide

MAX_PROMPTS = 200
"""Prompts used: every reveal is needed, so their number is bounded."""
NO_NOISE = "no noise at temperature 0: the theory predicts no finite loss"


def noise_at(temperature: float) -> float:
    """Return σ, the standard deviation of the Gumbel noise of sampling at a temperature (nats)."""
    return temperature * math.pi / math.sqrt(6)


def predicted_loss(log_q: FloatArray, sigma: float) -> FloatArray:
    """Return −g(log q) of each reveal in nats."""
    return -log_success_rows(log_q, sigma)


_COLUMNS = (
    Column("sigma", "σ"),
    Column("loss_lowest", "predicted loss, profile at lowest T"),
    Column("loss_own", "predicted loss, profile at T"),
    Column("n", "n"),
)

_NOTHING: dict[str, Cell] = {
    "order": "(none)",
    "temperature": "(none)",
    "n": 0,
    **dict.fromkeys(("sigma", "loss_lowest", "loss_own"), Estimate.undefined(NOT_GENERATED)),
}


@table("the theory's predicted loss against temperature", traces="sweep", suits=never)
def tolerance(study: Study) -> Table:
    """Return the predicted loss per token by order and temperature, and its spread across orders."""
    frame = _chosen(study)
    profiles = _profiles(study, frame)
    rows: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        lowest = part[part["temperature"] == part["temperature"].min()]
        for value in sorted(part["temperature"].unique()):
            own = part[part["temperature"] == value]
            sigma = noise_at(float(value))
            cells = [_loss(study, chosen, profiles, sigma) for chosen in (lowest, own)]
            head: dict[str, Cell] = {"order": order, "temperature": f"{value:g}"}
            rows.append(
                head
                | {"sigma": Estimate(sigma), "loss_lowest": cells[0], "loss_own": cells[1], "n": len(own)}
            )
    notes = (
        "σ = T π/√6, the standard deviation of the Gumbel noise that sampling at T adds to the logits.",
        "predicted loss: mean of −log f(q_t), nats per token; f is the theory's success probability.",
        *_spreads(rows),
    )
    title = "Noise tolerance: predicted loss of measured profiles"
    return Table("tolerance", title, ("order", "temperature"), _COLUMNS, tuple(rows) or (_NOTHING,), notes)


def lowest_losses(study: Study) -> Paired:
    """Return the predicted loss (nats per token) of each prompt's trace at its order's lowest temperature.

    Columns are ``order@T`` for every T > 0 of the run.
    """
    frame = _chosen(study)
    lowest = frame[frame["temperature"] == frame.groupby("order")["temperature"].transform("min")]
    profiles = _profiles(study, lowest)
    parts = []
    for value in sorted(value for value in frame["temperature"].unique() if value > 0):
        losses = [float(predicted_loss(profiles[row], noise_at(float(value))).mean()) for row in lowest.index]
        parts.append(lowest.assign(temperature=float(value), loss=losses))
    long = pd.concat(parts) if parts else lowest.assign(loss=np.nan)[:0]
    return Paired.of(wide_of(long, "loss", ("order", "temperature")), study.options.resampling)


def _chosen(study: Study) -> pd.DataFrame:
    """Return the generated traces of at most ``MAX_PROMPTS`` prompts."""
    frame = study.generated
    kept = pick(frame["prompt"].tolist(), MAX_PROMPTS, study.options.resampling.seed, "tolerance")
    return frame[frame["prompt"].isin(kept)]


def _profiles(study: Study, frame: pd.DataFrame) -> dict[int, FloatArray]:
    """Return log q of every trace, at most 0, by row of the sample table."""
    found = picked_traces(study.run, study.all_traces, frame.index, ["logq"])
    return {row: np.minimum(traces.columns["logq"][at].astype(np.float64), 0.0) for row, traces, at in found}


def _loss(study: Study, part: pd.DataFrame, profiles: dict[int, FloatArray], sigma: float) -> Estimate:
    if sigma == 0:
        return Estimate.undefined(NO_NOISE)
    losses = [predicted_loss(profiles[row], sigma) for row in part.index]
    clusters = study.clusters(part)
    sums = clusters.sums(np.array([[float(loss.sum()), len(loss)] for loss in losses], np.float64))
    (cell,) = function_of_sums(clusters, sums, lambda s: divide(s[:, :1], s[:, 1:]), len(part))
    return cell if math.isfinite(cell.value) else Estimate.undefined("a log q is not finite")


def _spreads(rows: list[dict[str, Cell]]) -> list[str]:
    """Return a note per temperature with the range of the predicted loss across orders."""
    out = []
    for value in dict.fromkeys(str(row["temperature"]) for row in rows):
        cells = [row["loss_lowest"] for row in rows if row["temperature"] == value]
        known = [cell.value for cell in cells if isinstance(cell, Estimate) and cell.is_defined]
        if len(known) > 1:
            spread = max(known) - min(known)
            out.append(f"T = {value}: spread of the predicted loss across orders {spread:.3g} (lowest T).")
    return out
