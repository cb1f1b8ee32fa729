"""Tests between two groups or models: McNemar, Wilson intervals, nested logistic regression, corrections.

Also the rank statistics between a trace statistic and correctness: Mann-Whitney, partial Spearman, AUROC.
AUROCs have DeLong's covariance, for one score or several scores of the same rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from orderlens.metrics.estimate import Clusters, Estimate, mean, student_p, too_few, two_groups
from orderlens.metrics.segments import FloatArray, IntArray, Segments, divide


@dataclass(frozen=True, slots=True)
class RankTest:
    """A statistic and its p-value; both NaN if undefined."""

    statistic: float
    p: float


def mann_whitney_less(correct: ArrayLike, incorrect: ArrayLike) -> RankTest:
    """Return U and the one-sided p-value of "correct samples have smaller values" (an unpaired test).

    Exact without ties in small samples, otherwise the normal approximation with continuity correction.
    """
    a, b = np.asarray(correct, np.float64), np.asarray(incorrect, np.float64)
    if not len(a) or not len(b):
        return RankTest(math.nan, math.nan)
    result = scipy.stats.mannwhitneyu(a, b, alternative="less")
    return RankTest(float(result.statistic), float(result.pvalue))


def partial_spearman(x: ArrayLike, y: ArrayLike, covariates: Sequence[ArrayLike]) -> RankTest:
    """Return the Spearman correlation with the covariates' ranks regressed out, and its two-sided p-value.

    Constant covariates are ignored. NaN if the residual of x or y is 0, or with too few rows.
    """
    ranked = [scipy.stats.rankdata(np.asarray(column, np.float64)) for column in (x, y, *covariates)]
    n = len(ranked[0])
    basis = orthonormal_basis(ranked[2:], n)
    a, b = (residuals(column, basis) for column in ranked[:2])
    freedom = n - 1 - basis.shape[1]
    scale = math.sqrt(float(a @ a) * float(b @ b))
    # If the covariates explain a column fully, its residual is only rounding error.
    if freedom < 1 or scale <= 1e-9 * n**3:
        return RankTest(math.nan, math.nan)
    rho = min(1.0, max(-1.0, float(a @ b) / scale))
    return RankTest(rho, correlation_p(rho, freedom))


def correlation_p(rho: float, freedom: int) -> float:
    """Return the two-sided p-value of a (partial) correlation by Student's t."""
    if abs(rho) >= 1:
        return 0.0
    t = rho * math.sqrt(freedom / (1 - rho**2))
    return student_p(t, freedom)


def orthonormal_basis(columns: Sequence[FloatArray], n: int) -> FloatArray:
    """Return an orthonormal basis [n, K] of the constant and the given columns (dependent ones dropped)."""
    design = np.column_stack([np.ones(n), *columns])
    scale = np.abs(design).max(axis=0, initial=0.0)
    left, size, _ = np.linalg.svd(design / np.where(scale > 0, scale, 1.0), full_matrices=False)
    return np.asarray(left[:, size > 1e-10 * size.max(initial=1e-300)])


def natural_spline_basis(values: ArrayLike, knots: int = 5) -> list[FloatArray]:
    """Return the columns of a natural cubic spline of the normal scores of ``values``.

    Linear beyond the outer knots, which are at quantiles; not necessarily monotone.
    """
    column = np.asarray(values, np.float64)
    x = scipy.special.ndtri((scipy.stats.rankdata(column) - 0.5) / max(len(column), 1))
    places = np.unique(np.quantile(x, np.linspace(0.05, 0.95, knots))) if len(x) else x
    if len(places) < 3:
        return [x]

    def cubic(knot: float) -> FloatArray:
        return np.asarray(np.maximum(x - knot, 0.0) ** 3)

    last, before = places[-1], places[-2]
    tail = (cubic(before) - cubic(last)) / (last - before)
    return [x, *((cubic(knot) - cubic(last)) / (last - knot) - tail for knot in places[:-2])]


