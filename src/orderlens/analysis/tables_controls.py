"""Tables that ask whether Var says anything of its own: controls, rivals, and the mean-only null."""

from __future__ import annotations

import math

import pandas as pd

from orderlens.analysis.association import DIRECTIONS, POOLED, controls
from orderlens.analysis.null import mean_only_null, null_summary, simulate_study
from orderlens.analysis.study import Options, Study
from orderlens.analysis.table import Cell, Column, Table, rows_of
from orderlens.analysis.tables import has_verdicts, table
from orderlens.analysis.tables_downstream import ungraded_table
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.significance import adjust


@table("does Var add to mean and length?", needs=("jensen",), suits=has_verdicts)
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
        return [ungraded_table(study, "controls", title, tests)]
    frame = controls(study.graded, study.options.resampling)
    rows = rows_of(frame, ("task", "order"), tests, ("n", "n_undefined"))
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
    rows = rows_of(frame, ("task", "order"), columns, ("n",))
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
    return Table("controls-rivals", title, keys, columns, rows_of(long, keys, columns, ("n",)), notes)


_NULL = (
    Column("observed", "observed"),
    Column("null", "mean-only null"),
    Column("p", "p", 3),
    Column("n", "n"),
)


@table("the same statistics when only the mean matters", suits=has_verdicts)
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
