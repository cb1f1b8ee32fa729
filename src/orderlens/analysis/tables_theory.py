"""The uniform-spreading theory applied to traces: exact Jensen loss compared with Var.

σ and k are fitted to how often the target was the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, table
from orderlens.analysis.traces import pick, picked_traces
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.path import SIGMAS
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.rules.cards import kind_of

if TYPE_CHECKING:
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
        prompt: the text, for resampling.
    """

    order: str
    logq: FloatArray
    hit: BoolArray
    is_whole: bool
    prompt: str = ""


def read_hits(study: Study, part: pd.DataFrame) -> tuple[list[TraceHits], int]:
    """Return the traces of at most ``MAX_SEQUENCES`` prompts of ``part``, and how many prompts there are."""
    kept = pick(part["prompt"].tolist(), MAX_SEQUENCES, study.options.resampling.seed, "noise fit")
    chosen = part[part["prompt"].isin(kept)]
    orders = dict(zip(chosen.index, chosen["order"].astype(str), strict=True))
    prompts = dict(zip(chosen.index, chosen["prompt"].astype(str), strict=True))
    out = []
    for row, traces, at in picked_traces(study.run, study.all_traces, chosen.index, ["logq", "is_argmax"]):
        logq, won = (traces.columns[name][at].astype(np.float64) for name in ("logq", "is_argmax"))
        known = np.isfinite(logq) & np.isfinite(won)
        usable = np.minimum(logq[known], 0.0)
        is_whole = bool(known.all() and len(known))
        out.append(TraceHits(orders[row], usable, won[known] > 0, is_whole, prompts[row]))
    return out, len(kept)


def fit_hits(traces: Sequence[TraceHits], level: float) -> NoiseFit:
    """Fit the noise to the traces' reveals; equal reveals are fitted once (for the table and the figure).

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


@dataclass(frozen=True, slots=True)
class FittedNoise:
    """σ and k fitted to how often the target was the argmax, over the orders of one kind.

    Attributes:
        kind: kind of the orders.
        sigma: noise scale.
        k: number of equal competitors.
        sigma_one: noise scale with one competitor.
        p_misfit: p-value of the goodness-of-fit test.
        n: number of reveals.
        n_sequences: number of texts.
        remarks: warnings of the fit.
    """

    kind: str
    sigma: Estimate
    k: Estimate
    sigma_one: Estimate
    p_misfit: Estimate
    n: int
    n_sequences: int
    remarks: tuple[str, ...] = ()


def fitted_noise(study: Study) -> dict[str, FittedNoise]:
    """Return the fit by kind of orders; see ``Study.shared``."""
    frame = study.scored
    kinds = frame["order"].map(lambda order: kind_of(str(order)))
    shown = ["deployable", "target-aware", *(["unknown"] if (kinds == "unknown").any() else [])]
    read = [read_hits(study, frame[kinds == kind]) for kind in shown]
    with ThreadPoolExecutor(2) as pool:  # most of a fit is numpy, which releases the interpreter lock
        found = pool.map(lambda kind, hits: _fit(study, kind, *hits), shown, read)
        return dict(zip(shown, found, strict=True))


def _fit(study: Study, kind: str, traces: Sequence[TraceHits], n_sequences: int) -> FittedNoise:
    from orderlens.theory import TheoryError

    n = sum(len(item.logq) for item in traces)
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
            return FittedNoise(kind, sigma, k, one, p, n, n_sequences, tuple(found.remarks))
    missing = Estimate.undefined(why)
    return FittedNoise(kind, missing, missing, missing, missing, n, n_sequences)


_COLUMNS = (
    Column("jensen", "Jensen loss"),
    Column("second_order", "2nd order"),
    Column("outside_radius", "outside radius"),
    Column("rho_var", "ρ(Var, loss)", 2),
    Column("rho_min", "ρ(min, loss)", 2),
    Column("rho_bottleneck", "ρ(q<1/2, loss)", 2),
)
_FIT = (
    Column("sigma", "σ"),
    Column("k", "competitors k", 1),
    Column("sigma_one", "σ with k = 1"),
    Column("p_misfit", "p of misfit", 4),
    Column("n", "reveals"),
    Column("sequences", "sequences"),
)
_INDEPENDENT = (
    "Intervals: profile likelihood, reveals treated as independent; "
    "'orderlens theory fit RUN --bootstrap N' resamples texts."
)


@table("exact Jensen loss compared with Var", needs=("jensen",), traces="score")
def theory(study: Study) -> list[Table]:
    """Return the exact loss of uneven confidence per order and noise scale, and how well Var ranks it."""
    frame = study.scored if len(study.scored) else study.decoded
    rows: list[dict[str, Cell]] = [
        {"order": order, "sigma": f"{sigma:g}", **jensen_cells(study, frame[frame["order"] == order], sigma)}
        for order in study.orders(frame)
        for sigma in SIGMAS
    ]
    source = "fixed targets" if len(study.scored) else "generated text; q is that of the chosen token"
    notes = (
        "Jensen loss: n·g(mean) − Σ g(log q_t), nats per sequence, exact.",
        "2nd order: −(n/2)·g''(mean)·Var with the sign of g''.",
        "outside radius: share of traces with a step farther than |mean| from the mean: 2nd order fails.",
        "ρ: Spearman over traces between a statistic and the exact loss per token; Var need not rank it.",
        f"Traces: {source}.",
    )
    title = "Uniform spreading: cost of uneven confidence under noise of scale σ"
    return [Table("theory", title, ("order", "sigma"), _COLUMNS, tuple(rows), notes), _fit_table(study)]


def _fit_table(study: Study) -> Table:
    rows: list[dict[str, Cell]] = []
    notes = [_INDEPENDENT]
    for kind, fit in study.shared(fitted_noise).items():
        cells = {name: getattr(fit, name) for name in ("sigma", "k", "sigma_one", "p_misfit", "n")}
        rows.append({"orders": kind, **cells, "sequences": fit.n_sequences})
        notes += [f"{kind}: {remark}." for remark in fit.remarks]
    title = "Fitted noise: f_k(q) against the observed argmax hits (a summary, not a confirmation)"
    return Table("theory-fit", title, ("orders",), _FIT, tuple(rows), tuple(notes))


def jensen_cells(study: Study, part: pd.DataFrame, sigma: float) -> dict[str, Cell]:
    """Return the exact loss of one order's traces at a noise scale, and how well statistics rank it."""
    mean, var, n = (part[name].to_numpy(np.float64) for name in ("mean", "var", "n"))
    loss = part[f"jensen_{sigma:g}"].to_numpy(np.float64)
    columns = part.assign(
        jensen=loss,
        second_order=-n / 2 * _curvature(mean, sigma) * var,
        outside_radius=np.where(np.isfinite(mean), mean - part["min"] > np.abs(mean), np.nan),
    )
    found = study.estimates(columns, ["jensen", "second_order", "outside_radius"])
    return {
        **dict(zip(("jensen", "second_order", "outside_radius"), found, strict=True)),
        **jensen_ranks(part, sigma),
    }


def jensen_ranks(part: pd.DataFrame, sigma: float) -> dict[str, Estimate]:
    """Return the rank correlation of Var, min and bottleneck rate with the exact loss per token."""
    loss = (part[f"jensen_{sigma:g}"] / part["n"]).to_numpy(np.float64)
    columns = {"rho_var": "var", "rho_min": "min", "rho_bottleneck": "bottleneck_rate"}
    return {name: _rank(part[column].to_numpy(np.float64), loss) for name, column in columns.items()}


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
