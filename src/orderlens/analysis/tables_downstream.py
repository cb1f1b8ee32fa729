"""Tables of graded generations: accuracy, Var against correctness, selectors, controls, and the null."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from orderlens.analysis.association import (
    DIRECTIONS,
    POOLED,
    QUADRANTS,
    controls,
    order_differences,
    quadrants,
    within_cell,
)
from orderlens.analysis.estimate import Estimate
from orderlens.analysis.frames import cells as cells_by
from orderlens.analysis.frames import graded_rows
from orderlens.analysis.null import mean_only_null, null_summary, simulate_study
from orderlens.analysis.orders import base_name, is_structured
from orderlens.analysis.paired import adjust, wilson
from orderlens.analysis.selectors import SELECTORS, compare_selectors
from orderlens.analysis.study import NOT_GRADED, Options, Study
from orderlens.analysis.table import Cell, Column, Table, cells_of


def _empty(study: Study, name: str, title: str, columns: Sequence[Column]) -> Table:
    """Return the table of a run without verdicts: its orders, and why nothing is there."""
    source = study.generated if len(study.generated) else study.samples
    rows: list[dict[str, Cell]] = []
    for (task, order), part in cells_by(
        source.assign(task=source["task"].fillna("(none)")), ("task", "order")
    ):
        cell = Estimate.undefined(NOT_GRADED, len(part))
        rows.append({"task": str(task), "order": str(order)} | dict.fromkeys((c.name for c in columns), cell))
    return Table(name, title, ("task", "order"), tuple(columns), tuple(rows), (NOT_GRADED + ".",))


def _rows(
    frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[Column], counts: Sequence[str] = ()
) -> tuple[dict[str, Cell], ...]:
    """Return the rows of a result frame: keys as text, ``counts`` as whole numbers, the rest as estimates."""
    out: list[dict[str, Cell]] = [{key: str(row[key]) for key in keys} for row in frame.to_dict("records")]
    for column in columns:
        if column.name in counts:
            values: list[Cell] = [int(value) for value in frame[column.name]]
        else:
            values = list(cells_of(frame, column.name))
        for row, value in zip(out, values, strict=True):
            row[column.name] = value
    return tuple(out)


_ACCURACY = (Column("accuracy", "accuracy %", 2), Column("var", "content Var"), Column("n", "n"))


def downstream(study: Study) -> list[Table]:
    """Return accuracy and Var per task and order (the paper's Table 2), paired tests, and selectors."""
    title = "Downstream accuracy per task and order"
    if not len(study.graded):
        return [_empty(study, "downstream", title, _ACCURACY)]
    rows: list[dict[str, Cell]] = []
    for (task, order), part in cells_by(study.graded, ("task", "order")):
        rows.append({"task": str(task), "order": str(order), **_accuracy_cells(study, part)})
    how = f"Temperature {study.temperature:g}; grader: {', '.join(study.graders) or 'unnamed'}."
    notes = (how, "Accuracy with Wilson intervals.", *_tier_notes(rows))
    table = Table("downstream", title, ("task", "order"), _ACCURACY, tuple(rows), notes)
    return [table, _paired_table(study), *selector_tables(study)]


def _accuracy_cells(study: Study, part: pd.DataFrame) -> dict[str, Cell]:
    graded, lost = graded_rows(part)
    found = wilson(int(graded["correct"].sum()), len(graded), study.options.resampling.level)
    accuracy = Estimate(100 * found.value, 100 * found.low, 100 * found.high, found.n, lost, found.why)
    joined = part.assign(prompt=part["item_id"], n_nonfinite=0.0, content_n=part["n"])
    return {"accuracy": accuracy, "var": study.estimates(joined, ["var"])[0], "n": len(part)}


def _tier_notes(rows: Sequence[dict[str, Cell]]) -> list[str]:
    """Return per task: random against the rest, and the spread inside the structured tier."""
    notes = []
    for task in dict.fromkeys(str(row["task"]) for row in rows):
        values = {
            str(row["order"]): row["accuracy"].value
            for row in rows
            if row["task"] == task and isinstance(row["accuracy"], Estimate) and row["accuracy"].is_defined
        }
        tier = [value for order, value in values.items() if is_structured(order)]
        chance = [value for order, value in values.items() if base_name(order) == "random"]
        if tier and chance:
            low, high = min(tier) - max(chance), max(tier) - min(chance)
            notes.append(f"{task}: structured − random {low:.1f} to {high:.1f} pp.")
        if len(tier) > 1:
            notes.append(f"{task}: the structured orders differ by {max(tier) - min(tier):.1f} pp.")
    return notes


def _paired_table(study: Study) -> Table:
    frame = order_differences(study.graded)
    columns = (
        Column("difference_pp", "difference pp", 2),
        Column("only_first", "only first"),
        Column("only_second", "only second"),
        Column("n", "items"),
        Column("mcnemar_p", "McNemar p", 4),
        Column("mcnemar_p_holm", "Holm p", 4),
    )
    title = "Orders on the same items (exact McNemar test)"
    keys = ("task", "first", "second")
    rows = _rows(frame, keys, columns, ("only_first", "only_second", "n")) if len(frame) else ()
    notes = () if rows else ("One order only: nothing to compare.",)
    return Table("downstream-paired", title, keys, columns, rows, notes)


_WITHIN = (
    Column("n_correct", "n correct"),
    Column("n_incorrect", "n incorrect"),
    Column("var_correct", "Var correct"),
    Column("var_incorrect", "Var incorrect"),
    Column("gap", "gap"),
    Column("mw_p", "MW p", 5),
    Column("rho", "ρ(Var)"),
    Column("mw_p_holm", "Holm p", 5),
    Column("mw_p_bh", "BH p", 5),
    Column("partial_rho", "ρ(Var | mean, n)"),
    Column("rho_mean", "ρ(mean)"),
    Column("rho_min", "ρ(min)"),
    Column("rho_n", "ρ(length)"),
    Column("n_undefined", "undefined"),
)


def within(study: Study) -> list[Table]:
    """Return Var of correct against incorrect samples in each cell (the paper's Tables 3 and S2)."""
    title = "Var against correctness inside each (task, order) cell"
    if not len(study.graded):
        return [_empty(study, "within-cell", title, _WITHIN)]
    frame = within_cell(study.graded, study.options.resampling)
    counts = ("n_correct", "n_incorrect", "n_undefined")
    rows = _rows(frame, ("task", "order"), _WITHIN, counts)
    kept = [f"{int((frame[name] < 0.05).sum())}" for name in ("mw_p", "mw_p_holm", "mw_p_bh")]
    tested = int(frame["mw_p"].notna().sum())
    notes = [
        "gap = Var(incorrect) − Var(correct). Mann–Whitney is one-sided and unpaired. ρ is Spearman's.",
        f"p < .05 in {kept[0]} of {tested} cells; Holm keeps {kept[1]}, BH {kept[2]}.",
        "A ρ(Var) that vanishes given mean and length says that Var repeats the mean; see 'controls'.",
    ]
    return [Table("within-cell", title, ("task", "order"), _WITHIN, rows, tuple(notes))]


def quadrant_tables(study: Study) -> list[Table]:
    """Return accuracy after median splits of mean and Var (the paper's Table 4), with cell sizes."""
    columns = (
        *(Column(name, name.replace("_", " "), 1) for name in QUADRANTS),
        *(Column(f"n_{name}", f"n {name.replace('_', ' ')}") for name in QUADRANTS),
        Column("n_undefined", "undefined"),
    )
    title = (
        "Accuracy (%) by median split of content mean log q and Var, orders pooled (lo = at most the median)"
    )
    if not len(study.graded):
        return [_empty(study, "quadrants", title, columns)]
    frame = quadrants(study.graded, study.options.resampling)
    counts = (*(f"n_{name}" for name in QUADRANTS), "n_undefined")
    rows = _rows(frame, ("task",), columns, counts)
    notes = [_never_worse(row) for row in frame.to_dict("records")]
    return [Table("quadrants", title, ("task",), columns, rows, tuple(notes))]


def _never_worse(row: dict[str, object]) -> str:
    if row["low_var_never_worse"] is None:
        return f"{row['task']}: a quadrant is empty, so Var cannot be compared at equal mean."
    worse = [
        f"{half} mean ({row[f'{half}_mean_lo_var']:.1f} < {row[f'{half}_mean_hi_var']:.1f})"
        for half in ("hi", "lo")
        if float(str(row[f"{half}_mean_lo_var"])) < float(str(row[f"{half}_mean_hi_var"]))
    ]
    found = f"is worse at {' and '.join(worse)}" if worse else "is never worse in the halves of the mean"
    return (
        f"{row['task']}: low Var {found}. The halves do not hold the mean fixed; see 'controls' and --null."
    )


def selector_tables(study: Study) -> list[Table]:
    """Return the accuracy of choosing an order per item, over all and over the structured orders."""
    columns = (*(Column(name, name, 2) for name in SELECTORS), Column("best_fixed_order", "best order"))
    columns = (*columns, Column("n_items", "items"), Column("n_undefined", "undefined"))
    title = "Choosing one order per item: accuracy (%) of each selector"
    if not len(study.graded):
        return [_empty(study, "selectors", title, columns)]
    found = compare_selectors(study.graded, study.options.resampling)
    rows: list[dict[str, Cell]] = [
        {
            "task": one.task,
            "scope": one.scope,
            **one.accuracy,
            "best_fixed_order": one.best_fixed_order or "",
            "n_items": one.n_items,
            "n_undefined": one.n_undefined,
        }
        for one in found
    ]
    notes = (
        "min_v and max_v pick the lowest and highest content Var; max_mean, max_min and shortest are rivals.",
        "random: a uniformly chosen order. oracle: some order is right. best_fixed: the best single order.",
        "Ties are averaged; samples with fewer than 2 tokens cannot be picked.",
        "If delta_pp shrinks over the structured orders, it mostly measured structured against random.",
    )
    return [Table("selectors", title, ("task", "scope"), columns, tuple(rows), notes)]


_CONTENT = (
    Column("content_mean", "content mean log q"),
    Column("content_var", "content Var"),
    Column("content_n", "content tokens", 1),
    Column("content_min", "content min"),
    Column("content_bottleneck_rate", "q < 1/2"),
    Column("content_gini_mean", "Gini"),
    Column("n", "n"),
)


def content(study: Study) -> list[Table]:
    """Return content statistics per task and order (the paper's Table S1)."""
    frame = study.decoded if len(study.decoded) else study.samples
    names = [column.name for column in _CONTENT[:-1]]
    rows: list[dict[str, Cell]] = []
    ordered = frame.assign(task=frame["task"].astype(object).where(frame["task"].notna(), "(none)"))
    for (task,), of_task in cells_by(ordered, ("task",)):
        for order in study.orders(of_task):
            part = of_task[of_task["order"] == order]
            found: dict[str, Cell] = dict(zip(names, study.estimates(part, names), strict=True))
            rows.append({"task": str(task), "order": order, **found, "n": len(part)})
    notes = ("EOS and special tokens excluded; per sample first, then averaged over samples.",)
    title = "Content-token statistics per task and order"
    return [Table("content", title, ("task", "order"), _CONTENT, tuple(rows), notes)]


def control_tables(study: Study) -> list[Table]:
    """Return what Var says beyond mean and length, and every rival predictor's AUROC."""
    tests = (
        Column("partial_rho", "ρ(Var | mean, n)"),
        Column("partial_p", "p", 4),
        Column("partial_p_holm", "Holm p", 4),
        Column("var_coefficient", "log-odds / sd of Var"),
        Column("lr_p", "LR p", 4),
        Column("lr_p_holm", "Holm p", 4),
        Column("lr_p_bh", "BH p", 4),
        Column("n", "n"),
        Column("n_undefined", "undefined"),
    )
    title = "Does Var add to mean and length? Partial Spearman and nested logistic regression"
    if not len(study.graded):
        return [_empty(study, "controls", title, tests)]
    frame = controls(study.graded, study.options.resampling)
    rows = _rows(frame, ("task", "order"), tests, ("n", "n_undefined"))
    for row in rows:
        if row["order"] == POOLED:  # the pooled row has one test only
            row.update(dict.fromkeys(("partial_rho", "partial_p", "partial_p_holm", "lr_p_holm", "lr_p_bh")))
    per_cell = frame[frame["order"] != POOLED]
    kept = int((per_cell["lr_p_holm"] < 0.05).sum())
    notes = (
        "Logistic: correct ~ mean + mean² + length, then + Var, as normal scores; likelihood-ratio test.",
        f"Row {POOLED}: orders pooled with fixed effects, Wald test with errors clustered by item.",
        f"Var adds to mean and length in {kept} of {int(per_cell['lr_p'].notna().sum())} cells (Holm, .05).",
    )
    first = Table("controls", title, ("task", "order"), tests, rows, notes)
    return [first, _auroc_table(per_cell), _rival_table(per_cell)]


def _auroc_table(frame: pd.DataFrame) -> Table:
    names = [name for name in DIRECTIONS if f"auroc_{name}" in frame.columns]
    columns = (
        *(Column(f"auroc_{name}", name) for name in names),
        Column("n", "n"),
    )
    signs = ", ".join(f"{'lower' if DIRECTIONS[name] < 0 else 'higher'} {name}" for name in names)
    notes = (
        f"AUROC above .5 means: correct answers have {signs}. jensen: exact Jensen loss at σ = 0.5.",
        "Intervals: DeLong, or bootstrap over items when items repeat.",
    )
    title = "AUROC of correctness for Var and its rivals"
    rows = _rows(frame, ("task", "order"), columns, ("n",))
    return Table("controls-auroc", title, ("task", "order"), columns, rows, notes)


def _rival_table(frame: pd.DataFrame) -> Table:
    """Return Var's AUROC minus each rival's, on the same samples."""
    parts = []
    for name in DIRECTIONS:
        if f"auroc_var_minus_{name}" in frame.columns:
            source = {"difference": f"auroc_var_minus_{name}", "p": f"auroc_var_minus_{name}_p"}
            part = frame[["task", "order", "n", "why", *source.values()]].assign(rival=name)
            parts.append(part.rename(columns={old: new for new, old in source.items()}))
    long = pd.concat(parts, ignore_index=True)
    long["p_holm"] = adjust(long["p"], "holm")
    columns = (
        Column("difference", "AUROC(Var) − AUROC(rival)"),
        Column("p", "p", 4),
        Column("p_holm", "Holm p", 4),
        Column("n", "n"),
    )
    keys = ("task", "order", "rival")
    notes = ("DeLong's test of two correlated AUROCs, two-sided; Holm over all rows.",)
    title = "Var against each rival on the same samples"
    return Table("controls-rivals", title, keys, columns, _rows(long, keys, columns, ("n",)), notes)


_NULL = (
    Column("observed", "observed"),
    Column("null", "mean-only null"),
    Column("p", "p", 3),
    Column("n", "n"),
)


def null(study: Study) -> list[Table]:
    """Return every Var statistic beside its distribution when only the mean of log q matters."""
    made_up = not len(study.graded)
    data = simulate_study(seed=study.options.resampling.seed) if made_up else study.graded
    return [null_table(data, study.options, made_up)]


def null_table(data: pd.DataFrame, options: Options, made_up: bool) -> Table:
    """Return the null table of a study; ``made_up`` says that no real verdicts stand behind it."""
    how = options.resampling
    frame = mean_only_null(data, options.null_reps, how.seed, how.level)
    rows: list[dict[str, Cell]] = []
    for row in frame.to_dict("records"):
        key: dict[str, Cell] = {name: str(row[name]) for name in ("task", "order", "statistic")}
        why = "correctness or Var is constant"
        observed = Estimate(
            float(row["observed"]), n=int(row["n"]), why=None if _known(row["observed"]) else why
        )
        middle = Estimate(
            float(row["null_mean"]), float(row["null_low"]), float(row["null_high"]), int(row["n"])
        )
        if not _known(row["null_mean"]):
            middle = Estimate.undefined(why)
        p = Estimate(float(row["p"]), why=None if _known(row["p"]) else why)
        rows.append(key | {"observed": observed, "null": middle, "p": p, "n": int(row["n"])})
    source = (
        "a simulated study in which only the mean matters"
        if made_up
        else "this run's traces, verdicts redrawn"
    )
    notes = (f"Source: {source}; {options.null_reps} repetitions.", *null_summary(frame))
    title = "What the tables would show if Var carried nothing (correctness drawn from the mean alone)"
    return Table("null", title, ("task", "order", "statistic"), _NULL, tuple(rows), notes)


def _known(value: float) -> bool:
    return not math.isnan(float(value))
