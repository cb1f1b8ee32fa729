"""Claims on Var and correctness inside one order of a graded study, with and without controls.

Claims per task: the model beats guessing; correct answers have lower Var; this holds at equal mean log q and
length; Var predicts better than its rivals; it does so on the same item. ``tiers`` holds the claims that
compare orders. Everything is computed from the samples and does not depend on the paper's outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from orderlens.analysis.association import POOLED, controls, within_cell
from orderlens.analysis.frames import cells as groups
from orderlens.analysis.predictors import (
    GradedCell,
    auroc_lead,
    pool_seeds,
    pooled_cells,
    same_item_correlation,
    var_effect,
)
from orderlens.analysis.table import cells_of
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, Check, Outcome, at_place, negated
from orderlens.claims.judge import Finding, Reading, judge
from orderlens.claims.tiers import MIN_EACH, order_findings
from orderlens.metrics.estimate import Clusters, Estimate, Resampling
from orderlens.metrics.significance import accuracy

SMALL_RHO, SMALL_ODDS, SMALL_AUROC = 0.05, 0.1, 0.01
"""Effects up to these are too small to count: rank correlation, log-odds per standard deviation, AUROC."""
ALL_ORDERS = "all orders pooled, one intercept per order"


def correctness_findings(
    graded: pd.DataFrame,
    resampling: Resampling | None = None,
    guessing: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Return every claim about every task with its checks, to be judged together.

    Args:
        graded: table with the columns task, order, item_id, correct, mean, var, n (and base_order).
        resampling: bootstrap over items.
        guessing: accuracy (%) of guessing by task, where there is something to guess from.
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
            *(leads(name, chosen, rival, words) for rival, words in _RIVALS.items() if _has(chosen, rival)),
            *same_item(name, chosen),
            *order_findings(name, rows, how),
        ]
    return out


def read_correctness(
    graded: pd.DataFrame,
    resampling: Resampling | None = None,
    guessing: Mapping[str, float] | None = None,
) -> Reading:
    """Return every claim about every task, judged together; arguments of ``correctness_findings``."""
    how = resampling or Resampling()
    return _with_controls(judge(correctness_findings(graded, how, guessing), how.level))


_RIVALS = {
    "mean_entropy": "the mean entropy at the revealed positions does",
    "self_certainty": "the self-certainty at the revealed positions does",
    "lowest_group": "the least confident group of 16 neighbouring tokens does",
    "lowest_decile": "the mean of the lowest tenth of log q does",
    "denoising_entropy": "the mean entropy of the masked positions over all passes does",
}


def _has(chosen: Sequence[GradedCell], rival: str) -> bool:
    """Whether any sample has the rival's number."""
    return any(rival in cell.rows and bool(cell.rows[rival].notna().any()) for cell in chosen)


_HOLDS: dict[Outcome, str] = {
    SUPPORTED: "it holds at equal mean log q and length",
    NOT_SUPPORTED: "it does not hold at equal mean log q and length",
    OPEN: "whether it holds at equal mean log q and length is open",
}


def _with_controls(reading: Reading) -> Reading:
    """Add to every uncontrolled association whether it holds after controlling for mean log q and length."""
    controlled = {
        (item.task, check.where): check
        for item in reading.findings
        if item.id == "survives-controls"
        for check in item.checks
        if check.estimate.is_defined
    }
    out = []
    for item in reading.findings:
        if item.id == "lower-when-correct":
            checks = [_with_remark(check, controlled.get((item.task, check.where))) for check in item.checks]
            out.append(replace(item, checks=tuple(checks)))
        else:
            out.append(item)
    return Reading(tuple(out))


def _with_remark(check: Check, controlled: Check | None) -> Check:
    if controlled is None or not check.estimate.is_defined:
        return check
    return replace(check, remark=f"{check.remark}; {_HOLDS[controlled.outcome]} ({controlled.text()})")


def beats_guessing(task: str, chosen: Sequence[GradedCell], level: float | None) -> list[Finding]:
    """Is the model more accurate than guessing? Answers without content count too."""
    if level is None or level != level:
        return []
    checks: list[Check] = []
    for cell in chosen:
        if len(cell.answers):
            items = Clusters(cell.answers["item_id"], cell.clusters.resampling)
            found = accuracy(cell.answers["correct"], items)
            remark = f"guessing gives {level:.1f} %"
            checks.append(
                Check("accuracy (%)", found, above=level, digits=2, where=cell.order, remark=remark)
            )
    claim = "The model answers more items correctly than guessing would."
    return [Finding("beats-guessing", claim, tuple(checks), task=task)] if checks else []


