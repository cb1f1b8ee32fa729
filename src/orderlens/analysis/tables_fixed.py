"""Tables of scored targets: the orders on one plane, and how far they are from one joint distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.frames import side_by_side
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table
from orderlens.analysis.tables import has_scored, table
from orderlens.analysis.traces import TRACE, trace_rows
from orderlens.metrics.coherence import (
    MIN_RANDOM_ORDERS,
    ROUNDING,
    CirculationSummary,
    circulation_by,
    dispersion,
    ensemble_gap,
    noise_floor,
    settled,
    summarise_circulation,
)
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, mean, means, median
from orderlens.metrics.order_range import order_range
from orderlens.metrics.order_shape import rank_correlation
from orderlens.rules.cards import is_random, kind_of

_FIXED = (
    Column("mean", "mean log q"),
    Column("var", "Var(log q)"),
    Column("gini_block0", "Gini (block 0)"),
    Column("gini_mean", "Gini (blocks)"),
    Column("argmax_accuracy", "argmax acc."),
    Column("bottleneck_rate", "q < 1/2"),
    Column("min", "min log q"),
    Column("var_about", "Var about others"),
)


@table("mean log q and Var per order on fixed targets (Fig. 1a)", traces="score", suits=has_scored)
def fixed_sequence(study: Study) -> list[Table]:
    """Return the plane of mean log q and Var per order on fixed targets (data of the paper's Fig. 1a)."""
    frame = study.scored
    rows = []
    for order in study.orders(study.samples):
        part = frame[frame["order"] == order]
        found = study.estimates(part, [column.name for column in _FIXED]) if len(part) else []
        cells = found or [Estimate.undefined(NO_TARGET)] * len(_FIXED)
        head: dict[str, Cell] = {
            "order": order,
            "kind": kind_of(order),
            "n": len(part),
            "seeds": _n_seeds(part),
        }
        rows.append(head | dict(zip((column.name for column in _FIXED), cells, strict=True)))
    columns = (Column("kind", "kind"), Column("n", "n"), Column("seeds", "seeds"), *_FIXED)
    title = "Fixed sequences: mean log q and its variance per order (nats, per sequence, then averaged)"
    return [Table("fixed-sequence", title, ("order",), columns, tuple(rows), _plane_notes(rows))]


def _n_seeds(part: pd.DataFrame) -> int:
    return int(part["seed"].nunique())


def _theirs() -> str:
    return f"{paper.number('spearman_var_mean'):.2f}".replace("-", "−")


def _plane_notes(rows: Sequence[dict[str, Cell]]) -> tuple[str, ...]:
    points = [(str(row["order"]), row["mean"], row["var"]) for row in rows]
    known = [
        (o, m.value, v.value) for o, m, v in points if isinstance(m, Estimate) and isinstance(v, Estimate)
    ]
    known = [point for point in known if math.isfinite(point[1]) and math.isfinite(point[2])]
    about = "Var about others: mean square of log q about the mean per token of the other sequences."
    notes = [
        about,
        "For target-aware orders the mean of log q is no likelihood: their sums can exceed 1 in total.",
    ]
    if len(known) > 2:
        rho = rank_correlation(settled([p[1] for p in known]), [p[2] for p in known])
        shown = f"= {rho:.2f}" if math.isfinite(rho) else "is undefined, their means (or Var) being equal"
        found = f"Spearman(Var, mean log q) {shown} (paper: {_theirs()} over six)"
        notes.append(f"Across the {len(known)} orders {found}.")
        pairs = [
            f"{a[0]}/{b[0]}"
            for a, b in itertools.combinations(known, 2)
            if abs(a[1] - b[1]) > ROUNDING and (a[1] - b[1]) * (a[2] - b[2]) > 0
        ]
        notes.append(f"Pairs in which the higher mean has the higher Var: {', '.join(pairs) or 'none'}.")
    return tuple(notes)


@table("dependence of log P on the order, with the noise floor", traces="score", suits=has_scored)
def coherence(study: Study) -> list[Table]:
    """Return every coherence measure beside the numerical noise floor."""
    floor, rows = _noise_rows(study)
    gaps = [*_range_rows(study), *_random_rows(study)]
    for row in gaps:
        row["noise_floor"], row["times_noise"] = _beside(row["value"], floor)
    for row in rows:
        row["noise_floor"] = row["times_noise"] = None
    for row in (*gaps, *rows):
        row.setdefault("p", None)
    columns = (
        Column("value", "nats/token", 4),
        Column("p", "p", 4),
        Column("n_orders", "orders"),
        Column("noise_floor", "noise floor", 6),
        Column("times_noise", "× noise", 1),
    )
    notes = (
        "range_of_means: max − min over orders of the data-set mean, corrected for noise (observed_range).",
        "p: the orders agree (permuted within texts). mean_of_ranges: per sequence first.",
        "dispersion: sd over random orders per sequence. ensemble_gap: log of mean P minus mean log P.",
        "Only sequences scored under every order of the scope count for the two ranges.",
        *_left_out(study),
    )
    title = "Order coherence of fixed sequences (0 for a model with one joint distribution)"
    table = Table("coherence", title, ("statistic", "scope"), columns, (*gaps, *rows), notes)
    return [table, *_circulation_tables(study)]


def _left_out(study: Study) -> tuple[str, ...]:
    """Name the policies whose sums the chain rule says nothing about."""
    sets = [order for order in study.orders(study.scored) if order not in set(study.one_by_one["order"])]
    return (f"Left out, since they reveal several tokens per pass: {', '.join(sets)}.",) if sets else ()


def _range_rows(study: Study) -> list[dict[str, Cell]]:
    frame = study.one_by_one
    out: list[dict[str, Cell]] = []
    wide = _per_sequence(study, frame)
    kinds = {order: kind_of(str(order)) for order in wide.columns}
    scopes = {kind: [o for o in wide.columns if kinds[o] == kind] for kind in ("deployable", "target-aware")}
    scopes["all"] = list(wide.columns)
    how = study.options.resampling
    for scope, orders in scopes.items():
        found = order_range(wide[orders].to_numpy(np.float64), how)
        cells = {
            "range_of_means": found.estimate,
            "observed_range": Estimate(found.plain, n=found.estimate.n, why=found.estimate.why),
            "mean_of_ranges": _mean_of_ranges(wide[orders], how),
        }
        for name, cell in cells.items():
            value = cell if len(frame) else Estimate.undefined(NO_TARGET)
            head: dict[str, Cell] = {"statistic": name, "scope": scope, "value": value, "p": None}
            out.append(head | {"n_orders": len(orders)})
        if math.isfinite(found.p):
            out[-3]["p"] = Estimate(found.p, n=found.estimate.n)
    return out


def _per_sequence(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean log q per sequence (rows) and order (columns), seeds averaged."""
    wide = side_by_side(frame, "mean")
    return wide[study.orders(frame)] if len(frame) else wide


def _mean_of_ranges(wide: pd.DataFrame, resampling: Resampling) -> Estimate:
    if wide.shape[1] < 2:
        return Estimate.undefined(f"{wide.shape[1]} order(s): at least two are needed")
    known = wide.where(np.isfinite(wide))  # an impossible token has log q = −inf
    ranges = np.ptp(known.to_numpy(np.float64), axis=1)  # NaN where an order is missing
    return mean(ranges, Clusters(list(wide.index), resampling), "no sequence was scored under every order")


def _random_rows(study: Study) -> list[dict[str, Cell]]:
    drawn = [order for order in study.orders(study.one_by_one) if is_random(order)]
    return [row for order in drawn or ["random"] for row in _seed_rows(study, order)]


def _seed_rows(study: Study, order: str) -> list[dict[str, Cell]]:
    frame = study.scored[study.scored["order"] == order]
    sums = side_by_side(frame, "log_prob", by="seed")
    n = frame.groupby("prompt", sort=False)["n"].first().reindex(sums.index).to_numpy(np.float64)
    n_seeds = sums.shape[1]
    names = ("dispersion", "ensemble_gap")
    if n_seeds < 2:
        cells = [Estimate.undefined(f"{n_seeds} random order(s) per sequence: at least 2 are needed")] * 2
    else:
        values = sums.to_numpy(np.float64)
        columns = np.column_stack([dispersion(values / n[:, None]), ensemble_gap(values, n)])
        cells = means(columns, Clusters(list(sums.index), study.options.resampling))
    if 2 <= n_seeds < MIN_RANDOM_ORDERS:
        why = f"only {n_seeds} random orders ({MIN_RANDOM_ORDERS} wanted)"
        cells = [Estimate(c.value, c.low, c.high, c.n, c.n_undefined, why) for c in cells]
    return [
        {"statistic": name, "scope": order, "value": cell, "n_orders": n_seeds}
        for name, cell in zip(names, cells, strict=True)
    ]


def _noise_rows(study: Study) -> tuple[float, list[dict[str, Cell]]]:
    """Return the largest noise floor and one row per perturbation."""
    frame = _measured(study, "noise")
    if not len(frame) or "perturbation" not in frame.columns:
        cell = Estimate.undefined("not measured: score with --noise-floor")
        return math.nan, [{"statistic": "noise_floor", "scope": "(all)", "value": cell, "n_orders": 0}]
    floor = noise_floor(
        frame["log_prob"], frame["log_prob_perturbed"], frame["n"], frame["perturbation"].tolist()
    )
    per_token = np.abs(frame["log_prob_perturbed"] - frame["log_prob"]) / frame["n"].where(frame["n"] > 0)
    rows: list[dict[str, Cell]] = []
    for name in floor.by_perturbation:
        part = frame[frame["perturbation"] == name]
        clusters = study.clusters(part)
        cell = mean(per_token[part.index], clusters, "no finite rescoring")
        head: dict[str, Cell] = {"statistic": "noise_floor", "scope": name}
        rows.append(head | {"value": cell, "n_orders": int(part["order"].nunique())})
    return floor.headline, rows


def _measured(study: Study, name: str) -> pd.DataFrame:
    """Return a measurement's rows with their ``prompt``; those of a trace that two runs hold come once."""
    rows = trace_rows(study.run, name)
    if not len(rows):
        return rows
    traces = study.every[[*TRACE, "prompt", "repeated"]]
    joined = rows.merge(traces, on=TRACE, how="left").sort_index()
    joined["prompt"] = joined["prompt"].astype(object).where(joined["prompt"].notna(), joined["sample_id"])
    return joined[joined["repeated"].ne(True)].reset_index(drop=True)


def _beside(value: Cell, floor: float) -> tuple[Estimate, Estimate]:
    if not math.isfinite(floor):
        return (Estimate.undefined("noise floor not measured: score with --noise-floor"),) * 2
    if floor <= ROUNDING:
        return Estimate(floor), Estimate.undefined(f"the noise floor is rounding, at most {ROUNDING:g}")
    if not isinstance(value, Estimate) or not value.is_defined:
        return Estimate(floor), Estimate.undefined("no value")
    return Estimate(floor), Estimate(value.value / floor)


DISTANCE_EDGES = (1, 2, 3, 5, 9, 17, 1e9)
MASK_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)


def _circulation_tables(study: Study) -> list[Table]:
    frame = _measured(study, "circulation")
    columns = (
        Column("median_abs", "median |Γ|", 4),
        Column("rms", "RMS", 4),
        Column("signed_mean", "signed mean", 4),
        Column("n", "n"),
        Column("n_undefined", "undefined"),
    )
    title = "Circulation Γ of adjacent reveals (nats; 0 for a coherent model)"
    if not len(frame) or "gamma" not in frame.columns:
        empty = Estimate.undefined("not measured: score with --circulation N")
        row: dict[str, Cell] = {"group": "all", "median_abs": empty, "rms": empty, "signed_mean": empty}
        return [Table("circulation", title, ("group",), columns, (row | {"n": 0, "n_undefined": 0},))]
    groups = {"all": summarise_circulation(frame["gamma"])}
    by_distance = circulation_by(frame["gamma"], frame["distance"], DISTANCE_EDGES)
    groups |= {f"distance {key.replace('1e+09', '…')}": value for key, value in by_distance.items()}
    by_mask = circulation_by(frame["gamma"], frame["mask_ratio"], MASK_EDGES)
    groups |= {f"mask ratio {key}": value for key, value in by_mask.items()}
    rows = [_circulation_row(name, summary) for name, summary in groups.items()]
    rows[0] |= {"median_abs": _clustered_median(study, frame)}
    return [Table("circulation", title, ("group",), columns, tuple(rows))]


def _circulation_row(name: str, summary: CirculationSummary) -> dict[str, Cell]:
    values = (summary.median_abs, summary.rms, summary.signed_mean)
    cells = [Estimate(v, n=summary.n, why=None if summary.n else "no finite Γ") for v in values]
    named: dict[str, Cell] = dict(zip(("median_abs", "rms", "signed_mean"), cells, strict=True))
    return {"group": name, **named, "n": summary.n, "n_undefined": summary.n_undefined}


def _clustered_median(study: Study, frame: pd.DataFrame) -> Estimate:
    gamma = np.abs(frame["gamma"].to_numpy(np.float64))
    return median(gamma, study.clusters(frame), "no finite Γ")
