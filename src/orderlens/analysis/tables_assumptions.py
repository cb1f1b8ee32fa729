"""Assumptions of the theory on traces: independence of successes, locality, noise of sampling.

*Hits.* A hit is a reveal whose target was the most probable token. The theory multiplies the success
probabilities of single steps. ``hits`` measures how far hits of one trace are correlated once q is known, and
compares the frequency of spans without a miss with two products over their steps: of the fitted f_k(q), and
of the hit rate among reveals of similar q.

*Locality.* Entropy of the masked positions (``--states``) by distance to the revealed text, and over passes.
A trace contributes one mean per group of distances (``metrics.locality``), so that long texts do not count
more.

*Tolerance.* A token drawn at temperature T is the argmax of logits with Gumbel noise of standard deviation
T π/√6. The theory's noise at T is taken as σ = T π/√6, with Gaussian noise of equal size. The loss per token
is −g(log q_t) averaged over a trace: of the trace at the lowest temperature of its order, and of the trace
that was measured at T.

Texts are resampled. Does not depend on models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from orderlens.analysis.frames import Paired, wide_of
from orderlens.analysis.study import NO_TARGET, NOT_GENERATED, Study
from orderlens.analysis.table import NO_STATES, Cell, Column, Table, has_states, never, table
from orderlens.analysis.tables_generation import spreads
from orderlens.analysis.tables_theory import TraceHits, fitted_noise, read_hits
from orderlens.analysis.traces import pick, picked_traces
from orderlens.metrics.estimate import Clusters, Estimate, function_of_sums, ratios_of_sums
from orderlens.metrics.locality import GROUPS
from orderlens.metrics.path import log_success_rows
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
    """One trace: hits, their residuals, the rate among reveals of similar q, and f_k(q), each [n].

    Residuals have mean 0 and variance 1 in every bin of q; they are 0 in bins without a hit or a miss.
    """

    order: str
    prompt: str
    hit: FloatArray
    residual: FloatArray
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
    hits = np.bincount(place, hit, len(edges) + 1)
    mean = divide(hits, counts)[place]
    residual = np.where(mean * (1 - mean) > 0, divide(hit - mean, np.sqrt(mean * (1 - mean))), 0.0)
    # Half a hit and half a miss are added, so that no factor of a product is 0 or 1.
    rate = ((hits + 0.5) / (counts + 1))[place]
    ends = np.cumsum([len(item.logq) for item in traces])[:-1]
    columns = (hit, residual, rate, _fitted(logq, sigma, k))
    parts = zip(*(np.split(values, ends) for values in columns), strict=True)
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
        z = item.residual
        rows.append([float(z[lag:] @ z[:-lag]), max(len(z) - lag, 0), float(z @ z), len(z)])
    sums = clusters.sums(np.array(rows, np.float64))

    def correlation(total: FloatArray) -> FloatArray:
        return divide(divide(total[:, 0], total[:, 1]), divide(total[:, 2], total[:, 3]))[:, None]

    (cell,) = function_of_sums(clusters, sums, correlation, len(sums))
    short = f"no trace has more than {lag} reveals"
    return _defined(cell, "no hit, or no miss" if sums[:, 1].any() else short)


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

    observed, fitted, by_rate, excess, excess_fitted = function_of_sums(clusters, sums, shares, len(sums))
    short = f"no trace has {span} reveals"
    missed = f"no span of {span} reveals was recovered" if np.isfinite(observed.value) else short
    no_fit = "σ and k were not fitted" if np.isfinite(observed.value) else short
    tiny = "Π f_k(q) rounds to 0" if observed.value > 0 else missed
    return SpanRecovery(
        _defined(observed, short),
        _defined(fitted, no_fit),
        _defined(by_rate, short),
        _defined(excess, missed),
        _defined(excess_fitted, tiny if np.isfinite(fitted.value) else no_fit),
    )


def _defined(cell: Estimate, why: str) -> Estimate:
    """Return the estimate, or the reason why it is not a number."""
    return cell if np.isfinite(cell.value) else Estimate.undefined(why)


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


QUARTERS = ("0–25 %", "25–50 %", "50–75 %", "75–100 %")
_DISTANCE = (
    Column("n", "positions"),
    Column("entropy", "entropy (nats)"),
    Column("top", "top probability"),
    Column("n_falls", "pairs"),
    Column("fall", "fall of entropy (nats)", 4),
)
_PASSES = (
    Column("n", "n"),
    *(Column(f"quarter_{place}", f"{name} revealed") for place, name in enumerate(QUARTERS)),
    Column("denoising_entropy", "denoising entropy"),
)


def shown_traces(study: Study) -> pd.DataFrame:
    """Return the scored traces with kept states, or else the generated ones at the chosen temperature."""
    if not has_states(study):
        return study.samples.iloc[:0]
    scored = study.scored.join(study.states, how="inner")
    return scored if len(scored) else study.decoded.join(study.states, how="inner")


def state_means(study: Study, part: pd.DataFrame, columns: Sequence[str]) -> list[Estimate]:
    """Return the mean of each statistic of the kept states; a trace may lack a distance or a quarter."""
    reasons = {"denoising_entropy": "cut by --limit-states"}
    return [
        replace(cell, why=f"{cell.n_undefined} {reasons.get(name, 'without such a position or pass')}")
        if cell.n_undefined
        else cell
        for cell, name in zip(study.estimates(part, columns), columns, strict=True)
    ]


@table("entropy and top probability by distance to the revealed text (--states)", suits=has_states)
def locality(study: Study) -> list[Table]:
    """Return states by distance, and the mean entropy of the masked positions over the passes."""
    frame = shown_traces(study)
    if not len(frame):
        empty = dict.fromkeys((column.name for column in _DISTANCE), Estimate.undefined(NO_STATES))
        none: dict[str, Cell] = {"order": "(none)", "distance": "–", **empty}
        return [Table("locality", NO_STATES, ("order", "distance"), _DISTANCE, (none,))]
    distances: list[dict[str, Cell]] = []
    passes: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        for d, group in enumerate(GROUPS):
            names = ("entropy", "top", "fall")
            cells = dict(zip(names, state_means(study, part, [f"{name}_{d}" for name in names]), strict=True))
            counts = {"n": int(part[f"n_entropy_{d}"].sum()), "n_falls": int(part[f"n_fall_{d}"].sum())}
            if counts["n"]:
                distances.append({"order": order, "distance": group, **counts, **cells})
        columns = [column.name for column in _PASSES[1:]]
        row = zip(columns, state_means(study, part, columns), strict=True)
        passes.append({"order": order, "n": len(part), **dict(row)})
    cut = int(frame["is_cut"].sum())
    notes = [
        "distance: to the nearest token in the block or before it; for the fall, to the new token.",
        "fall: entropy before minus after a pass that reveals one token and changes no other.",
        "For tokens drawn from a coherent model the mean fall is their mutual information.",
        *([f"{cut} of {len(frame)} traces are cut by --limit-states."] if cut else []),
    ]
    title = "States of the masked positions by distance to the revealed text"
    first = Table("locality", title, ("order", "distance"), _DISTANCE, tuple(distances), tuple(notes))
    notes = [
        "Mean entropy (nats) of the masked positions of a pass, by share of the block revealed before it.",
        "denoising entropy: its mean over all passes of a trace.",
    ]
    title = "Entropy of the masked positions over the passes"
    return [first, Table("locality-passes", title, ("order",), _PASSES, tuple(passes), tuple(notes))]


MAX_PROMPTS = 200
"""Prompts used: every reveal is needed, so their number is bounded."""
NO_NOISE = "no noise at temperature 0: the theory predicts no finite loss"


def noise_at(temperature: float) -> float:
    """Return σ, the standard deviation of the Gumbel noise of sampling at a temperature (nats)."""
    return temperature * math.pi / math.sqrt(6)


def predicted_loss(log_q: FloatArray, sigma: float) -> FloatArray:
    """Return −g(log q) of each reveal in nats."""
    return -log_success_rows(log_q, sigma)


_LOSSES = (
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
        *spreads(rows, "loss_lowest", "spread of the predicted loss across orders {:.3g} (lowest T)"),
    )
    title = "Noise tolerance: predicted loss of measured profiles"
    return Table("tolerance", title, ("order", "temperature"), _LOSSES, tuple(rows) or (_NOTHING,), notes)


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
    (cell,) = ratios_of_sums(clusters, sums, len(part))
    return cell if math.isfinite(cell.value) else Estimate.undefined("a log q is not finite")