def lower_when_correct(
    task: str, chosen: Sequence[GradedCell], pooled: pd.DataFrame, how: Resampling
) -> Finding:
    """Inside one order, do correct answers have lower Var (the paper's Table 3)?"""
    table = within_cell(pooled, how)
    gaps = dict(zip(table["order"], cells_of(table, "gap"), strict=True))
    rhos = dict(zip(table["order"], cells_of(table, "rho"), strict=True))

    def checks(cell: GradedCell) -> list[Check]:
        return [
            Check("Var(incorrect) − Var(correct)", gaps[cell.order]),
            Check("−ρ(Var, correct)", negated(rhos[cell.order]), margin=SMALL_RHO),
        ]

    claim = "Under the same order, correct answers have lower Var than incorrect ones."
    return Finding("lower-when-correct", claim, _by_order(chosen, checks), "Table 3", task)


def survives_controls(
    task: str, chosen: Sequence[GradedCell], pooled: pd.DataFrame, how: Resampling
) -> Finding:
    """At equal mean log q and length, are answers with lower Var more often correct?"""
    one = partial(Check, "log-odds per SD decrease in Var", margin=SMALL_ODDS)
    checks = _by_order(chosen, lambda cell: [one(negated(var_effect(cell, ("mean", "n"))))])
    table = controls(pooled, replace(how, reps=0))
    fixed = table[table["order"] == POOLED]
    enough = all(sum(counts) >= MIN_EACH for counts in zip(*(cell.counts() for cell in chosen), strict=True))
    found = cells_of(fixed, "var_coefficient") if enough else ()
    claim = "At equal mean log q and length, answers with lower Var are more often correct."
    pooled_checks = tuple(one(negated(cell), where=ALL_ORDERS) for cell in found)
    return Finding("survives-controls", claim, checks + pooled_checks, task=task)


def leads(task: str, chosen: Sequence[GradedCell], rival: str, words: str) -> Finding:
    """Is Var the better predictor?"""
    label = f"AUROC(Var) − AUROC({rival})"
    checks = _by_order(chosen, lambda cell: [Check(label, auroc_lead(cell, rival), margin=SMALL_AUROC)])
    return Finding(
        f"better-than-{rival}", f"Var predicts correctness better than {words}.", checks, task=task
    )


def same_item(task: str, chosen: Sequence[GradedCell]) -> list[Finding]:
    """With several seeds: is the answer with the lower Var more often correct on the same item?"""
    repeated = [cell for cell in chosen if cell.rows["item_id"].duplicated().any()]
    claim = "Among answers to the same item under the same order, those with lower Var are more often correct"
    forms = (("", ".", ()), ("-controlled", ", at equal mean log q and length.", ("mean", "n")))
    out = []
    for name, end, given in forms if repeated else ():
        checks = _by_order(repeated, partial(_same_item_checks, given=given))
        out.append(Finding(f"same-item{name}", f"{claim}{end}", checks, task=task))
    return out


def _same_item_checks(cell: GradedCell, given: Sequence[str]) -> list[Check]:
    found = negated(same_item_correlation(cell, given))
    return [Check("−r within items", found, margin=SMALL_RHO)]


def _by_order(
    chosen: Sequence[GradedCell], checks: Callable[[GradedCell], Sequence[Check]]
) -> tuple[Check, ...]:
    """Return the checks of every order; those with too few correct or incorrect samples say so."""
    out: list[Check] = []
    for cell in chosen:
        right, wrong = cell.counts()
        if min(right, wrong) < MIN_EACH:
            why = f"fewer than {MIN_EACH} correct or fewer than {MIN_EACH} incorrect answers"
            out.append(Check("Var against correctness", Estimate.undefined(why), where=cell.order))
        else:
            remark = f"{right} correct, {wrong} incorrect"
            out += [replace(check, remark=remark) for check in at_place(cell.order, checks(cell))]
    return tuple(out)
