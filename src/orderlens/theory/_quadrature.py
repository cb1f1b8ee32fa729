"""Integrals of log-concave functions over the reals: find the peak, follow it down, cut in panels.

Fixed Gauss–Hermite nodes, the textbook way, miss the peak when there are many competitors or the target is
far behind. A log-concave integrand has one peak; from it the integrand is followed down to e^{−40} of its
height on both sides, and that interval is cut into Gauss–Legendre panels. This module knows no probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from orderlens.theory._inputs import Array

DROP = 40.0
"""Integrands are followed down to e^{−DROP} of their peak."""

EDGES, POINTS = (0.0, 0.08, 0.22, 0.5, 1.0), 20
"""Gauss–Legendre panels on each side of the peak, as shares of the reach, and points in each.

They are narrow at the peak, where 1 − Φ^k turns within 1/√(2 log k).
"""

LOG_ROOT_2PI = 0.5 * float(np.log(2.0 * np.pi))

_ROUNDING = 1e6
"""Peaks further out than this carry too much rounding noise; there the integrand is a Gaussian bell."""

Curve: TypeAlias = Callable[[Array], Array]
"""A function of t, elementwise over [N] or [N, nodes]."""


class Integral(NamedTuple):
    """Log of an integral against dt/√(2π); mean and variance of t under the normalised integrand, all [N]."""

    log_value: Array
    mean: Array
    variance: Array


def panel_rule(edges: ArrayLike, points: int) -> tuple[Array, Array]:
    """Nodes and weights of Gauss–Legendre panels between consecutive ``edges``."""
    x, w = np.polynomial.legendre.leggauss(points)
    starts = np.asarray(edges, dtype=np.float64)[:-1, None]
    halves = np.diff(np.asarray(edges, dtype=np.float64))[:, None] / 2.0
    return (starts + halves * (x + 1.0)).ravel(), (halves * w).ravel()


_NODES, _WEIGHTS = panel_rule(EDGES, POINTS)


def climb(slope: Curve, steepness: Curve, start: Array) -> Array:
    """Find the peak by Newton's method from its left.

    Args:
        slope: derivative of the log-integrand; convex and decreasing, so that no step overshoots.
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

    Without ``moments`` mean and variance are not valid.
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
        return Integral(*(np.where(rough, a, b) for a, b in zip(_bell(top, slope, peak), exact, strict=True)))
    return exact


def _reach(value: Curve, slope: Curve, peak: Array, top: Array, side: float, least_curvature: float) -> Array:
    """Distance from the peak at which the log-integrand has fallen by DROP, never underestimated."""
    distance = np.full_like(peak, np.sqrt(2.0 * DROP / least_curvature))
    for _ in range(12):
        place = peak + side * distance
        # Concave: from outside, Newton's method on value − top + DROP stays outside, so it may end anywhere.
        step = (value(place) - top + DROP) / (side * slope(place))
        distance = distance - step
        if np.all(np.abs(step) <= 1e-3 * distance):
            break
    return distance


def _bell(top: Array, slope: Curve, peak: Array) -> Integral:
    """Laplace's approximation, exact in the limit of a far peak."""
    h = 1e-3 * np.abs(peak)
    curvature = (slope(peak - h) - slope(peak + h)) / (2.0 * h)
    return Integral(top - 0.5 * np.log(curvature), peak, 1.0 / curvature)
