"""Dependence of log P of fixed texts on the order: the numbers and their table.

Every measure is 0 for a model with one joint distribution. Figure and findings share
the numbers: ``study.shared(measure_coherence)`` computes them once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from orderlens.analysis.frames import side_by_side
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, has_scored, table
from orderlens.analysis.traces import TRACE, trace_rows
from orderlens.metrics.coherence import (
    MIN_RANDOM_ORDERS,
    ROUNDING,
    CirculationSummary,
    circulation_by,
    dispersion,
    ensemble_gap,
    noise_floor,
    order_range,
    summarise_circulation,
)
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, mean, means, median
from orderlens.rules.cards import is_random, kind_of

DISTANCE_EDGES = (1, 2, 3, 5, 9, 17, 1e9)
MASK_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Statistic:
    """One measure of order dependence (nats per token).

    Attributes:
        name: range_of_means, observed_range, mean_of_ranges, dispersion, ensemble_gap or noise_floor.
        scope: kind of orders, order with seeds, or perturbation.
        value: the estimate with its interval, or the reason why it is undefined.
        n_orders: orders or seeds that it compares.
        p: p-value of the hypothesis that the orders agree; None where there is no test.
    """

    name: str
    scope: str
    value: Estimate
    n_orders: int
    p: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Circulation:
    """|Γ| of adjacent swaps in one group (nats)."""

    group: str
    median_abs: Estimate
    rms: Estimate
    signed_mean: Estimate
    n: int
    n_undefined: int


@dataclass(frozen=True, slots=True)
class Coherence:
    """All measures of a study.

    Attributes:
        gaps: measures of order dependence.
        noise: change of log P/n when the same path is scored again, one per perturbation.
        noise_floor: the largest of these; NaN where it was not measured.
        circulation: over all swaps first, then by distance and by mask ratio.
        left_out: policies that reveal several tokens per pass, to which the chain rule does not apply.
    """

    gaps: tuple[Statistic, ...]
    noise: tuple[Statistic, ...]
    noise_floor: float
    circulation: tuple[Circulation, ...]
    left_out: tuple[str, ...]

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """All rows of the table."""
        return (*self.gaps, *self.noise)

    def find(self, name: str, scope: str) -> Statistic:
        """Return one measure; undefined where the runs do not hold it."""
        missing = Statistic(name, scope, Estimate.undefined("fewer than two such orders"), 0)
        return next((item for item in self.gaps if (item.name, item.scope) == (name, scope)), missing)


def measure_coherence(study: Study) -> Coherence:
    """Return how much log P of the scored texts depends on the order."""
    floor, noise = _noise(study)
    frame = study.one_token_per_pass
    left_out = [order for order in study.orders(study.scored) if order not in set(frame["order"])]
    drawn = [order for order in study.orders(frame) if is_random(order)] or ["random"]
    seeds = [item for order in drawn for item in _of_seeds(study, order)]
    return Coherence((*_ranges(study), *seeds), tuple(noise), floor, _circulation(study), tuple(left_out))


def _ranges(study: Study) -> Iterator[Statistic]:
    frame = study.one_token_per_pass
    wide = side_by_side(frame, "mean")  # per sequence and order, seeds averaged
    wide = wide[study.orders(frame)] if len(frame) else wide
    kinds = {order: kind_of(str(order)) for order in wide.columns}
    scopes = {kind: [o for o in wide.columns if kinds[o] == kind] for kind in ("deployable", "target-aware")}
    scopes["all"] = list(wide.columns)
    how = study.options.resampling
    for scope, orders in scopes.items():
        found = order_range(wide[orders].to_numpy(np.float64), how)
        p = Estimate(found.p, n=found.estimate.n) if math.isfinite(found.p) else None
        observed = Estimate(found.plain, n=found.estimate.n, why=found.estimate.why)
        cells = (
            ("range_of_means", found.estimate, p),
            ("observed_range", observed, None),
            ("mean_of_ranges", _mean_of_ranges(wide[orders], how), None),
        )
        for name, cell, test in cells:
            value = cell if len(frame) else Estimate.undefined(NO_TARGET)
            yield Statistic(name, scope, value, len(orders), test)


def _mean_of_ranges(wide: pd.DataFrame, resampling: Resampling) -> Estimate:
    if wide.shape[1] < 2:
        return Estimate.undefined("fewer than two orders")
    known = wide.where(np.isfinite(wide))  # an impossible token has log q = −inf
    ranges = np.ptp(known.to_numpy(np.float64), axis=1)  # NaN where an order is missing
    return mean(ranges, Clusters(list(wide.index), resampling), "no sequence was scored under every order")


def _of_seeds(study: Study, order: str) -> list[Statistic]:
    frame = study.scored[study.scored["order"] == order]
    sums = side_by_side(frame, "log_prob", by="seed")
    n = frame.groupby("prompt", sort=False)["n"].first().reindex(sums.index).to_numpy(np.float64)
    n_seeds = sums.shape[1]
    if n_seeds < 2:
        why = "fewer than two random orders per sequence"
        cells = [Estimate.undefined(why)] * 2
    else:
        values = sums.to_numpy(np.float64)
        columns = np.column_stack([dispersion(values / n[:, None]), ensemble_gap(values, n)])
        cells = means(columns, Clusters(list(sums.index), study.options.resampling))
    if 2 <= n_seeds < MIN_RANDOM_ORDERS:
        why = f"only {n_seeds} random orders ({MIN_RANDOM_ORDERS} wanted)"
        cells = [replace(cell, why=why) for cell in cells]
    names = ("dispersion", "ensemble_gap")
    return [Statistic(name, order, cell, n_seeds) for name, cell in zip(names, cells, strict=True)]


def _noise(study: Study) -> tuple[float, list[Statistic]]:
    """Return the largest noise floor, and one per perturbation."""
    frame = _measured(study, "noise")
    if not len(frame) or "perturbation" not in frame.columns:
        cell = Estimate.undefined("not measured: score with --noise-floor")
        return math.nan, [Statistic("noise_floor", "(all)", cell, 0)]
    floor = noise_floor(
        frame["log_prob"], frame["log_prob_perturbed"], frame["n"], frame["perturbation"].tolist()
    )
    per_token = np.abs(frame["log_prob_perturbed"] - frame["log_prob"]) / frame["n"].where(frame["n"] > 0)
    found = []
    for name in floor.by_perturbation:
        part = frame[frame["perturbation"] == name]
        cell = mean(per_token[part.index], study.clusters(part), "no finite rescoring")
        found.append(Statistic("noise_floor", name, cell, int(part["order"].nunique())))
    return floor.headline, found


def _measured(study: Study, name: str) -> pd.DataFrame:
    """Return a measurement's rows with their ``prompt``; a trace that two runs hold is listed once."""
    rows = trace_rows(study.run, name)
    if not len(rows):
        return rows
    traces = study.all_traces[[*TRACE, "prompt", "repeated"]]
    joined = rows.merge(traces, on=TRACE, how="left").sort_index()
    joined["prompt"] = joined["prompt"].astype(object).where(joined["prompt"].notna(), joined["sample_id"])
    return joined[joined["repeated"].ne(True)].reset_index(drop=True)


