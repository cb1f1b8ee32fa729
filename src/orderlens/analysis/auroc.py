"""Area under the ROC curve with DeLong's covariance, for one score or several scores of the same rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from orderlens.analysis.estimate import Estimate
from orderlens.metrics.segments import FloatArray


@dataclass(frozen=True, slots=True)
class DeLong:
    """AUROCs of K scores and the covariance of their estimates."""

    auroc: FloatArray
    covariance: FloatArray

    def estimate(self, place: int, n: int, level: float = 0.95) -> Estimate:
        """Return one AUROC with its normal interval, cut to [0, 1]."""
        value = float(self.auroc[place])
        variance = float(self.covariance[place, place])
        if math.isnan(variance):
            return Estimate(value, n=n)
        half = float(scipy.special.ndtri((1 + level) / 2)) * math.sqrt(max(variance, 0.0))
        return Estimate(value, max(0.0, value - half), min(1.0, value + half), n)

    def compare(self, first: int, second: int) -> tuple[float, float]:
        """Return the difference of two AUROCs of the same rows and its two-sided p."""
        difference = float(self.auroc[first] - self.auroc[second])
        cov = self.covariance
        variance = float(cov[first, first] + cov[second, second] - 2 * cov[first, second])
        if variance <= 1e-15:  # the two scores rank the rows alike
            return difference, math.nan if abs(difference) < 1e-12 else 0.0
        return difference, float(2 * scipy.special.ndtr(-abs(difference) / math.sqrt(variance)))


def delong(scores_KN: ArrayLike, correct_N: ArrayLike) -> DeLong:
    """Return the AUROC of each score (larger = more likely correct) and DeLong's covariance [K, K].

    Midranks make it O(K N log N). NaN when one class is empty; the covariance needs two rows of each class.
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