def residuals(column: FloatArray, basis: FloatArray) -> FloatArray:
    """Return the residuals of ``column`` after projection on the basis."""
    once = column - basis @ (basis.T @ column)
    return np.asarray(once - basis @ (basis.T @ once))  # projected twice against cancellation


@dataclass(frozen=True, slots=True)
class BinaryRanks:
    """A score and a yes/no outcome, prepared for resampling: rank correlation and AUROC in one pass.

    Attributes:
        rows: row of each entry, sorted by score [N].
        groups: equal scores as segments of those entries.
        yes: outcome of each entry (0/1) [N].
    """

    rows: IntArray
    groups: Segments
    yes: FloatArray

    @classmethod
    def of(cls, score_N: ArrayLike, yes_N: ArrayLike) -> BinaryRanks:
        """Sort the rows by score."""
        score = np.asarray(score_N, np.float64)
        rows = np.argsort(score, kind="stable")
        return cls(rows, Segments.of_changes(score[rows]), np.asarray(yes_N, np.float64)[rows])

    def statistics(self, weights_BN: FloatArray) -> FloatArray:
        """Return (Spearman correlation with the outcome, AUROC) of each weighting of the entries [B, 2]."""
        weight = weights_BN
        yes = weight * self.yes
        if self.groups.count < len(self.rows):
            weight = np.add.reduceat(weight, self.groups.starts, axis=1)
            yes = np.add.reduceat(yes, self.groups.starts, axis=1)
        rank = np.cumsum(weight, axis=1)
        total = rank[:, -1].copy()  # rank changes in place below
        rank -= (weight - 1) / 2
        n_yes = yes.sum(axis=1)
        n_no = total - n_yes
        rank_sum = np.einsum("bg,bg->b", yes, rank)
        rank -= (total[:, None] + 1) / 2
        variances = np.einsum("bg,bg,bg->b", weight, rank, rank) * divide(n_yes * n_no, total)
        covariance = rank_sum - n_yes * (total + 1) / 2
        rho = divide(covariance, np.sqrt(np.maximum(variances, 0.0)))
        auroc = divide(rank_sum - n_yes * (n_yes + 1) / 2, n_yes * n_no)
        return np.stack([rho, auroc], axis=1)

    def estimates(self, clusters: Clusters) -> tuple[Estimate, Estimate]:
        """Return Spearman correlation and AUROC with intervals, if both outcomes have enough prompts."""
        value = self.statistics(np.ones((1, len(self.rows))))[0]
        prompt_of_entry = clusters.codes[self.rows]
        rho, auroc = clusters.estimates(
            value, lambda counts: self.statistics(counts[:, prompt_of_entry]), len(self.rows)
        )
        yes_N = np.zeros(len(self.rows), np.bool_)
        yes_N[self.rows] = self.yes > 0
        return two_groups(rho, yes_N, clusters), two_groups(auroc, yes_N, clusters)


@dataclass(frozen=True, slots=True)
class DeLong:
    """AUROCs of K scores and the covariance of their estimates."""

    auroc: FloatArray
    covariance: FloatArray

    def estimate(self, place: int, n: int, level: float = 0.95) -> Estimate:
        """Return one AUROC with its normal interval, clipped to [0, 1]."""
        value = float(self.auroc[place])
        variance = float(self.covariance[place, place])
        if math.isnan(variance):
            return Estimate(value, n=n)
        half = float(scipy.special.ndtri((1 + level) / 2)) * math.sqrt(max(variance, 0.0))
        return Estimate(value, max(0.0, value - half), min(1.0, value + half), n)

    def compare(self, first: int, second: int) -> tuple[float, float]:
        """Return the difference of two AUROCs of the same rows and its two-sided p-value."""
        difference = float(self.auroc[first] - self.auroc[second])
        cov = self.covariance
        variance = float(cov[first, first] + cov[second, second] - 2 * cov[first, second])
        if variance <= 1e-15:  # the two scores give the same ranking
            return difference, math.nan if abs(difference) < 1e-12 else 0.0
        return difference, float(2 * scipy.special.ndtr(-abs(difference) / math.sqrt(variance)))


