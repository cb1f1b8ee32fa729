"""Tables of graded generations: accuracy, Var against correctness, selectors, controls, and the null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis.association import (
    QUADRANTS,
    order_differences,
    quadrants,
    within_cell,
)
from orderlens.analysis.frames import cells as cells_by
from orderlens.analysis.frames import graded_rows
from orderlens.analysis.selecting import SELECTORS, compare_selectors
from orderlens.analysis.study import NOT_GRADED, Study
from orderlens.analysis.table import Cell, Column, Table, has_generated, has_verdicts, never, rows_of, table
from orderlens.metrics.estimate import Clusters, Estimate, ratios_of_sums
from orderlens.metrics.significance import accuracy
from orderlens.rules.cards import is_random, is_structured
from orderlens.store import NAMED_GRADER


def ungraded_table(study: Study, name: str, title: str, columns: Sequence[Column]) -> Table:
    """Return the table of a run without verdicts: its orders, with the reason in every cell."""
    source = study.generated if len(study.generated) else study.samples
    rows: list[dict[str, Cell]] = []
    for (task, order), part in cells_by(
        source.assign(task=source["task"].fillna("(none)")), ("task", "order")
    ):
        cell = Estimate.undefined(NOT_GRADED, len(part))
        rows.append({"task": str(task), "order": str(order)} | dict.fromkeys((c.name for c in columns), cell))
    remedy = "'orderlens evaluate' writes verdicts."
    return Table(name, title, ("task", "order"), tuple(columns), tuple(rows), (remedy,))


_ACCURACY = (Column("accuracy", "accuracy %", 2), Column("var", "content Var"), Column("n", "n"))

_PER_INSTRUCTION = Column("instruction_strict", "per instruction %", 2)


@table("accuracy and Var per task and order (Table 2)", suits=has_verdicts)
def downstream(study: Study) -> list[Table]:
    """Return accuracy and Var per task and order (the paper's Table 2), paired tests, and selectors."""
    title = "Downstream accuracy per task and order"
    if not len(study.graded):
        return [ungraded_table(study, "downstream", title, _ACCURACY)]
    rows: list[dict[str, Cell]] = []
    for (task, order), part in cells_by(study.graded, ("task", "order")):
        rows.append({"task": str(task), "order": str(order), **_accuracy_cells(study, part)})
    how = f"Temperature {study.temperature:g}; grader: {', '.join(study.graders) or 'unnamed'}."
    again = study.graded.duplicated(["task", "order", "item_id"]).any()
    interval = "Accuracy with Wilson intervals" + (", items resampled where they repeat." if again else ".")
    notes = (how, interval, study.options.content_note, *_tier_notes(rows))
    columns = (*_ACCURACY, _PER_INSTRUCTION) if "n_instructions" in study.graded else _ACCURACY
    table = Table("downstream", title, ("task", "order"), columns, tuple(rows), notes)
    return [table, _paired_table(study), *selector_tables(study)]


def _accuracy_cells(study: Study, part: pd.DataFrame) -> dict[str, Cell]:
    graded, lost = graded_rows(part)
    found = accuracy(graded["correct"], Clusters(graded["item_id"], study.options.resampling))
    joined = part.assign(prompt=part["item_id"], n_nonfinite=0.0, n_content=part["n"])
    more = {_PER_INSTRUCTION.name: _per_instruction(study, graded)} if "n_instructions" in graded else {}
    var = study.estimates(joined, ["var"])[0]
    return {"accuracy": replace(found, n_undefined=lost), "var": var, "n": len(part), **more}


def _per_instruction(study: Study, graded: pd.DataFrame) -> Estimate:
    """Return the share of single instructions that were followed, in percent; items are resampled."""
    if not graded["n_instructions"].sum():
        return Estimate.undefined("the task has no instructions", len(graded))
    clusters = Clusters(graded["item_id"], study.options.resampling)
    counts = 100.0 * graded["n_followed"], graded["n_instructions"]
    sums = clusters.sums(np.stack(counts, axis=1).astype(np.float64))
    n = int(graded["n_instructions"].sum())
    return ratios_of_sums(clusters, sums, n)[0]


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
        chance = [value for order, value in values.items() if is_random(order)]
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
    rows = rows_of(frame, keys, columns, ("only_first", "only_second", "n")) if len(frame) else ()
    notes = () if rows else ("One order only: nothing to compare.",)
    return Table("downstream-paired", title, keys, columns, rows, notes)


_WITHIN = (
    Column("n_correct", "n correct"),
    Column("n_incorrect", "n incorrect"),
    Column("var_correct", "Var correct"),
    Column("var_incorrect", "Var incorrect"),
    Column("gap", "gap"),
    Column("mw_p", "Mann–Whitney p", 5),
    Column("rho", "ρ(Var)"),
    Column("mw_p_holm", "Holm p", 5),
    Column("mw_p_bh", "BH p", 5),
    Column("partial_rho", "ρ(Var | mean, n)"),
    Column("rho_mean", "ρ(mean)"),
    Column("rho_min", "ρ(min)"),
    Column("rho_length", "ρ(length)"),
    Column("n_undefined", "undefined"),
)


@table("Var of correct against incorrect samples (Tables 3, S2)", needs=("jensen",), suits=has_verdicts)
def within(study: Study) -> list[Table]:
    """Return Var of correct against incorrect samples in each cell (the paper's Tables 3 and S2)."""
    title = "Var against correctness inside each (task, order) cell"
    if not len(study.graded):
        return [ungraded_table(study, "within-cell", title, _WITHIN)]
    frame = within_cell(study.graded, study.options.resampling)
    counts = ("n_correct", "n_incorrect", "n_undefined")
    rows = rows_of(frame, ("task", "order"), _WITHIN, counts)
    kept = [f"{int((frame[name] < 0.05).sum())}" for name in ("mw_p", "mw_p_holm", "mw_p_bh")]
    tested = int(frame["mw_p"].notna().sum())
    notes = [
        study.options.content_note,
        "gap = Var(incorrect) − Var(correct). Mann–Whitney is one-sided and unpaired. ρ is Spearman's.",
        f"p < 0.05 in {kept[0]} of {tested} cells; {kept[1]} remain after Holm, {kept[2]} after BH.",
        "If ρ(Var) vanishes given mean and length, Var only repeats the mean; see the table controls.",
    ]
    return [Table("within-cell", title, ("task", "order"), _WITHIN, rows, tuple(notes))]


@table("accuracy by median splits of mean and Var (Table 4)", suits=has_verdicts)
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
        return [ungraded_table(study, "quadrants", title, columns)]
    frame = quadrants(study.graded, study.options.resampling)
    counts = (*(f"n_{name}" for name in QUADRANTS), "n_undefined")
    rows = rows_of(frame, ("task",), columns, counts)
    notes = [study.options.content_note, *(_never_worse(row) for row in frame.to_dict("records"))]
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
    return f"{row['task']}: low Var {found}. The halves do not hold the mean fixed; see controls and null."


@table("choosing an order per item by Var, mean, chance, oracle", suits=never)
def selector_tables(study: Study) -> list[Table]:
    """Return the accuracy of choosing an order per item, over all and over the structured orders."""
    columns = (*(Column(name, name, 2) for name in SELECTORS), Column("best_fixed_order", "best order"))
    columns = (*columns, Column("n_items", "items"), Column("n_undefined", "undefined"))
    title = "Choosing one order per item: accuracy (%) of each selector"
    if not len(study.graded):
        return [ungraded_table(study, "selectors", title, columns)]
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
        study.options.content_note,
        "min_v, max_v: lowest, highest content Var. max_mean, max_min: highest mean, highest min of log q.",
        "shortest: fewest tokens. random: a random order. best_fixed: the best single order.",
        "oracle: correct if any order is correct.",
        "Ties are averaged; samples with fewer than 2 tokens cannot be picked.",
        "If delta_pp shrinks over structured orders, it mostly measured structured against random orders.",
    )
    return [Table("selectors", title, ("task", "scope"), columns, tuple(rows), notes)]


