"""Integrals of log-concave functions over the reals, by Gauss–Legendre panels around the peak.

Fixed Gauss–Hermite nodes miss the peak with many competitors, or if the target's lead is very negative. A
log-concave integrand has one peak. The interval on which the integrand is above e^{−40} of its peak is split
into Gauss–Legendre panels. This module does not depend on probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from orderlens.theory._inputs import Array

DROP = 40.0
"""The integration interval ends where the integrand is e^{−DROP} of its peak."""

EDGES, POINTS = (0.0, 0.08, 0.22, 0.5, 1.0), 20
"""Gauss–Legendre panels on each side of the peak, as shares of the reach, and points per panel.

They are narrow at the peak, because 1 − Φ^k changes within 1/√(2 log k).
"""

LOG_ROOT_2PI = 0.5 * float(np.log(2.0 * np.pi))

_ROUNDING = 1e6
"""For peaks beyond this, rounding errors are too large; there the integrand is Gaussian."""

Curve: TypeAlias = Callable[[Array], Array]
"""A function of t, elementwise over [N] or [N, nodes]."""


class Integral(NamedTuple):
    """Log of an integral against dt/√(2π); mean and variance of t under the normalised integrand, all [N]."""

    log_value: Array
    mean: Array
    variance: Array


def panel_rule(edges: ArrayLike, points: int) -> tuple[Array, Array]:
    """Return nodes and weights of Gauss–Legendre panels between consecutive ``edges``."""
    x, w = np.polynomial.legendre.leggauss(points)
    starts = np.asarray(edges, dtype=np.float64)[:-1, None]
    halves = np.diff(np.asarray(edges, dtype=np.float64))[:, None] / 2.0
    return (starts + halves * (x + 1.0)).ravel(), (halves * w).ravel()


_NODES, _WEIGHTS = panel_rule(EDGES, POINTS)


def newton_peak(slope: Curve, steepness: Curve, start: Array) -> Array:
    """Find the peak by Newton's method, starting to its left.

    Args:
        slope: derivative of the log-integrand; convex and decreasing, so that no step goes past the peak.
        steepness: minus its second derivative.
        start: points at which ``slope`` is not negative.
    """
    t = start
    for _ in range(200):
        step = slope(t) / steepness(t)
        t = t + step
        if np.all(np.abs(step) <= 1e-7 * (1.0 + np.abs(t))):
            break
    return t


def bisect_peak(slope: Curve, low: Array, high: Array) -> Array:
    """Find the root of the decreasing ``slope`` between ``low`` and ``high`` to about 1e-4."""
    for _ in range(int(np.ceil(np.log2(np.max(high - low)))) + 14):
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return np.asarray(0.5 * (low + high))


def around_peak(
    value: Curve, slope: Curve, peak: Array, least_curvature: float, moments: bool = True
) -> Integral:
    """Integrate e^{value} over the reals, given its peaks [N] and a lower bound on −value''.

    Mean and variance are valid only with ``moments``.
    """
    top = value(peak)
    reaches = [_reach(value, slope, peak, top, side, least_curvature) for side in (-1.0, 1.0)]
    offset = np.concatenate([-reaches[0][:, None] * _NODES, reaches[1][:, None] * _NODES], axis=1)
    weight = np.concatenate([reach[:, None] * _WEIGHTS for reach in reaches], axis=1)
    mass = weight * np.exp(value(peak[:, None] + offset) - top[:, None])
    total = mass.sum(axis=1)
    shift = variance = np.zeros_like(peak)
    if moments:
        shift = (mass * offset).sum(axis=1) / total
        variance = (mass * (offset - shift[:, None]) ** 2).sum(axis=1) / total
    exact = Integral(top + np.log(total) - LOG_ROOT_2PI, peak + shift, variance)
    if np.any(np.abs(peak) > _ROUNDING):
        rough = np.abs(peak) > _ROUNDING
        return Integral(
            *(np.where(rough, a, b) for a, b in zip(_laplace(top, slope, peak), exact, strict=True))
        )
    return exact


def _reach(value: Curve, slope: Curve, peak: Array, top: Array, side: float, least_curvature: float) -> Array:
    """Return the distance from the peak at which the log-integrand has fallen by DROP, or slightly more."""
    distance = np.full_like(peak, np.sqrt(2.0 * DROP / least_curvature))
    for _ in range(12):
        place = peak + side * distance
        # By concavity Newton's method never gets below the true distance, so it can stop at any step.
        step = (value(place) - top + DROP) / (side * slope(place))
        distance = distance - step
        if np.all(np.abs(step) <= 1e-3 * distance):
            break
    return distance


def _laplace(top: Array, slope: Curve, peak: Array) -> Integral:
    """Return Laplace's approximation, which is exact in the limit of a distant peak."""
    h = 1e-3 * np.abs(peak)
    curvature = (slope(peak - h) - slope(peak + h)) / (2.0 * h)
    return Integral(top - 0.5 * np.log(curvature), peak, 1.0 / curvature)
