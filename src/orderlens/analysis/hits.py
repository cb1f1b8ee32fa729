"""Are greedy successes independent given q? Hits along a trace, and the recovery of whole spans.

A hit is a reveal whose target was the most probable token. The theory multiplies the success probabilities of
single steps. This module measures how far hits of one trace are correlated once q is known, and compares the
frequency of spans without a miss with two products over their steps: of the fitted f_k(q), and of the hit
rate among reveals of similar q. Texts are resampled. Does not depend on models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, never, table
from orderlens.analysis.tables_theory import TraceHits, fitted_noise, read_hits
from orderlens.metrics.estimate import Clusters, Estimate, function_of_sums
from orderlens.metrics.segments import FloatArray, divide
from orderlens.rules.cards import kind_of

SPANS = (2, 4, 8, 16)
"""Lengths of spans of consecutive reveals, in tokens."""
LAGS = (1, 2, 4)
"""Distances in reveals at which hits are correlated."""
N_BINS = 20
"""Bins of equal size along log q, within which hits are counted."""
ALL = "(all deployable)"


@dataclass(frozen=True, slots=True)
class SpanRecovery:
    """Spans of one length.

    Attributes:
        observed: share of spans without a miss.
        fitted: mean over spans of the product of f_k(q) at the fitted σ and k.
        by_rate: the same with the hit rate among reveals of similar q.
        log_excess: log(observed / by_rate); 0 if hits are independent given q.
        log_excess_fitted: log(observed / fitted).
    """

    observed: Estimate
    fitted: Estimate
    by_rate: Estimate
    log_excess: Estimate
    log_excess_fitted: Estimate


@dataclass(frozen=True, slots=True)
class HitNumbers:
    """The numbers of one order: autocorrelation by lag, recovery by length of the span."""

    lags: Mapping[int, Estimate]
    spans: Mapping[int, SpanRecovery]


@dataclass(frozen=True, slots=True)
class _Trace:
    """One trace: hits, the rate among reveals of similar q, and f_k(q), each [n]."""

    order: str
    prompt: str
    hit: FloatArray
    rate: FloatArray
    fitted: FloatArray


def measure_hits(study: Study) -> dict[str, HitNumbers]:
    """Return the numbers by deployable order, and pooled under ``ALL``; see ``Study.shared``."""
    frame = study.scored
    part = frame[frame["order"].map(lambda order: kind_of(str(order))) == "deployable"]
    found, _ = read_hits(study, part)
    whole = [item for item in found if item.is_whole]
    if not whole:
        return {}
    noise = study.shared(fitted_noise)["deployable"]
    traces = _with_rates(whole, noise.sigma.value, noise.k.value)
    names = [order for order in study.orders(part) if any(item.order == order for item in traces)]
    groups = {name: [item for item in traces if item.order == name] for name in names} | {ALL: traces}
    return {name: _numbers(study, chosen) for name, chosen in groups.items()}


def _with_rates(traces: Sequence[TraceHits], sigma: float, k: float) -> list[_Trace]:
    logq = np.concatenate([item.logq for item in traces])
    hit = np.concatenate([item.hit for item in traces]).astype(np.float64)
    edges = np.unique(np.quantile(logq, np.arange(1, N_BINS) / N_BINS))
    place = np.searchsorted(edges, logq, side="right")
    counts = np.bincount(place, minlength=len(edges) + 1)
    # Half a hit and half a miss are added, so that no rate is 0 or 1.
    rate = ((np.bincount(place, hit, len(edges) + 1) + 0.5) / (counts + 1))[place]
    ends = np.cumsum([len(item.logq) for item in traces])[:-1]
    parts = zip(*(np.split(values, ends) for values in (hit, rate, _fitted(logq, sigma, k))), strict=True)
    return [_Trace(item.order, item.prompt, *columns) for item, columns in zip(traces, parts, strict=True)]


def _fitted(logq: FloatArray, sigma: float, k: float) -> FloatArray:
    """Return f_k(q), 1 where q rounds to 1; NaN without a fit."""
    from orderlens.theory import log_success_k

    if not np.isfinite(sigma):
        return np.full(len(logq), np.nan)
    out, unsure = np.ones(len(logq)), logq < 0
    out[unsure] = np.exp(log_success_k(logq[unsure], k, sigma))
    return out


def _numbers(study: Study, traces: Sequence[_Trace]) -> HitNumbers:
    clusters = Clusters([item.prompt for item in traces], study.options.resampling)
    lags = {lag: _autocorrelation(traces, clusters, lag) for lag in LAGS}
    return HitNumbers(lags, {span: _recovery(traces, clusters, span) for span in SPANS})


def _autocorrelation(traces: Sequence[_Trace], clusters: Clusters, lag: int) -> Estimate:
    rows = []
    for item in traces:
        z = (item.hit - item.rate) / np.sqrt(item.rate * (1 - item.rate))
        rows.append([float(z[lag:] @ z[:-lag]), max(len(z) - lag, 0), float(z @ z), len(z)])
    sums = clusters.sums(np.array(rows, np.float64))

    def correlation(total: FloatArray) -> FloatArray:
        return divide(divide(total[:, 0], total[:, 1]), divide(total[:, 2], total[:, 3]))[:, None]

    return _defined(function_of_sums(clusters, sums, correlation, len(sums))[0])


def _recovery(traces: Sequence[_Trace], clusters: Clusters, span: int) -> SpanRecovery:
    rows = []
    for item in traces:
        n_spans = len(item.hit) // span
        parts = (
            values[: n_spans * span].reshape(n_spans, span) for values in (item.hit, item.fitted, item.rate)
        )
        rows.append([*(float(part.prod(axis=1).sum()) for part in parts), n_spans])
    sums = clusters.sums(np.array(rows, np.float64))

    def shares(total: FloatArray) -> FloatArray:
        share = np.stack([divide(total[:, place], total[:, 3]) for place in range(3)], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(share)
            return np.column_stack([share, logs[:, 0] - logs[:, 2], logs[:, 0] - logs[:, 1]])

    found = [_defined(cell) for cell in function_of_sums(clusters, sums, shares, len(sums))]
    return SpanRecovery(found[0], found[1], found[2], found[3], found[4])


def _defined(cell: Estimate) -> Estimate:
    """Return the estimate, or the reason why it is not a number."""
    if np.isfinite(cell.value):
        return cell
    return Estimate.undefined("no whole span, no recovered span, or no fit")


_COLUMNS = (
    Column("observed", "recovered"),
    Column("fitted", "Π f_k(q)"),
    Column("by_rate", "Π hit rate"),
    Column("log_excess", "log(recovered / Π rate)"),
    Column("log_excess_fitted", "log(recovered / Π f)"),
)
_LAGS = tuple(Column(f"lag_{lag}", f"lag {lag}") for lag in LAGS)


@table("are greedy successes independent given q?", traces="score", suits=never)
def hits(study: Study) -> list[Table]:
    """Return the recovery of spans against two products over steps, and the autocorrelation of hits."""
    found = study.shared(measure_hits)
    spans: list[dict[str, Cell]] = []
    lags: list[dict[str, Cell]] = []
    for order, numbers in found.items():
        for span, cells in numbers.spans.items():
            names = (column.name for column in _COLUMNS)
            spans.append(
                {"order": order, "span": str(span), **{name: getattr(cells, name) for name in names}}
            )
        lags.append({"order": order, **{f"lag_{lag}": cell for lag, cell in numbers.lags.items()}})
    notes = (
        "recovered: share of spans of consecutive reveals in which every target was the most probable token.",
        "Π f_k(q): product of the theory's success probabilities at the fitted σ and k (table theory-fit).",
        f"Π hit rate: product of the hit rates among reveals of similar q ({N_BINS} bins of equal size).",
    )
    if not found:
        missing = Estimate.undefined(NO_TARGET)
        spans = [{"order": ALL, "span": "(none)", **{column.name: missing for column in _COLUMNS}}]
    given_q = ("Residuals of hits after the hit rate at similar q; 0 if successes are independent given q.",)
    return [
        Table("hits", "Recovery of whole spans", ("order", "span"), _COLUMNS, tuple(spans), notes),
        Table("hits-lags", "Autocorrelation of hits given q", ("order",), _LAGS, tuple(lags), given_q),
    ]