def _circulation(study: Study) -> tuple[Circulation, ...]:
    frame = _measured(study, "circulation")
    if not len(frame) or "gamma" not in frame.columns:
        empty = Estimate.undefined("not measured: score with --circulation N")
        return (Circulation("all", empty, empty, empty, 0, 0),)
    gamma = np.abs(frame["gamma"].to_numpy(np.float64))
    overall = summarise_circulation(frame["gamma"])
    clustered = median(gamma, study.clusters(frame), "no finite Γ")
    distances = circulation_by(frame["gamma"], frame["distance"], DISTANCE_EDGES)
    by_distance = {f"distance {key.replace('1e+09', '…')}": value for key, value in distances.items()}
    masks = circulation_by(frame["gamma"], frame["mask_ratio"], MASK_EDGES)
    by_mask = {f"mask ratio {key}": value for key, value in masks.items()}
    return (_group("all", overall, clustered), *_groups(by_distance), *_groups(by_mask))


def _groups(summaries: Mapping[str, CirculationSummary]) -> Iterator[Circulation]:
    for name, summary in summaries.items():
        yield _group(name, summary)


def _group(name: str, summary: CirculationSummary, median_abs: Estimate | None = None) -> Circulation:
    values = (summary.median_abs, summary.rms, summary.signed_mean)
    middle, rms, signed = (
        Estimate(value, n=summary.n, why=None if summary.n else "no finite Γ") for value in values
    )
    return Circulation(name, median_abs or middle, rms, signed, summary.n, summary.n_undefined)


