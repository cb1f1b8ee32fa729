"""Where log-recoverability is concave in log q, and the best profile for a given total.

g'' < 0 exactly where the margin z + r(z) − σ√2 q is positive. Up to a critical noise σ₀ it is positive for
every q. Above σ₀, g is convex in an interval of q, where uniform profiles are no longer optimal. With k equal
competitors the condition is bend(u) > σq, which for k = 1 is the margin divided by √2.

The best profile maximises Σ g(y_t) subject to Σ y_t = log P. At a maximum all steps have the same slope
λ = g'(y_t), and at most one step is where g is convex (two such steps would gain by moving apart). With
increasing y, g is concave, convex, concave. So the best profile has some equal low steps, at most one middle
step, and equal high steps. The search covers these counts and λ. Only for one competitor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, log_expit

from orderlens.theory import _inputs
from orderlens.theory._competition import equal_competitors
from orderlens.theory._inputs import Array, ProbabilityError, ProfileError, Values
from orderlens.theory.step import (
    SQRT2,
    d1,
    inverse_mills_kernel,
    log_success,
    logit_of_log,
    mills_excess_kernel,
)

_GRID = 400


class CriticalPoint(NamedTuple):
    """The noise above which g is not concave everywhere, and the q at which concavity fails first."""

    sigma: float
    q: float


class Interval(NamedTuple):
    """An interval of q in which g is convex, with its ends as q, as y = log q and as logit q.

    For large σ the upper end is closer to 1 than a float can represent; use ``logit_high`` then.
    """

    q_low: float
    q_high: float
    y_low: float
    y_high: float
    logit_low: float
    logit_high: float


def concavity_margin(y: ArrayLike, sigma: ArrayLike) -> Values:
    """Return z + r(z) − σ√2 q at q = e^y: positive where g is concave.

    It tends to 0 as q → 0 for every σ. Use its sign or :func:`concavity_ratio`, never a fixed threshold.
    """
    return _inputs.elementwise(_margin, _inputs.log_probabilities(y), _inputs.noise(sigma))


def concavity_ratio(y: ArrayLike, sigma: ArrayLike) -> Values:
    """(z + r(z))/(σ√2 q) at q = e^y: above 1 where g is concave."""
    return _inputs.elementwise(_ratio, _inputs.log_probabilities(y), _inputs.noise(sigma))


def _excess(y: Array, sigma: Array | float) -> Array:
    return mills_excess_kernel(np.clip(logit_of_log(y)[0] / (SQRT2 * sigma), -1e150, 1e150))


def _margin(y: Array, sigma: Array | float) -> Array:
    return np.asarray(_excess(y, sigma) - SQRT2 * sigma * np.exp(y))


def _ratio(y: Array, sigma: Array | float) -> Array:
    return np.asarray(np.exp(np.log(_excess(y, sigma) / (SQRT2 * sigma)) - y))


def margin_of_logit(logit: Array, sigma: float, k: float) -> Array:
    """Return bend − σq [N] at logit q, for k equal competitors; for k = 1 the concavity margin / √2."""
    q = np.asarray(expit(logit))
    with np.errstate(all="ignore"):
        if k == 1:
            return np.asarray(mills_excess_kernel(logit / (SQRT2 * sigma)) / SQRT2 - sigma * q)
        return np.asarray(equal_competitors((np.log(k) + logit) / sigma, k).bend - sigma * q)


def critical_sigma(k: float = 1) -> float:
    """σ₀(k): the largest σ at which g_k is concave on all of (0, 1). Exact to 13 digits for k = 1, else 8."""
    return critical_point(k).sigma


def critical_point(k: float = 1) -> CriticalPoint:
    """Return σ₀(k) and the q at which concavity fails first."""
    return _critical_point(_inputs.competitors(k))


@lru_cache(maxsize=256)
def _critical_point(k: float) -> CriticalPoint:
    high = 1.5
    while _worst(high, k)[0] > 0:
        high *= 1.25
    sigma = float(brentq(lambda noise: _worst(noise, k)[0], 0.8, high, xtol=1e-14, rtol=1e-14))
    logit = _worst(sigma, k)[1]
    if k == 1:
        logit = float(brentq(_margin_slope, logit - 1e-3, logit + 1e-3, args=(sigma,), xtol=1e-14))
    return CriticalPoint(sigma, float(expit(logit)))


def _margin_slope(logit: float, sigma: float) -> float:
    """Return the derivative of the margin / √2 for k = 1; its root is more precise than a minimum search."""
    z = np.array([logit / (SQRT2 * sigma)])
    q = float(expit(logit))
    return float(1.0 - inverse_mills_kernel(z)[0] * mills_excess_kernel(z)[0]) / (2.0 * sigma) - sigma * q * (
        1.0 - q
    )


def _worst(sigma: float, k: float) -> tuple[float, float]:
    """Return the smallest margin over all q, and its logit."""
    low, high = _search_range(sigma, k)
    grid = np.linspace(low, high, 97)
    best = grid[int(np.argmin(margin_of_logit(grid, sigma, k)))]
    step = grid[1] - grid[0]
    found = minimize_scalar(
        lambda logit: float(margin_of_logit(np.array([logit]), sigma, k)[0]),
        bounds=(best - step, best + step),
        method="bounded",
        options={"xatol": 1e-7 if k == 1 else 1e-5},
    )
    return float(found.fun), float(found.x)


def _search_range(sigma: float, k: float) -> tuple[float, float]:
    """Return a range of logit q outside of which g_k is certainly concave or the margin only grows.

    Right: bend > (u − c)/2, where c is about the largest of k noises. So it exceeds σq ≤ σ once u > 2σ + c.
    Left: q decreases exponentially, the bend only like 1/|u|.
    """
    largest_noise = float(np.sqrt(2.0 * np.log(k + 1.0))) + 2.0
    return -(8.0 + 2.0 * np.log1p(sigma) + np.log(k)), sigma * (2.0 * sigma + largest_noise) - np.log(k)


def violation_intervals(sigma: float, k: float = 1) -> list[Interval]:
    """Return the intervals of q in which g_k is convex; empty up to σ₀(k), one interval above."""
    noise, n_competitors = _inputs.single_noise(sigma), _inputs.competitors(k)
    low, high = _search_range(noise, n_competitors)
    worst = _worst(noise, n_competitors)[1]
    grid = np.unique(np.append(np.linspace(low, high, _GRID), worst))
    convex = margin_of_logit(grid, noise, n_competitors) < 0
    edges = np.flatnonzero(np.diff(convex))
    roots = [_edge(float(grid[i]), float(grid[i + 1]), noise, n_competitors) for i in edges]
    return [_interval(a, b) for a, b in zip(roots[::2], roots[1::2], strict=True)]


def _edge(low: float, high: float, sigma: float, k: float) -> float:
    return float(brentq(lambda x: float(margin_of_logit(np.array([x]), sigma, k)[0]), low, high, xtol=1e-13))


def _interval(low: float, high: float) -> Interval:
    ends = np.array([low, high])
    (q_low, q_high), (y_low, y_high) = expit(ends), log_expit(ends)
    return Interval(float(q_low), float(q_high), float(y_low), float(y_high), low, high)


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
