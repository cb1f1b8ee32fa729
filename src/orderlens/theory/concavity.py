"""The regions of log q in which log-recoverability is concave or convex.

g'' < 0 exactly where the margin z + r(z) − σ√2 q is positive. Up to a critical noise σ₀ it is positive for
every q. Above σ₀, g is convex in an interval of q, where uniform profiles are no longer optimal. With k equal
competitors the condition is bend(u) > σq, which for k = 1 is the margin divided by √2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, log_expit

from orderlens.theory import _inputs
from orderlens.theory._competition import equal_competitors
from orderlens.theory._inputs import Array, Values
from orderlens.theory.step import SQRT2, inverse_mills_kernel, logit_of_log, mills_excess_kernel

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
