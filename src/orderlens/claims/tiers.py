"""Claims that compare orders on the same items: the two tiers, the median splits, choosing by Var."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.association import QUADRANTS, quadrant_flags
from orderlens.analysis.frames import (
    finite_rows,
    graded_rows,
    mean_difference,
    paired_difference,
    side_by_side,
)
from orderlens.analysis.predictors import pool_seeds
from orderlens.analysis.selecting import is_candidate, pick_weights
from orderlens.claims.checks import Check
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import (
    Clusters,
    Estimate,
    Resampling,
    function_of_sums,
    least_mean,
    means,
    student_t,
)
from orderlens.metrics.segments import FloatArray, divide
from orderlens.metrics.significance import natural_spline_basis, orthonormal_basis, residuals
from orderlens.rules.cards import is_random, is_structured

MIN_ITEMS = 50
"""Minimum number of items for comparing orders; intervals over fewer would be too rough."""
MIN_EACH = 20
"""Minimum number of correct and of incorrect answers in a cell, and over all orders whose accuracies are
compared."""
EQUAL_PP, CLOSE_PP, SMALL_PP = paper.number("structured_band_pp"), paper.number("min_v_band_pp"), 1.0
"""Percentage points: the paper's bands of structured orders and of min-V; differences too small to count."""


def order_findings(task: str, rows: pd.DataFrame, how: Resampling) -> list[Finding]:
    """Return the claims about the orders of one task; none when it has too few items.

    Accuracies of orders are compared over all answers; the other claims need answers with content.
    """
    answers = graded_rows(rows)[0]
    graded = finite_rows(answers, ("mean", "var", "n"))
    out = higher_var(task, pool_seeds(graded), how) if _enough(graded, 0) else []
    if _enough(answers, MIN_EACH):
        out += tiers(task, pool_seeds(answers), how)
    if _enough(graded, MIN_EACH) and graded["order"].nunique() > 1:
        out += [halves(task, graded, how), beyond_the_mean(task, graded, how)]
        out += choosing(task, graded, how)
    return out


def _enough(graded: pd.DataFrame, each: int) -> bool:
    """Whether there are enough items, correct answers and incorrect answers."""
    right = int(graded["correct"].sum())
    return graded["item_id"].nunique() >= MIN_ITEMS and min(right, len(graded) - right) >= each


def higher_var(task: str, graded: pd.DataFrame, how: Resampling) -> list[Finding]:
    """Is Var higher under random orders, item by item?"""
    var, tier, chance = _by_tier(graded, "var")
    if not (tier and chance):
        return []
    difference = paired_difference(var[chance].mean(axis=1), var[tier].mean(axis=1), how, _NOT_BOTH)
    claim = "Random orders have higher Var than structured ones on the same items."
    check = Check("Var(random) − Var(structured)", difference, min_n=MIN_ITEMS)
    return [Finding("random-higher-var", claim, (check,), task=task)]


def tiers(task: str, graded: pd.DataFrame, how: Resampling) -> list[Finding]:
    """Accuracy of structured orders against random ones, and among each other, item by item."""
    right, tier, chance = _by_tier(graded, "correct")
    out = []
    if tier and chance:
        better = 100 * (right[tier].mean(axis=1) - right[chance].mean(axis=1))
        check = Check(
            "structured − random (pp)", _paired(better, how), margin=SMALL_PP, min_n=MIN_ITEMS, digits=2
        )
        claim = "The structured orders answer more items correctly than random orders."
        out.append(Finding("structured-better", claim, (check,), task=task))
    if len(tier) > 1:
        checks = tuple(
            equality_check(f"{first} against {second}", _paired(100 * (right[first] - right[second]), how))
            for first, second in itertools.combinations(tier, 2)
        )
        claim = f"The structured orders are equally accurate (within {EQUAL_PP:g} pp)."
        out.append(Finding("structured-equal", claim, checks, "Appendix B", task))
    return out


