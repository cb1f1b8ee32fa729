"""Tests between two groups or models: McNemar, Wilson intervals, nested logistic regression, corrections."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray


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
        why: reason if undefined, else None.
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
            likelihood ratio assumes independent rows.
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
