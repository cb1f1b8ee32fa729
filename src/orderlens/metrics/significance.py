"""Proportions and many tests: McNemar, Wilson intervals, Holm and Benjamini–Hochberg."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray


@dataclass(frozen=True, slots=True)
class McNemar:
    """Two orders on the same items.

    Attributes:
        n: items that both answered.
        only_first: items only the first got right.
        only_second: items only the second got right.
        p: exact two-sided binomial p of the disagreements; NaN without items.
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
    from statsmodels.stats.multitest import multipletests

    p = np.asarray(p_values, np.float64)
    out = np.full(p.shape, np.nan)
    known = np.isfinite(p)
    if known.any():
        out[known] = multipletests(p[known], method="holm" if method == "holm" else "fdr_bh")[1]
    return out
