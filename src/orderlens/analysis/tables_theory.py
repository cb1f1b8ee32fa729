"""What the uniform-spreading theory says of the run's traces: exact Jensen loss beside Var.

σ and k are fitted to how often the target was the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table
from orderlens.analysis.tables import table
from orderlens.analysis.traces import pick, picked_traces
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.path import SIGMAS
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.rules.cards import kind_of

if TYPE_CHECKING:
    from orderlens.analysis.study import Study
    from orderlens.theory import NoiseFit


MAX_SEQUENCES = 200
"""Sequences per fit: the likelihood needs every reveal, so their number is bounded."""


@dataclass(frozen=True, slots=True)
class TraceHits:
    """The usable reveals of one trace.

    Attributes:
        logq: log q of the target, at most 0.
        hit: whether the target was the argmax.
        is_whole: every reveal is usable.
    """

    order: str
    logq: FloatArray
    hit: BoolArray
    is_whole: bool


def read_hits(study: Study, part: pd.DataFrame) -> tuple[list[TraceHits], int]:
    """Return the traces of at most ``MAX_SEQUENCES`` prompts of ``part``, and how many prompts there are."""
    kept = pick(part["prompt"].tolist(), MAX_SEQUENCES, study.options.resampling.seed, "noise fit")
    chosen = part[part["prompt"].isin(kept)]
    orders = dict(zip(chosen.index, chosen["order"].astype(str), strict=True))
    out = []
    for row, traces, at in picked_traces(study.run, study.every, chosen.index, ["logq", "is_argmax"]):
        logq, won = (traces.columns[name][at].astype(np.float64) for name in ("logq", "is_argmax"))
        known = np.isfinite(logq) & np.isfinite(won)
        usable = np.minimum(logq[known], 0.0)
        out.append(TraceHits(orders[row], usable, won[known] > 0, bool(known.all() and len(known))))
    return out, len(kept)


def fit_hits(traces: Sequence[TraceHits], level: float) -> NoiseFit:
    """Fit the noise to the traces' reveals; the same reveals are fitted once (a table and a figure ask).

    Raises:
        TheoryError: there is nothing to fit, e.g. no miss.
    """
    logq = np.concatenate([np.zeros(0), *(item.logq for item in traces)])
    hit = np.concatenate([np.zeros(0, np.bool_), *(item.hit for item in traces)])
    return _fitted(logq.tobytes(), hit.tobytes(), level)


@lru_cache(maxsize=8)
def _fitted(logq: bytes, hit: bytes, level: float) -> NoiseFit:
    from orderlens.theory import fit_noise

    return fit_noise(np.frombuffer(logq), np.frombuffer(hit, np.bool_), level=level)


_COLUMNS = (
    Column("jensen", "Jensen loss"),
    Column("second_order", "2nd order"),
    Column("outside_radius", "outside radius"),
    Column("rho_var", "ρ(Var, loss)", 2),
    Column("rho_min", "ρ(min, loss)", 2),
    Column("rho_bottleneck", "ρ(q<1/2, loss)", 2),
)


@table("exact Jensen loss beside Var", needs=("jensen",), traces="score")
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
        "outside radius: share of traces with a step farther than |mean| from the mean, out of reach.",
        "ρ: Spearman over traces between a statistic and the exact loss per token; Var need not order it.",
        f"Traces are {source}.",
    )
    title = "Uniform spreading: what uneven confidence costs under noise of scale σ"
    return [Table("theory", title, ("order", "sigma"), _COLUMNS, tuple(rows), notes), _fit_table(study)]


_FIT = (
    Column("sigma", "σ"),
    Column("k", "competitors k", 1),
    Column("sigma_one", "σ with k = 1"),
    Column("p_misfit", "p of misfit", 4),
    Column("n", "reveals"),
    Column("sequences", "sequences"),
)


_INDEPENDENT = (
    "Intervals: profile likelihood, the reveals taken as independent; "
    "'orderlens theory fit RUN --bootstrap N' resamples texts."
)


def _fit_table(study: Study) -> Table:
    """Return σ and k fitted to how often the target was the argmax, as a function of q."""
    frame = study.scored
    kinds = frame["order"].map(lambda order: kind_of(str(order)))
    shown = ["deployable", "target-aware", *(["unknown"] if (kinds == "unknown").any() else [])]
    rows, notes = [], [_INDEPENDENT]
    for name, part in ((kind, frame[kinds == kind]) for kind in shown):
        cells, remarks = _fit(study, part)
        rows.append({"orders": name, **cells})
        notes += [f"{name}: {remark}." for remark in remarks]
    title = "Fitted noise: f_k(q) against the observed argmax hits (a summary, not a confirmation)"
    return Table("theory-fit", title, ("orders",), _FIT, tuple(rows), tuple(notes))


def _fit(study: Study, part: pd.DataFrame) -> tuple[dict[str, Cell], list[str]]:
    from orderlens.theory import TheoryError

    traces, n_sequences = read_hits(study, part)
    n = sum(len(item.logq) for item in traces)
    head: dict[str, Cell] = {"n": n, "sequences": n_sequences}
    why = NO_TARGET if not len(study.scored) else "no such order was scored"
    if n:
        try:
            found = fit_hits(traces, study.options.resampling.level)
        except TheoryError as error:
            why = str(error)
        else:
            sigma = Estimate(found.sigma, *found.sigma_interval, found.n)
            k = Estimate(found.k, *found.k_interval, found.n)
            one, p = Estimate(found.sigma_one, n=found.n), Estimate(found.p_value, n=found.n)
            return {"sigma": sigma, "k": k, "sigma_one": one, "p_misfit": p, **head}, found.remarks
    return {name: Estimate.undefined(why) for name in ("sigma", "k", "sigma_one", "p_misfit")} | head, []


def _row(study: Study, part: pd.DataFrame, order: str, sigma: float) -> dict[str, Cell]:
    mean, var, n = (part[name].to_numpy(np.float64) for name in ("mean", "var", "n"))
    loss = part[f"jensen_{sigma:g}"].to_numpy(np.float64)
    columns = part.assign(
        jensen=loss,
        second_order=-n / 2 * _curvature(mean, sigma) * var,
        outside_radius=np.where(np.isfinite(mean), mean - part["min"] > np.abs(mean), np.nan),
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