def delong(scores_KN: ArrayLike, correct_N: ArrayLike) -> DeLong:
    """Return the AUROC of each score (larger = more likely correct) and DeLong's covariance [K, K].

    O(K N log N), by midranks. NaN if one class is empty; the covariance needs two rows of each class.
    """
    scores = np.atleast_2d(np.asarray(scores_KN, np.float64))
    yes = np.asarray(correct_N, np.bool_)
    n_yes, n_no = int(yes.sum()), int((~yes).sum())
    if not n_yes or not n_no:
        return DeLong(np.full(len(scores), np.nan), np.full((len(scores), len(scores)), np.nan))
    both = np.stack([scipy.stats.rankdata(row) for row in scores])
    own_yes = np.stack([scipy.stats.rankdata(row[yes]) for row in scores])
    own_no = np.stack([scipy.stats.rankdata(row[~yes]) for row in scores])
    above_no = (both[:, yes] - own_yes) / n_no
    below_yes = 1 - (both[:, ~yes] - own_no) / n_yes
    covariance = _covariance(above_no) / n_yes + _covariance(below_yes) / n_no
    return DeLong(above_no.mean(axis=1), covariance)


def _covariance(parts_KM: FloatArray) -> FloatArray:
    if parts_KM.shape[1] < 2:
        return np.full((len(parts_KM), len(parts_KM)), np.nan)
    return np.atleast_2d(np.cov(parts_KM))


@dataclass(frozen=True, slots=True)
class McNemar:
    """The result of a McNemar test: two orders on the same items.

    Attributes:
        n: items that both answered.
        only_first: items that only the first answered correctly.
        only_second: items that only the second answered correctly.
        p: exact two-sided binomial p-value of the disagreements; NaN without items.
    """

    n: int
    only_first: int
    only_second: int
    p: float


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Return the exact McNemar test of two equally long vectors of verdicts."""
    a, b = np.asarray(first, np.bool_), np.asarray(second, np.bool_)
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    if not len(a):
        return McNemar(0, 0, 0, math.nan)
    p = 1.0 if only_a + only_b == 0 else float(scipy.stats.binomtest(only_a, only_a + only_b).pvalue)
    return McNemar(len(a), only_a, only_b, p)


def wilson(n_correct: int, n: int, level: float = 0.95) -> Estimate:
    """Return a proportion with its Wilson interval."""
    if n == 0:
        return Estimate.undefined("no graded item")
    interval = scipy.stats.binomtest(n_correct, n).proportion_ci(level, method="wilson")
    return Estimate(n_correct / n, float(interval.low), float(interval.high), n)


def accuracy(correct_N: ArrayLike, clusters: Clusters) -> Estimate:
    """Return the share of correct answers (%): Wilson's interval, or items resampled where they repeat."""
    values = np.asarray(correct_N, np.float64)
    if not len(values) or clusters.count == len(values):
        return wilson(int(values.sum()), len(values), clusters.resampling.level).times(100)
    return agreeing(mean(100.0 * values, clusters), clusters.count, clusters.resampling.level)


def agreeing(share: Estimate, n_items: int, level: float) -> Estimate:
    """Return a share (%) with Wilson's interval if it is 0 or 100, because all resamples then agree."""
    if share.value not in (0.0, 100.0):
        return share
    known = wilson(n_items if share.value else 0, n_items, level).times(100)
    return replace(share, low=known.low, high=known.high)


def adjust(p_values: ArrayLike, method: Literal["holm", "bh"]) -> FloatArray:
    """Return p-values after Holm or Benjamini–Hochberg; undefined ones stay NaN and do not count as tests."""
    p = np.asarray(p_values, np.float64)
    out = np.full(p.shape, np.nan)
    known = np.flatnonzero(np.isfinite(p))
    rising = known[np.argsort(p[known], kind="stable")]
    places = np.arange(len(rising))
    if method == "holm":
        steps = np.maximum.accumulate(p[rising] * (len(rising) - places))
    else:
        steps = np.minimum.accumulate((p[rising] * len(rising) / (places + 1))[::-1])[::-1]
    out[rising] = np.minimum(steps, 1.0)
    return out


