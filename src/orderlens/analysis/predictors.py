"""Predictors of correctness inside one (task, order) cell: the numbers of the summary and the figures.

The seeds of one order are pooled, because they are repetitions and not separate orders. Items are resampled
whole, so that a repeated item does not count as several. Graded samples in, estimates out; does not depend on
runs, files or figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from orderlens.analysis.association import DIRECTIONS, normal_scores, without
from orderlens.analysis.frames import cells as groups
from orderlens.analysis.frames import finite_rows, graded_rows
from orderlens.common.rng import keyed_generator
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, function_of_sums, two_groups
from orderlens.metrics.segments import BoolArray, FloatArray, divide
from orderlens.metrics.significance import BinaryRanks, accuracy, nested_logistic
from orderlens.rules.cards import in_paper_order

PREDICTORS = ("var", "mean", "n")
"""Var and its two plainest rivals: mean log q and length (content tokens)."""


@dataclass(frozen=True, slots=True)
class GradedCell:
    """The graded samples of one task under one order, all its seeds.

    Attributes:
        task: the task.
        order: the order's id without its seed.
        rows: samples with a verdict and finite mean, Var and length; ``correct`` is 0/1.
        n_undefined: samples that lacked one of these.
        clusters: the item of each row, for resampling.
        answers: all samples with a verdict, also those without content.
    """

    task: str
    order: str
    rows: pd.DataFrame
    n_undefined: int
    clusters: Clusters
    answers: pd.DataFrame

    @property
    def right(self) -> BoolArray:
        """Which samples are correct [N]."""
        return np.asarray(self.rows["correct"].to_numpy(np.float64) > 0)

    def column(self, name: str) -> FloatArray:
        """One statistic of every sample [N]."""
        return np.asarray(self.rows[name].to_numpy(np.float64))

    def counts(self) -> tuple[int, int]:
        """Return how many samples are correct and how many are not."""
        yes = int(self.right.sum())
        return yes, len(self.rows) - yes


def pool_seeds(graded: pd.DataFrame) -> pd.DataFrame:
    """Return graded samples with seeds removed from ``order``, where there is a column ``base_order``.

    The order with its seed moves to ``seed_label``.
    """
    if "base_order" not in graded.columns:
        return graded
    return graded.assign(seed_label=graded["order"], order=graded["base_order"])


def pooled_cells(graded: pd.DataFrame, resampling: Resampling) -> Iterator[GradedCell]:
    """Yield the cells of a table of graded samples: tasks as they appear, orders as the paper lists them."""
    for (task,), part in groups(pool_seeds(graded), ("task",)):
        for order in in_paper_order(str(name) for name in part["order"].unique()):
            rows, ungraded = graded_rows(part[part["order"] == order])
            known = finite_rows(rows, PREDICTORS)
            lost = ungraded + len(rows) - len(known)
            yield GradedCell(str(task), order, known, lost, Clusters(known["item_id"], resampling), rows)


def var_effect(cell: GradedCell, given: Sequence[str] = ()) -> Estimate:
    """Return the change of the log-odds of a correct answer per standard deviation of Var.

    Predictors enter as normal scores, the mean also squared; the interval is Wald's with errors clustered by
    item.

    Args:
        cell: the samples.
        given: predictors held fixed, out of mean and n.
    """
    level = cell.clusters.resampling.level
    extra = normal_scores(cell.rows["var"])
    found = nested_logistic(
        cell.right, extra, held_fixed(cell, given), clusters=cell.clusters.codes, level=level
    )
    return Estimate(found.coefficient, found.low, found.high, len(cell.rows), cell.n_undefined, found.why)


def aurocs(cell: GradedCell) -> dict[str, Estimate]:
    """Return the AUROC of each predictor, read in the direction of ``DIRECTIONS`` (short counts as good)."""
    return {name: _ranks(cell, name).estimates(cell.clusters)[1] for name in PREDICTORS}


def auroc_lead(cell: GradedCell, rival: str) -> Estimate:
    """Return Var's AUROC minus the rival's on the same samples.

    A rival with an AUROC below one half is reversed, which favours it: long answers may be the better ones.
    """
    if why := without(cell.rows, rival):
        return Estimate.undefined(why)
    ours, theirs = _ranks(cell, "var"), _ranks(cell, rival)
    whole = np.ones((1, len(cell.rows)))
    return _auroc_difference(cell, ours, theirs, reverse=bool(theirs.statistics(whole)[0, 1] < 0.5))


def _auroc_difference(
    cell: GradedCell, first: BinaryRanks, second: BinaryRanks, *, reverse: bool = False
) -> Estimate:
    """Return the AUROC of ``first`` minus that of ``second`` or of its reverse; items are resampled."""
    codes, sign = cell.clusters.codes, -1.0 if reverse else 1.0

    def lead(weights_BN: FloatArray) -> FloatArray:
        ours = first.statistics(weights_BN[:, first.rows])[:, 1]
        theirs = second.statistics(weights_BN[:, second.rows])[:, 1]
        return np.asarray(ours - (0.5 + sign * (theirs - 0.5)))[:, None]

    value, why = lead(np.ones((1, len(codes))))[0], "one class is empty"
    found = cell.clusters.estimates(value, lambda counts: lead(counts[:, codes]), len(codes), why=why)[0]
    return two_groups(found, cell.right, cell.clusters)


FOLDS = 5
"""Parts of the items in cross-validation."""
RIDGE = 1.0
"""Penalty on squared coefficients, so that separated classes do not give infinite ones."""


def held_out_aurocs(cell: GradedCell, name: str) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return cross-validated AUROCs: the predictor alone, mean and length, all three; and the gain.

    A logistic model predicts the items of each fold from those of the others. Predictors enter as normal
    scores, the mean also squared. Intervals resample items with the predictions held fixed.
    """
    why = without(cell.rows, name)
    if min(cell.counts()) < FOLDS:
        why = f"fewer than {FOLDS} correct or fewer than {FOLDS} incorrect answers"
    if why:
        return (Estimate.undefined(why),) * 4
    base, own = held_fixed(cell, ("mean", "n")), normal_scores(cell.rows[name])
    alone, plain, more = (
        BinaryRanks.of(held_out_scores(cell, columns), cell.right) for columns in ([own], base, [*base, own])
    )
    found = [ranks.estimates(cell.clusters)[1] for ranks in (alone, plain, more)]
    return found[0], found[1], found[2], _auroc_difference(cell, more, plain)


