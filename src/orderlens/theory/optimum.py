"""The best profile for a given total, including above σ₀, where it need not be uniform.

Maximise Σ g(y_t) subject to Σ y_t = log P. At a maximum all steps have the same slope λ = g'(y_t), and at
most one step is where g is convex (two such steps would gain by moving apart). With increasing y, g is
concave, convex, concave. So the best profile has some equal low steps, at most one middle step, and equal
high steps. The search covers these counts and λ. Only for one competitor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from orderlens.theory import _inputs
from orderlens.theory._inputs import Array, ProbabilityError, ProfileError
from orderlens.theory.concavity import Interval, violation_intervals
from orderlens.theory.step import d1, log_success, logit_of_log

Counts = NDArray[np.int64]

_SLOPES = 600
"""Size of the grid of λ on which stationary profiles are bracketed."""

_ALL_COUNTS = 64
_WINDOW = 8
"""Up to _ALL_COUNTS steps every count is tried; beyond, only counts within _WINDOW of the relaxed optimum."""

_REFINED = 6
_HIGHEST_LOGIT = 690.0


@dataclass(frozen=True, slots=True)
class BestProfile:
    """The profile of largest recoverability.

    Attributes:
        y: its steps [n], lowest first.
        log_a: its log A.
        uniform_log_a: log A of the uniform profile with the same total.
    """

    y: Array
    log_a: float
    uniform_log_a: float

    @property
    def is_uniform(self) -> bool:
        """Whether all steps are equal."""
        return bool(self.y[0] == self.y[-1])

    @property
    def gain(self) -> float:
        """Log A minus that of the uniform profile."""
        return self.log_a - self.uniform_log_a


def best_profile(log_p: float, n: int, sigma: float) -> BestProfile:
    """Find the n-step profile with total ``log_p`` = log P < 0 that maximises log A at noise σ."""
    noise, total = _inputs.single_noise(sigma), float(_inputs.finite(log_p, "log P"))
    if n < 1:
        raise ProfileError(f"a profile needs at least one step; got n = {n!r}")
    if not total < 0:
        raise ProbabilityError(f"log P must be negative; got {total!r}")
    uniform = n * float(log_success(total / n, noise))
    best = BestProfile(np.full(n, total / n), uniform, uniform)
    for interval in violation_intervals(noise) if n > 1 else []:
        for y in _Search(total, n, noise, interval).candidates():
            value = float(log_success(y, noise).sum())
            if value > best.log_a + 1e-14 * n * abs(uniform):
                best = BestProfile(y, value, uniform)
    return best


class _Search:
    """Stationary profiles of one problem.

    All computations use logit q, in which high steps, up to e^{−50} close to q = 1, keep their digits.
    Branches of g'(y) = λ: 0 below, 1 inside and 2 above the convex interval.
    """

    def __init__(self, total: float, n: int, sigma: float, convex: Interval) -> None:
        self.total, self.n, self.sigma = total, n, sigma
        with np.errstate(over="ignore"):
            # No step can be lower than a single step with the whole total; minus 1 as a margin.
            lowest = float(logit_of_log(np.array([total]))[0][0]) - 1.0
        first, last = convex.logit_low, convex.logit_high
        self.is_possible = lowest < last
        self.ranges = (
            (min(lowest, first), first),
            (min(max(lowest, first), last), last),
            (last, _HIGHEST_LOGIT),
        )
        flattest = self._slope(max(lowest, first))
        self.slopes = np.geomspace(flattest, max(self._slope(last), flattest), _SLOPES)
        self.has_low = lowest < first

    def candidates(self) -> list[Array]:
        """Return the most promising stationary profiles that are not uniform, refined."""
        if not self.is_possible:
            return []
        values = self._steps(self.slopes)
        logs = np.asarray(log_success(values, self.sigma))
        found: list[tuple[float, Counts, int]] = []
        for n_middle in (0, 1):
            for n_low in self._counts(self.n - n_middle, values, logs):
                counts = np.array([n_low, n_middle, self.n - n_middle - n_low])
                excess = counts @ values - self.total
                # First-order correction: the difference to the total changes log A at the slope λ.
                estimate = counts @ logs - self.slopes * excess
                found += [(float(estimate[i]), counts, int(i)) for i in _sign_changes(excess)]
        found.sort(key=lambda item: -item[0])
        refined = [self._refine(counts, place) for _, counts, place in found[:_REFINED]]
        return [y for y in refined if y[-1] < 0]

    def _counts(self, n: int, values: Array, logs: Array) -> range:
        """Return the candidate numbers of low steps among ``n``."""
        if not self.has_low:
            return range(1)
        if n <= _ALL_COUNTS:
            return range(n + 1)
        low, _, high = values
        tangent_gap = logs[2] - logs[0] - self.slopes * (high - low)
        touch = int(np.argmin(np.abs(tangent_gap)))
        centre = round((n * high[touch] - self.total) / (high[touch] - low[touch]))
        return range(max(centre - _WINDOW, 0), min(centre + _WINDOW, n) + 1)

    def _refine(self, counts: Counts, place: int) -> Array:
        """Narrow λ between two grid points until Σ y = log P; return the profile, lowest step first."""
        low, high = self.slopes[place], self.slopes[place + 1]
        for _ in range(9):
            slopes = np.geomspace(low, high, 65)
            excess = counts @ self._steps(slopes) - self.total
            inside = int(_sign_changes(excess)[0]) if _sign_changes(excess).size else 0
            low, high = slopes[inside], slopes[inside + 1]
        y = self._steps(np.array([low]))[:, 0]
        free = int(np.argmax(counts * -y))
        # The largest share absorbs the rounding error, which may be larger than a high step.
        y[free] += (self.total - float(counts @ y)) / counts[free]
        return np.sort(np.repeat(y, counts))

    def _slope(self, logit: float) -> float:
        return float(d1(log_expit(logit), self.sigma))

    def _steps(self, slopes: Array) -> Array:
        """Return the solutions y [3, G] of g'(y) = λ on the three branches, for every slope λ [G]."""
        low = np.array([np.full_like(slopes, ends[0]) for ends in self.ranges])
        high = np.array([np.full_like(slopes, ends[1]) for ends in self.ranges])
        falling = np.array([[True], [False], [True]])
        for _ in range(64):
            middle = 0.5 * (low + high)
            go_right = (np.asarray(d1(log_expit(middle), self.sigma)) > slopes) == falling
            low, high = np.where(go_right, middle, low), np.where(go_right, high, middle)
        return np.asarray(log_expit(0.5 * (low + high)))


def _sign_changes(values: Array) -> Counts:
    """Return the indices i with values[i] and values[i + 1] on different sides of 0."""
    return np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) <= 0)