@table("dependence of log P on the order, with the noise floor", traces="score", suits=has_scored)
def coherence(study: Study) -> list[Table]:
    """Return every coherence measure with the numerical noise floor."""
    found = study.shared(measure_coherence)
    columns = (
        Column("value", "nats/token", 4),
        Column("p", "p", 4),
        Column("n_orders", "orders"),
        Column("noise_floor", "noise floor", 6),
        Column("times_noise", "× noise floor", 1),
    )
    notes = [
        "range_of_means: max − min over orders of the data-set mean, corrected for noise.",
        "observed_range: the same without the correction. mean_of_ranges: max − min per sequence, averaged.",
        "p: test of the hypothesis that orders agree (permuted within texts).",
        "dispersion: SD over random orders per sequence. ensemble_gap: log of mean P minus mean log P.",
        "Ranges use only sequences that were scored under every order of the scope.",
    ]
    if found.left_out:
        sets = ", ".join(found.left_out)
        notes.append(f"Left out, since they reveal several tokens per pass: {sets}.")
    gaps = [_coherence_row(item) | _noise_cells(item.value, found.noise_floor) for item in found.gaps]
    noise = [_coherence_row(item) | {"noise_floor": None, "times_noise": None} for item in found.noise]
    title = "Order coherence of fixed sequences (0 for a model with one joint distribution)"
    table = Table("coherence", title, ("statistic", "scope"), columns, (*gaps, *noise), tuple(notes))
    return [table, _circulation_table(found.circulation)]


def _coherence_row(item: Statistic) -> dict[str, Cell]:
    return {
        "statistic": item.name,
        "scope": item.scope,
        "value": item.value,
        "p": item.p,
        "n_orders": item.n_orders,
    }


def _noise_cells(value: Estimate, floor: float) -> dict[str, Cell]:
    if not math.isfinite(floor):
        missing = Estimate.undefined("noise floor not measured: score with --noise-floor")
        return {"noise_floor": missing, "times_noise": missing}
    times = Estimate(value.value / floor) if value.is_defined and floor > ROUNDING else value
    if floor <= ROUNDING:
        times = Estimate.undefined(f"the noise floor is only rounding error (at most {ROUNDING:g})")
    return {"noise_floor": Estimate(floor), "times_noise": times}


def _circulation_table(groups: Sequence[Circulation]) -> Table:
    columns = (
        Column("median_abs", "median |Γ|", 4),
        Column("rms", "RMS", 4),
        Column("signed_mean", "signed mean", 4),
        Column("n", "n"),
        Column("n_undefined", "undefined"),
    )
    names = ("group", *(column.name for column in columns))
    rows: list[dict[str, Cell]] = [{name: getattr(item, name) for name in names} for item in groups]
    title = "Circulation Γ of adjacent reveals (nats; 0 for a coherent model)"
    return Table("circulation", title, ("group",), columns, tuple(rows))
