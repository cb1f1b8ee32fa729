"""Cost of committing several tokens per pass: couplings of sets, the split of the loss, Var over passes.

A set's coupling is the mean over the paths it was measured along, its incoherence their max − min. A trace's
coupling is the sum over its sets along its own path: where only some were drawn, their sum scaled up. The
parts of Var follow from a trace's own moments and the sets' rows along that path; ``metrics.passes`` has the
identity.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis.frames import Paired, side_by_side
from orderlens.analysis.study import Study
from orderlens.analysis.table import Cell, Column, Table, has_couplings, table
from orderlens.analysis.traces import TRACE, in_sets, trace_rows
from orderlens.metrics.estimate import Clusters, Estimate, means, ratios_of_sums
from orderlens.rules.cards import is_deployable
from orderlens.store.reader import Run

NOT_MEASURED = "not measured: score policies that commit sets with --couplings N"
VAR_PARTS = ("between", "inside", "coupling_between", "coupling_inside")
_SETS = (
    Column("n_sets", "sets"),
    Column("size", "tokens", 2),
    Column("coupling", "C per set", 4),
    Column("per_token", "C per token", 4),
    Column("exact", "exact C per set", 4),
    Column("incoherence", "between paths", 4),
    Column("bound", "entropy bound", 3),
    Column("above", "C > bound", 3),
)
_LOSS = (
    Column("n", "n"),
    Column("loss", "loss to reference", 4),
    Column("of_coupling", "due to coupling", 4),
    Column("of_order", "due to order", 4),
)
_VAR = (
    Column("n", "n"),
    Column("var", "Var(log q)"),
    Column("between", "between passes"),
    Column("inside", "inside passes"),
    Column("coupling_between", "coupling, between"),
    Column("coupling_inside", "coupling, inside"),
    Column("var_one_token_per_pass", "Var, one token per pass"),
)
SIZES = (2, 3, 5, 9, 17, 1 << 30)
GAPS = (1, 2, 3, 5, 9, 1 << 30)


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
    single = (out["n_passes_requested"] == out["n"]).to_numpy()
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
    out["coupling"] = np.where(single, 0.0, joined["own"] * scale)
    whole = single | (joined["measured"] == joined["n_sets"]).to_numpy()
    own, squares, pass_squares = (
        np.where(single, 0.0, joined[name]) for name in ("own", "squares", "pass_squares")
    )
    n, mean = out["n"].to_numpy(np.float64), out["mean"].to_numpy(np.float64)
    shift = mean**2 - (mean + own / n) ** 2  # ȳ² − z̄²
    between = pass_squares / n + shift
    out["between"] = np.where(whole, out["var_between"], np.nan)
    out["inside"] = np.where(whole, out["var_inside"], np.nan)
    out["coupling_between"] = np.where(whole, between, np.nan)
    out["coupling_inside"] = np.where(whole, squares / n + shift - between, np.nan)
    out["var_one_token_per_pass"] = out[list(VAR_PARTS)].sum(axis=1, min_count=len(VAR_PARTS))
    return out


@table(
    "cost of committing several tokens per pass: couplings, loss, Var over passes",
    traces="score",
    suits=has_couplings,
)
def couplings(study: Study) -> list[Table]:
    """Return couplings by policy and by kind of set, the split of the loss, and the parts of Var."""
    of_sets = [_set_table(study, study.shared(sets_of)), _group_table(study)]
    return [*of_sets, _loss_table(study), _var_table(study)]


def sets_of(study: Study) -> pd.DataFrame:
    """Return the measured sets of scored traces, with their prompt."""
    sets = measured_sets(study.run)
    return sets.merge(study.scored[[*TRACE, "prompt"]], on=TRACE, how="inner") if len(sets) else sets


def coupled_traces(study: Study) -> pd.DataFrame:
    """Return the scored traces with their coupling and the parts of Var; see ``traced``."""
    return traced(measured_sets(study.run), study.scored)


def _set_table(study: Study, sets: pd.DataFrame) -> Table:
    rows = [_set_cells(study, sets[sets["order"] == order], order=order) for order in study.orders(sets)] or [
        _nothing(order="(none)")
    ]
    notes = [
        "C = log p(set | revealed) − Σ log p(token | revealed), mean over the measured paths.",
        (
            "between paths: mean over sets of max − min of C over the paths; 0 for a model with one joint "
            "distribution."
        ),
        "entropy bound: Σ H − max H, an upper bound of the mean of C over texts that the model generates.",
    ]
    if len(sets) and sets["exact"].notna().any():
        worst = float((sets[["least", "most"]].sub(sets["exact"], axis=0)).abs().to_numpy().max())
        notes.append(
            f"exact: from the model's joint distribution; measured values differ by at most {worst:.1e}."
        )
    title = "Coupling of tokens committed in one pass (nats)"
    return Table("couplings", title, ("order",), _SETS, tuple(rows), tuple(notes))


def _nothing(**key: Cell) -> dict[str, Cell]:
    empty = Estimate.undefined(NOT_MEASURED)
    return key | {"n_sets": 0} | {column.name: empty for column in _SETS[1:]}


def _set_cells(study: Study, sets: pd.DataFrame, **key: Cell) -> dict[str, Cell]:
    clusters = Clusters(sets["prompt"], study.options.resampling)
    above = np.where(sets["coupling"] > sets["bound"] + 1e-9, 1.0, 0.0)
    columns = sets[["size", "coupling", "exact", "incoherence", "bound"]].to_numpy(np.float64)
    size, value, exact, spread, bound, over = means(
        np.column_stack([columns, above]), clusters, "the model has no known joint distribution"
    )
    return key | {
        "n_sets": len(sets),
        "size": size,
        "coupling": value,
        "per_token": _ratio(sets, "coupling", "size", clusters),
        "exact": exact,
        "incoherence": spread,
        "bound": bound,
        "above": over,
    }


def _ratio(rows: pd.DataFrame, top: str, bottom: str, clusters: Clusters) -> Estimate:
    """Return Σ top / Σ bottom over the rows that have both."""
    values = rows[[top, bottom]].to_numpy(np.float64)
    known = np.isfinite(values).all(axis=1)
    sums = clusters.sums(np.where(known[:, None], values, 0.0))
    (found,) = ratios_of_sums(clusters, sums, int(known.sum()))
    return found if found.is_defined else Estimate.undefined(NOT_MEASURED, len(rows))


def _group_table(study: Study) -> Table:
    title = "Coupling by size of the set and by its closest pair of positions (all policies)"
    rows = grouped_sets(study) or [_nothing(group="(none)")]
    return Table("couplings-groups", title, ("group",), _SETS, tuple(rows))


def grouped_sets(study: Study) -> list[dict[str, Cell]]:
    """Return the couplings by size of the set and by its closest pair of positions."""
    sets = study.shared(sets_of)
    rows: list[dict[str, Cell]] = []
    for name, column, edges in (("tokens", "size", SIZES), ("closest pair", "gap", GAPS)):
        for low, high in pairwise(edges):
            part = sets[(sets[column] >= low) & (sets[column] < high)] if len(sets) else sets
            if len(part):
                rows.append(_set_cells(study, part, group=f"{name} {_span(low, high)}"))
    return rows


def _span(low: int, high: int) -> str:
    if high - low == 1:
        return str(low)
    return f"≥{low}" if high == 1 << 30 else f"{low}–{high - 1}"


def reference_of(study: Study, frame: pd.DataFrame) -> str:
    """Return the policy that others are compared with: one token per pass, left to right where it was run."""
    named = study.orders(frame)
    sets = set(frame.loc[in_sets(frame), "order"])
    alone = [order for order in named if order not in sets and is_deployable(order)]
    return (alone or named or [""])[0]


def _loss_table(study: Study) -> Table:
    reference = reference_of(study, study.scored)
    rows = loss_split(study, reference)
    notes = (
        f"loss: mean log q of {reference} minus that of the policy on the same texts; the sum of both parts.",
        "coupling: Σ C per token along the policy's own path; scaled up where only some sets were measured.",
        "order: the rest, which is the loss of the same path with one token per pass.",
        "For target-aware orders, neither value is a likelihood.",
    )
    title = "Sources of the loss from committing several tokens per pass (nats per token)"
    return Table("couplings-loss", title, ("order",), _LOSS, tuple(rows), notes)


def loss_split(study: Study, reference: str) -> list[dict[str, Cell]]:
    """Return by policy the loss to ``reference`` and its parts, on texts that both have (seeds averaged)."""
    frame = study.shared(coupled_traces)
    named = frame.assign(per_token=frame["coupling"] / frame["n"])
    wide = {name: side_by_side(named, name) for name in ("mean", "per_token")}
    out: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        loss = wide["mean"][reference] - wide["mean"][order]
        coupling = wide["per_token"].get(order, pd.Series(np.nan, index=loss.index)).reindex(loss.index)
        total = Paired.of(pd.DataFrame({"loss": loss.dropna()}), study.options.resampling)
        split = pd.DataFrame({"of_coupling": coupling, "of_order": loss - coupling}).dropna()
        parts = Paired.of(split, study.options.resampling)
        why = NOT_MEASURED
        cells = [parts.mean(name) if len(split) else Estimate.undefined(why) for name in split.columns]
        row: dict[str, Cell] = {"order": order, "n": len(loss.dropna()), "loss": total.mean("loss")}
        out.append(row | dict(zip(split.columns, cells, strict=True)))
    return out


def variance_parts(study: Study) -> list[dict[str, Cell]]:
    """Return by policy Var over tokens, its parts over passes, and what the coupling adds to them."""
    frame = study.shared(coupled_traces)
    rows: list[dict[str, Cell]] = []
    for order in study.orders(frame):
        part = frame[frame["order"] == order]
        whole = part[part["var_one_token_per_pass"].notna()]
        names = ["var", *VAR_PARTS, "var_one_token_per_pass"]
        row: dict[str, Cell] = {"order": order, "n": len(whole)}
        none = [Estimate.undefined(_partly(part))] * len(names)
        cells = study.estimates(whole, names) if len(whole) else none
        rows.append(row | dict(zip(names, cells, strict=True)))
    return rows


def _var_table(study: Study) -> Table:
    notes = (
        "Var(log q) = between + inside passes. The two coupling parts add up to Var with one token per pass.",
        "Compare Var with one token per pass between policies of different set sizes.",
        "Only traces with every set measured are used; with a small --couplings these have few sets.",
    )
    title = "Var(log q) over passes (nats²): between, inside, and the part due to coupling"
    return Table("pass-variance", title, ("order",), _VAR, tuple(variance_parts(study)), notes)


def _partly(part: pd.DataFrame) -> str:
    some = part["coupling"].notna().any()
    return "not every set of a trace was measured: raise --couplings" if some else NOT_MEASURED