def held_out_scores(cell: GradedCell, columns: Sequence[FloatArray]) -> FloatArray:
    """Return the log-odds of each answer without the intercept, fitted on the other folds of items [N].

    The intercept is left out, because it falls where the fold itself has many correct answers.
    """
    codes = cell.clusters.codes
    rng = keyed_generator(cell.clusters.resampling.seed, "folds", cell.task)
    fold_N = (rng.permutation(int(codes.max()) + 1) % FOLDS)[codes]
    design_NK, out = np.column_stack(columns), np.zeros(len(codes))
    for fold in range(FOLDS):
        inside = fold_N == fold
        if inside.any() and not inside.all():
            out[inside] = design_NK[inside] @ _ridge_logistic(design_NK[~inside], cell.right[~inside])
    return out


def _ridge_logistic(design_NK: FloatArray, right_N: BoolArray) -> FloatArray:
    """Return the coefficients [K] by Newton's method; the intercept is fitted too and not returned."""
    x = np.column_stack([np.ones(len(design_NK)), design_NK])
    penalty = np.diag([1e-9, *[RIDGE] * design_NK.shape[1]])
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        p = expit(x @ beta)
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + penalty, x.T @ (right_N - p) - penalty @ beta)
        beta += step
        if float(np.abs(step).max()) < 1e-10:
            break
    return np.asarray(beta[1:])


def _ranks(cell: GradedCell, name: str) -> BinaryRanks:
    return BinaryRanks.of(DIRECTIONS[name] * cell.column(name), cell.right)


def accuracy_by_var(cell: GradedCell, n_bins: int = 6, per_bin: int = 20) -> list[dict[str, Any]]:
    """Return accuracy (%) in bins of equal size along Var; samples of equal Var share a bin.

    There are fewer bins if a bin would hold fewer than ``per_bin`` samples. Intervals are Wilson's, or from
    resampling items where items repeat.
    """
    if not len(cell.rows):
        return []
    var = cell.column("var")
    count = max(1, min(n_bins, len(var) // per_bin))
    edges = np.unique(np.quantile(var, np.arange(1, count) / count, method="inverted_cdf"))
    place = np.searchsorted(edges, var, side="left")
    return [_bin(cell, place == number, var) for number in np.unique(place)]


def _bin(cell: GradedCell, inside: BoolArray, var: FloatArray) -> dict[str, Any]:
    rows, values = cell.rows[inside], var[inside]
    found = accuracy(rows["correct"], Clusters(rows["item_id"], cell.clusters.resampling))
    ends = {"var_low": float(values.min()), "var_high": float(values.max())}
    return {"var": float(np.median(values)), **ends, "accuracy": found}


def same_item_correlation(cell: GradedCell, given: Sequence[str] = ()) -> Estimate:
    """Return the correlation of Var and correctness among the answers to one item, with others held fixed.

    Item means are subtracted from every column, so that item difficulty cannot cause the correlation.
    Predictors enter as normal scores, the mean also squared; columns constant inside items are dropped.
    """
    columns = [normal_scores(cell.rows["var"]), cell.right.astype(np.float64), *held_fixed(cell, given)]
    item = pd.Series(cell.clusters.codes)
    inner = [values - pd.Series(values).groupby(item).transform("mean").to_numpy() for values in columns]
    kept = [values for values in inner if float(values @ values) > 1e-9]
    if len(kept) < 2 or any(float(values @ values) <= 1e-9 for values in inner[:2]):
        return Estimate.undefined(
            "no item has both correct and incorrect answers, or answers of different Var"
        )
    size = len(kept)
    products = np.stack([kept[i] * kept[j] for i in range(size) for j in range(size)], axis=1)

    def correlation(total: FloatArray) -> FloatArray:
        inverse = np.linalg.pinv(total.reshape(-1, size, size), hermitian=True)
        scale = np.sqrt(np.maximum(inverse[:, 0, 0] * inverse[:, 1, 1], 0.0))
        return divide(-inverse[:, 0, 1], scale)[:, None]

    return function_of_sums(cell.clusters, cell.clusters.sums(products), correlation, len(item))[0]


def held_fixed(cell: GradedCell, given: Sequence[str]) -> list[FloatArray]:
    """Return the columns of the predictors ``given``: normal scores, the mean's also squared."""
    out: list[FloatArray] = []
    for name in given:
        scores = normal_scores(cell.rows[name])
        out += [scores, scores**2] if name == "mean" else [scores]
    return out
