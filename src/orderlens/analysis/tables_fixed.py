"""Tables of scored targets: mean log q and Var per order, and deviation from one joint distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from orderlens.analysis import paper
from orderlens.analysis.coherence import Circulation, Statistic, measure_coherence
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, has_scored, table
from orderlens.metrics.coherence import ROUNDING, tied_ranks
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.order_shape import rank_correlation
from orderlens.rules.cards import kind_of

_FIXED = (
    Column("mean", "mean log q"),
    Column("var", "Var(log q)"),
    Column("gini_block0", "Gini (block 0)"),
    Column("gini_mean", "Gini (blocks)"),
    Column("argmax_accuracy", "argmax accuracy"),
    Column("bottleneck_rate", "q < 1/2"),
    Column("min", "min log q"),
    Column("var_about", "Var about others"),
)


@table("mean log q and Var per order on fixed targets (Fig. 1a)", traces="score", suits=has_scored)
def fixed_sequence(study: Study) -> list[Table]:
    """Return the plane of mean log q and Var per order on fixed targets (data of the paper's Fig. 1a)."""
    rows = order_plane(study)
    columns = (Column("kind", "kind"), Column("n", "n"), Column("seeds", "seeds"), *_FIXED)
    title = "Fixed sequences: mean log q and its variance per order (nats, per sequence, then averaged)"
    return [Table("fixed-sequence", title, ("order",), columns, tuple(rows), _plane_notes(rows))]


def order_plane(study: Study) -> list[dict[str, Cell]]:
    """Return each order's statistics on fixed targets."""
    frame, names = study.scored, [column.name for column in _FIXED]
    rows = []
    for order in study.orders(study.samples):
        part = frame[frame["order"] == order]
        cells = study.estimates(part, names) if len(part) else [Estimate.undefined(NO_TARGET)] * len(names)
        n_seeds = int(part["seed"].nunique())
        head: dict[str, Cell] = {"order": order, "kind": kind_of(order), "n": len(part), "seeds": n_seeds}
        rows.append(head | dict(zip(names, cells, strict=True)))
    return rows


def _theirs() -> str:
    return f"{paper.number('spearman_var_mean'):.2f}".replace("-", "−")


def _plane_notes(rows: Sequence[dict[str, Cell]]) -> tuple[str, ...]:
    points = [(str(row["order"]), row["mean"], row["var"]) for row in rows]
    known = [
        (o, m.value, v.value) for o, m, v in points if isinstance(m, Estimate) and isinstance(v, Estimate)
    ]
    known = [point for point in known if math.isfinite(point[1]) and math.isfinite(point[2])]
    about = (
        "Var about others: mean squared deviation of log q from the mean over tokens of the other sequences."
    )
    notes = [
        about,
        (
            "For target-aware orders the mean of log q is not a likelihood: the implied probabilities can "
            "sum to more than 1."
        ),
    ]
    if len(known) > 2:
        rho = rank_correlation(tied_ranks([p[1] for p in known]), [p[2] for p in known])
        shown = (
            f"= {rho:.2f}" if math.isfinite(rho) else "is undefined because their means (or Var) are equal"
        )
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
    times = Estimate(value.value / floor) if value.is_defined and floor else Estimate.undefined("no value")
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
