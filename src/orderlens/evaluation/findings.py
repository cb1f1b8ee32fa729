"""What a graded study says about Var and correctness inside one order, with and without the controls.

Claims per task: the model beats guessing; correct answers have lower Var; that survives mean log q and
length; Var predicts better than its rivals; it does so on the same item. ``findings_orders`` holds the claims
that compare orders. Everything is computed from the samples; nothing here knows the paper's outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from orderlens.analysis.association import POOLED, controls, within_cell
from orderlens.analysis.estimate import Resampling, means
from orderlens.analysis.frames import cells as groups
from orderlens.analysis.table import cells_of
from orderlens.evaluation.evidence import (
    OPEN,
    REFUSED,
    SUPPORTED,
    Check,
    Finding,
    Line,
    Word,
    correct_for_many,
    flipped,
    shifted,
)
from orderlens.evaluation.findings_orders import MIN_EACH, order_findings
from orderlens.evaluation.predictors import (
    Cell,
    auroc_lead,
    pool_seeds,
    pooled_cells,
    same_item_correlation,
    var_effect,
)

SMALL_RHO, SMALL_ODDS, SMALL_AUROC = 0.05, 0.1, 0.01
"""Effects below these are of no interest: rank correlation, log-odds per standard deviation, AUROC."""


def find(
    graded: pd.DataFrame,
    resampling: Resampling | None = None,
    guessing: Mapping[str, float] | None = None,
    null_reps: int = 500,
) -> list[Finding]:
    """Return every claim about every task, judged.

    Args:
        graded: table with the columns task, order, item_id, correct, mean, var, n (and base_order).
        resampling: bootstrap over items.
        guessing: accuracy (%) of guessing by task, where there is something to guess from.
        null_reps: repetitions of the mean-only null.
    """
    how = resampling or Resampling()
    out: list[Finding] = []
    for (task,), rows in groups(graded, ("task",)):
        name = str(task)
        chosen = list(pooled_cells(rows, how))
        out += [
            *beats_guessing(name, chosen, (guessing or {}).get(name)),
            lower_when_correct(name, chosen, pool_seeds(rows), how),
            survives_controls(name, chosen, pool_seeds(rows), how),
            leads(name, chosen, "mean", "mean log q does"),
            leads(name, chosen, "n", "length does"),
            *same_item(name, chosen),
            *order_findings(name, rows, how, null_reps),
        ]
    return _with_controls(correct_for_many(out, how.level))


def beats_guessing(task: str, chosen: Sequence[Cell], level: float | None) -> list[Finding]:
    """Is there any signal in the verdicts at all?"""
    if level is None or level != level:
        return []
    lines = []
    for cell in chosen:
        if not len(cell.rows):
            continue
        (found,) = means(100.0 * cell.rows[["correct"]], cell.clusters)
        check = Check("accuracy − guessing (pp)", shifted(found, -level), digits=2)
        lines.append(Line.judged(cell.order, [check], f"guessing gives {level:.1f} %"))
    claim = "The model answers better than by guessing, so that its verdicts carry signal."
    return [Finding("beats-guessing", task, claim, tuple(lines))] if lines else []


def lower_when_correct(task: str, chosen: Sequence[Cell], pooled: pd.DataFrame, how: Resampling) -> Finding:
    """Inside one order, do correct answers have lower Var (the paper's Table 3)?"""
    table = within_cell(pooled, how)
    gaps = dict(zip(table["order"], cells_of(table, "gap"), strict=True))
    rhos = dict(zip(table["order"], cells_of(table, "rho"), strict=True))
    lines = [
        _line(
            cell,
            lambda one: [
                Check("Var(incorrect) − Var(correct)", gaps[one.order]),
                Check("−ρ(Var, correct)", flipped(rhos[one.order]), SMALL_RHO),
            ],
        )
        for cell in chosen
    ]
    return Finding(
        "lower-when-correct", task, "Correct answers have lower Var under the same order.", tuple(lines)
    )


_SURVIVAL: dict[Word, str] = {
    SUPPORTED: "it survives mean log q and length",
    REFUSED: "it does not survive mean log q and length",
    OPEN: "whether it survives mean log q and length is open",
}


def _with_controls(findings: Sequence[Finding]) -> list[Finding]:
    """Say beside every bare association what the controls leave of it."""
    held = {
        (item.task, line.where): line
        for item in findings
        if item.name == "survives-controls"
        for line in item.lines
    }
    out = []
    for item in findings:
        if item.name == "lower-when-correct":
            lines = [_beside(line, held[item.task, line.where]) for line in item.lines]
            out.append(replace(item, lines=tuple(lines)))
        else:
            out.append(item)
    return out


def _beside(line: Line, held: Line) -> Line:
    if not line.checks or not held.checks:
        return line
    clause = f"{_SURVIVAL[held.word]} ({held.checks[0].text()})"
    return replace(line, remark=f"{line.remark}; {clause}")


def survives_controls(task: str, chosen: Sequence[Cell], pooled: pd.DataFrame, how: Resampling) -> Finding:
    """Does lower Var go with correct answers at equal mean log q and length?"""
    name = "log-odds per sd of lower Var"
    lines = [
        _line(cell, lambda one: [Check(name, flipped(var_effect(one, ("mean", "n"))), SMALL_ODDS)])
        for cell in chosen
    ]
    table = controls(pooled, replace(how, reps=0))
    fixed = table[table["order"] == POOLED]
    enough = all(sum(counts) >= MIN_EACH for counts in zip(*(cell.counts() for cell in chosen), strict=True))
    for cell_of_all in cells_of(fixed, "var_coefficient") if enough else ():
        check = Check(name, flipped(cell_of_all), SMALL_ODDS)
        lines.append(Line.judged("all orders, each with its own level", [check]))
    claim = "Lower Var goes with correct answers at equal mean log q and equal length."
    return Finding("survives-controls", task, claim, tuple(lines))


def leads(task: str, chosen: Sequence[Cell], rival: str, words: str) -> Finding:
    """Is Var the better predictor?"""
    lines = [
        _line(cell, lambda one: [Check(f"AUROC(Var) − AUROC({rival})", auroc_lead(one, rival), SMALL_AUROC)])
        for cell in chosen
    ]
    return Finding(
        f"better-than-{rival}", task, f"Var predicts correctness better than {words}.", tuple(lines)
    )


def same_item(task: str, chosen: Sequence[Cell]) -> list[Finding]:
    """With several seeds: is the answer with the lower Var the right one on the same item?"""
    repeated = [cell for cell in chosen if cell.rows["item_id"].duplicated().any()]
    claim = "Among answers to the same item under the same order, those with lower Var are right more often"
    forms = (("", ".", ()), ("-controlled", ", at equal mean log q and length.", ("mean", "n")))
    out = []
    for name, end, given in forms if repeated else ():
        judge = partial(_same_item_checks, given=given)
        lines = tuple(_line(cell, judge) for cell in repeated)
        out.append(Finding(f"same-item{name}", task, f"{claim}{end}", lines))
    return out


def _same_item_checks(cell: Cell, given: Sequence[str]) -> list[Check]:
    return [Check("−r within items", flipped(same_item_correlation(cell, given)), SMALL_RHO)]


def _line(cell: Cell, judge: Callable[[Cell], Sequence[Check]]) -> Line:
    """Judge a cell, unless it has too few correct or incorrect samples."""
    right, wrong = cell.counts()
    if min(right, wrong) < MIN_EACH:
        why = f"fewer than {MIN_EACH} right or fewer than {MIN_EACH} wrong answers"
        return Line(cell.order, OPEN, (), why)
    return Line.judged(cell.order, judge(cell), f"{right} right, {wrong} wrong")