def _by_tier(graded: pd.DataFrame, value: str) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Return a table of items by orders, and which orders are structured and which random."""
    wide = side_by_side(graded, value, of="item_id")
    tier = [order for order in wide.columns if is_structured(str(order))]
    return wide, tier, [order for order in wide.columns if is_random(str(order))]


def equality_check(where: str, difference: Estimate) -> Check:
    """Return the check of equality: the whole interval must lie inside the band."""
    return Check(
        "difference (pp)",
        difference,
        above=-EQUAL_PP,
        below=EQUAL_PP,
        min_n=MIN_ITEMS,
        digits=2,
        where=where,
    )


_NOT_BOTH = "no item was answered under both"


def _paired(differences: pd.Series, how: Resampling) -> Estimate:
    return mean_difference(differences, how, _NOT_BOTH)


def halves(task: str, graded: pd.DataFrame, how: Resampling) -> Finding:
    """Is low Var never worse in the halves of the mean (the paper's Table 4)?"""
    inside = quadrant_flags(graded["mean"].to_numpy(np.float64), graded["var"].to_numpy(np.float64))
    right = graded["correct"].to_numpy(np.float64)
    clusters = Clusters(graded["item_id"], how)
    sums = clusters.sums(np.concatenate([inside * right[:, None], inside], axis=1).astype(np.float64))

    def advantages(total: FloatArray) -> FloatArray:
        share = 100 * divide(total[:, :4], total[:, 4:])
        return np.stack([share[:, 0] - share[:, 1], share[:, 2] - share[:, 3]], axis=1)

    assert QUADRANTS[0] == "hi_mean_lo_var"
    found = function_of_sums(clusters, sums, advantages, len(right))
    checks = tuple(
        Check(
            "low Var − high Var (pp)",
            cell,
            margin=SMALL_PP,
            min_n=MIN_ITEMS,
            digits=2,
            where=f"half with {half} mean log q",
        )
        for half, cell in zip(("high", "low"), found, strict=True)
    )
    claim = "With orders pooled, answers with low Var are more often correct in both halves of mean log q."
    return Finding("low-var-in-halves", claim, checks, "Table 4", task)


def beyond_the_mean(task: str, graded: pd.DataFrame, how: Resampling) -> Finding:
    """Do the pooled advantages of low Var exceed those that mean log q and length alone explain?"""
    inside = quadrant_flags(graded["mean"].to_numpy(np.float64), graded["var"].to_numpy(np.float64))
    share = divide(inside.astype(np.float64), inside.sum(axis=0)[None].astype(np.float64))
    weights = {
        "half with high mean log q: low Var − high Var": share[:, 0] - share[:, 1],
        "half with low mean log q: low Var − high Var": share[:, 2] - share[:, 3],
    }
    usable = is_candidate(graded)
    if usable.any():
        item, items = pd.factorize(graded["item_id"][usable])
        picks, chosen = pick_weights(graded[usable], item), np.zeros(len(graded))
        chosen[usable] = (picks["min_v"] - picks["max_v"]) / len(items)
        weights["min-V − max-V"] = chosen
    checks = tuple(
        Check(
            "advantage beyond mean and length (pp)",
            _beyond(graded, 100 * weight, how.level),
            margin=SMALL_PP,
            min_n=MIN_ITEMS,
            digits=2,
            where=where,
        )
        for where, weight in weights.items()
    )
    claim = "With orders pooled, low Var has a larger advantage than mean log q and length explain."
    return Finding("beyond-the-mean", claim, checks, task=task)


def _beyond(graded: pd.DataFrame, weight_N: FloatArray, level: float) -> Estimate:
    """Return a weighted sum of correctness minus the part that smooth functions of mean and length explain.

    Each order has a separate intercept and a separate curve along the mean, which need not be monotone.
    Errors are clustered by item; the interval is Student's t.
    """
    if not np.isfinite(weight_N).all():
        return Estimate.undefined("a group is empty")
    columns = [*natural_spline_basis(graded["n"], 3)]
    for _, rows in graded.reset_index(drop=True).groupby("order", sort=False):
        place = rows.index.to_numpy()
        for column in (np.ones(len(rows)), *natural_spline_basis(rows["mean"])):
            wide = np.zeros(len(graded))
            wide[place] = column
            columns.append(wide)
    basis = orthonormal_basis(columns, len(graded))
    weight = residuals(weight_N, basis)
    right = graded["correct"].to_numpy(np.float64)
    item, items = pd.factorize(graded["item_id"])
    parts = np.bincount(item, weights=weight * residuals(right, basis), minlength=len(items))
    free = max(len(graded) - basis.shape[1], 1)
    error = math.sqrt(float(parts @ parts) * len(items) / max(len(items) - 1, 1) * len(graded) / free)
    value, half = float(weight @ right), student_t(level, max(len(items) - 1, 1)) * error
    return Estimate(value, value - half, value + half, len(items))


def choosing(task: str, graded: pd.DataFrame, how: Resampling) -> list[Finding]:
    """How accurate is choosing one order per item by Var (the paper's min-V)?"""
    candidates = graded[is_candidate(graded)]
    structured = candidates[[is_structured(str(order)) for order in candidates["order"]]]
    scopes = (("all orders", candidates), ("structured orders only", structured))
    found = {scope: _selector_checks(rows, how) for scope, rows in scopes if rows["order"].nunique() > 1}
    claims = (
        (
            "min-v-over-max-v",
            "Choosing each item's answer with the lowest Var is more accurate than choosing the highest.",
        ),
        (
            "min-v-over-max-mean",
            "Choosing by lowest Var is more accurate than choosing by highest mean log q.",
        ),
        (
            "min-v-near-best",
            f"Choosing by lowest Var is at most {CLOSE_PP:g} pp below the best single order.",
        ),
    )
    out = []
    for place, (name, claim) in enumerate(claims):
        checks = tuple(replace(checks[place], where=scope) for scope, checks in found.items())
        out += [Finding(name, claim, checks, task=task)] if checks else []
    return out


def _selector_checks(rows: pd.DataFrame, how: Resampling) -> tuple[Check, ...]:
    item, items = pd.factorize(rows["item_id"])
    right, weights = rows["correct"].to_numpy(np.float64), pick_weights(rows, item)
    score = {
        name: 100 * np.bincount(item, weights=weights[name] * right, minlength=len(items))
        for name in ("min_v", "max_v", "max_mean")
    }
    over_max, over_mean = means(
        np.column_stack([score["min_v"] - score["max_v"], score["min_v"] - score["max_mean"]]),
        Clusters(items, how),
    )
    wide = 100 * side_by_side(rows, "correct", of="item_id").reindex(items).to_numpy(np.float64)
    over_best = least_mean(score["min_v"][:, None] - wide, how.level)
    return (
        Check("min-V − max-V (pp)", over_max, margin=SMALL_PP, min_n=MIN_ITEMS, digits=2),
        Check("min-V − max-mean (pp)", over_mean, margin=SMALL_PP, min_n=MIN_ITEMS, digits=2),
        Check("min-V − best order (pp)", over_best, above=-CLOSE_PP, min_n=MIN_ITEMS, digits=2),
    )