@dataclass(frozen=True, slots=True)
class Nested:
    """The contribution of one extra predictor to a logistic regression.

    Attributes:
        coefficient: log-odds per standard deviation of the extra predictor, given the others.
        low: Wald interval of the coefficient.
        high: Wald interval of the coefficient.
        statistic: likelihood-ratio statistic 2(ℓ_full − ℓ_base); for clustered rows the Wald χ².
        p: its χ² p-value with one degree of freedom.
        why: reason if something is undefined, else None.
    """

    coefficient: float
    low: float
    high: float
    statistic: float
    p: float
    why: str | None = None


def nested_logistic(
    correct: ArrayLike,
    extra: ArrayLike,
    base: Sequence[ArrayLike],
    *,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
) -> Nested:
    """Fit correct ~ base and correct ~ base + extra; predictors are standardised, constant ones dropped.

    Args:
        correct: outcomes [N].
        extra: the predictor under test [N].
        base: predictors of the smaller model, each [N].
        clusters: prompt of each row. If given, a Wald test with cluster-robust errors is used, because the
            likelihood ratio assumes independent rows. With few prompts in a class there is no test.
        level: coverage of the coefficient's interval.
    """
    outcome = np.asarray(correct, np.float64)
    if not len(outcome):
        return _undefined("no rows")
    added = _standard(extra)
    if len(np.unique(outcome)) < 2:
        return _undefined("correctness is constant")
    if added is None:
        return _undefined("the predictor is constant")
    small = np.column_stack([np.ones(len(outcome)), *(c for c in map(_standard, base) if c is not None)])
    full = np.column_stack([small, added])
    if len(outcome) <= full.shape[1] or (clusters is not None and len(np.unique(np.asarray(clusters))) < 2):
        return _undefined("too few rows or items for the fit")
    if np.linalg.matrix_rank(full) < full.shape[1]:
        return _undefined("the predictor is a combination of the others")
    first, second = _fit(outcome, small, None), _fit(outcome, full, clusters)
    if first is None or second is None:
        return _undefined("the logistic fit did not converge (perfect separation?)")
    coefficient, error = float(second.params[-1]), float(second.bse[-1])
    half = float(special.ndtri((1 + level) / 2)) * error
    why = None if clusters is None else too_few(outcome > 0, np.asarray(clusters))
    if why:
        return Nested(coefficient, math.nan, math.nan, math.nan, math.nan, why)
    ratio = max(0.0, 2 * float(second.llf - first.llf))
    statistic = ratio if clusters is None else (coefficient / error) ** 2
    return Nested(
        coefficient, coefficient - half, coefficient + half, statistic, float(special.chdtrc(1, statistic))
    )


def _fit(outcome: FloatArray, design: FloatArray, clusters: ArrayLike | None) -> Any:
    """Return a converged statsmodels fit, or None."""
    from statsmodels.discrete.discrete_model import Logit
    from statsmodels.tools.sm_exceptions import ConvergenceWarning, PerfectSeparationWarning

    robust = {} if clusters is None else {"cov_type": "cluster", "cov_kwds": {"groups": np.asarray(clusters)}}
    with warnings.catch_warnings():
        # The result states whether the fit converged, so the warnings are redundant.
        for kind in (ConvergenceWarning, PerfectSeparationWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)
        try:
            fit = Logit(outcome, design).fit(disp=0, maxiter=100, tol=1e-10, **robust)
        except np.linalg.LinAlgError:
            return None
    valid = fit.mle_retvals["converged"] and np.isfinite(fit.bse).all() and np.abs(fit.params).max() < 50
    return fit if valid else None


def _standard(column: ArrayLike) -> FloatArray | None:
    values = np.asarray(column, np.float64)
    deviation = values.std()
    is_constant = deviation <= 1e-12 * max(1.0, float(np.abs(values).max()))
    return None if is_constant else (values - values.mean()) / deviation


def _undefined(why: str) -> Nested:
    return Nested(math.nan, math.nan, math.nan, math.nan, math.nan, why)