_CONTENT = (
    Column("content_mean", "content mean log q"),
    Column("content_var", "content Var"),
    Column("n_content", "content tokens", 1),
    Column("content_min", "content min"),
    Column("content_bottleneck_rate", "q < 1/2"),
    Column("content_gini_mean", "Gini"),
    Column("n", "n"),
)


@table("content-token statistics per task and order (Table S1)", traces="generate", suits=has_generated)
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
    notes = (study.options.content_note, "Statistics are computed per sample, then averaged.")
    title = "Content-token statistics per task and order"
    return [Table("content", title, ("task", "order"), _CONTENT, tuple(rows), notes)]


def guessing_level(documents: Sequence[Mapping[str, Any]]) -> float:
    """Return the accuracy (%) of guessing among the listed options; NaN when nothing is listed."""
    sizes = [len(doc.get("options") or doc.get("endings") or ()) for doc in documents]
    known = [size for size in sizes if size > 1]
    return float(100 * np.mean([1 / size for size in known])) if known else math.nan


def guessing_levels(study: Study) -> dict[str, float]:
    """Return the accuracy (%) of guessing per task whose documents list options and whose grader reads one.

    Under the grader that reads named options the level is unknown, because some options are easy to rule out.
    """
    named = set(study.verdicts.loc[study.verdicts["grader"] == NAMED_GRADER, "task"].astype(str))
    if "documents" not in study.run.tables:
        return {}
    documents: dict[str, list[dict[str, Any]]] = {}
    for row in study.run.table("documents").to_arrow().to_pylist():
        documents.setdefault(str(row["task"]), []).append(json.loads(row["document"]))
    return {task: guessing_level(found) for task, found in documents.items() if task not in named}
