"""The target against its competitors: log-probability to win or lose, and derivatives by the lead.

All noises are in units of σ. Let c_i be the target's mean lead over competitor i and t the target's noise.
The target wins with probability f = E[∏ Φ(c_i + t)^{n_i}], t ~ N(0, 1), where n_i competitors have the lead
c_i. Let G = log f as a function of a common shift u of all leads. Tilting the distribution of t by the
product (p) or by the product's derivative (m) gives

* G' = E_p[t],  G'' = Var_p[t] − 1, used where f < ½;
* f' = ∫ φ(t) (∏)'(t) dt,  −G''/G' = G' − E_m[t], and 1 − f integrated directly, used where f ≥ ½.

So neither tail is a difference of nearly equal numbers.

Fixed Gauss–Hermite nodes miss the peak with many competitors, or if the target's lead is very negative. The
integrands are log-concave, so they have one peak. The interval on which an integrand is above e^{−40} of its
peak is split into Gauss–Legendre panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from orderlens.theory._inputs import Array
from orderlens.theory.step import inverse_mills_kernel, mills_excess_kernel

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


ROWS = 512
"""Leads per batch: a [512, 160] block of nodes fits in the second-level cache."""

_FURTHEST = 1e150
_FAR_RIGHT = 20.0
_TABLE = 1 << 18
"""Nodes × competitors per batch, for unequal competitors."""


class Competition(NamedTuple):
    """The target's probabilities and derivatives, all [N].

    Attributes:
        log_win: G = log f.
        log_lose: log(1 − f).
        log_slope: log G', with respect to the lead.
        bend: −G''/G' > 0; log f is concave in log q exactly where this is above σq.
    """

    log_win: Array
    log_lose: Array
    log_slope: Array
    bend: Array


def equal_competitors(u: Array, k: float, *, with_bend: bool = True) -> Competition:
    """Solve for k ≥ 1 equal competitors at mean lead u [N]; slope and bend are valid only ``with_bend``."""
    u = np.clip(u, -_FURTHEST, _FURTHEST)
    starts = range(0, max(u.size, 1), ROWS)
    parts = [_equal_piece(u[start : start + ROWS], k, with_bend) for start in starts]
    return Competition(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _equal_piece(u: Array, k: float, with_bend: bool) -> Competition:
    with np.errstate(all="ignore"):
        win = _lead_integral(u, k, 0.0, moments=with_bend)
        log_win = np.minimum(win.log_value, 0.0)
        log_lose = np.log1p(-np.exp(log_win))
        log_slope, bend = np.log(win.mean), (1.0 - win.variance) / win.mean
        likely = np.flatnonzero(log_win > -np.log(2.0))
        if likely.size:
            log_lose[likely] = _losing_integral(u[likely], k).log_value
            log_win[likely] = np.log1p(-np.exp(log_lose[likely]))
        if likely.size and with_bend:
            rate = _lead_integral(u[likely], k - 1.0, 1.0)
            log_slope[likely] = rate.log_value + np.log(k) - LOG_ROOT_2PI - log_win[likely]
            bend[likely] = np.exp(log_slope[likely]) - rate.mean
    return Competition(log_win, log_lose, log_slope, bend)


def _lead_integral(u: Array, power: float, bell: float, moments: bool = True) -> Integral:
    """Integrate φ(t) Φ(u + t)^power e^{−bell (u + t)²/2}; bell is 0 or 1."""

    def value(t: Array) -> Array:
        w = _aligned(u, t) + t
        return np.asarray(power * log_ndtr(w) - 0.5 * (t * t + bell * w * w))

    def slope(t: Array) -> Array:
        w = u + t
        return power * inverse_mills_kernel(w) - t - bell * w

    def steepness(t: Array) -> Array:
        w = u + t
        return 1.0 + bell + power * inverse_mills_kernel(w) * mills_excess_kernel(w)

    return around_peak(value, slope, newton_peak(slope, steepness, -0.5 * bell * u), 1.0 + bell, moments)


def _losing_integral(u: Array, k: float) -> Integral:
    """Integrate φ(t)(1 − Φ(u + t)^k)."""

    def value(t: Array) -> Array:
        return log_any_better(_aligned(u, t) + t, k) - 0.5 * t * t

    def slope(t: Array) -> Array:
        w = u + t
        near = -k * inverse_mills_kernel(w) / np.expm1(-k * log_ndtr(w))
        return np.where(w > _FAR_RIGHT, -inverse_mills_kernel(-w), near) - t

    peak = bisect_peak(slope, -(np.maximum(u, 0.0) + 7.0), np.zeros_like(u))
    return around_peak(value, slope, peak, 1.0, moments=False)


def _aligned(u: Array, t: Array) -> Array:
    """Return u [N] with a shape that broadcasts with t, which is [N] or [N, nodes]."""
    return u if t.ndim == 1 else u[:, None]


def log_any_better(w: Array, k: float) -> Array:
    """Return log(1 − Φ(w)^k): the log-probability that at least one of k standard normals exceeds w."""
    value = np.log(-np.expm1(k * log_ndtr(w)))
    far = w > _FAR_RIGHT
    if far.any():
        value[far] = np.log(k) + log_ndtr(-w[far])
    return np.asarray(value)


def unequal_log_win(leads: Array, counts: Array) -> float:
    """Return log f of one target against ``counts`` [M] competitors at mean leads ``leads`` [M]."""
    with np.errstate(all="ignore"):
        win = float(_unequal_win(leads, counts).log_value[0])
        if win <= -np.log(2.0):
            return win
        t, measure = _covering_panels(leads)
        log_all_lower = _competitor_sum(log_ndtr, t, leads, counts)
        return float(np.log1p(-np.exp(_log_lose(measure, log_all_lower, t, leads, counts))))


def unequal_bend(leads: Array, counts: Array) -> float:
    """Return −G''/G' of one target against unequal competitors."""
    with np.errstate(all="ignore"):
        win = _unequal_win(leads, counts)
        if win.log_value[0] <= -np.log(2.0):
            return float((1.0 - win.variance[0]) / win.mean[0])
        t, measure = _covering_panels(leads)
        log_all_lower = _competitor_sum(log_ndtr, t, leads, counts)
        rate = measure + log_all_lower + np.log(_competitor_sum(inverse_mills_kernel, t, leads, counts))
        log_rate = _log_sum(rate)
        log_win = np.log1p(-np.exp(_log_lose(measure, log_all_lower, t, leads, counts)))
        return float(np.exp(log_rate - log_win) - np.sum(t * np.exp(rate - log_rate)))


def _unequal_win(leads: Array, counts: Array) -> Integral:
    """Integrate φ(t) ∏ Φ(c_i + t)^{n_i} around its peak."""

    def value(t: Array) -> Array:
        return _competitor_sum(log_ndtr, t, leads, counts) - 0.5 * t * t

    def slope(t: Array) -> Array:
        return _competitor_sum(inverse_mills_kernel, t, leads, counts) - t

    def steepness(t: Array) -> Array:
        return 1.0 + _competitor_sum(_mills_product, t, leads, counts)

    return around_peak(value, slope, newton_peak(slope, steepness, np.zeros(1)), 1.0)


def _mills_product(w: Array) -> Array:
    return inverse_mills_kernel(w) * mills_excess_kernel(w)


def _covering_panels(leads: Array) -> tuple[Array, Array]:
    """Return nodes t and log-weights of φ(t)dt, used where f ≥ ½.

    The integrand of losing may have several peaks, so panels of unit width cover the whole relevant range.
    The integrand is at most φ(t), and the probability to lose is at least that against the strongest
    competitor. The part outside the range is below e^{−40} of it.
    """
    hardest = float(log_ndtr(-np.min(leads) / np.sqrt(2.0)))
    reach = float(np.sqrt(2.0 * (DROP - hardest)))
    span = reach + 9.0
    t, weights = panel_rule(np.linspace(-reach, 9.0, int(np.ceil(span)) + 1), 16)
    return t, np.log(weights) - 0.5 * t * t - LOG_ROOT_2PI


def _log_lose(measure: Array, log_all_lower: Array, t: Array, leads: Array, counts: Array) -> float:
    """Return log(1 − f); where the product of Φ rounds to 1, its complement is the sum of single tails."""
    value = np.log(-np.expm1(log_all_lower))
    lost = log_all_lower > -1e-290
    if lost.any():
        logs = log_ndtr(-(leads + t[lost][:, None])) + np.log(counts)
        value[lost] = np.logaddexp.reduce(logs, axis=1)
    return _log_sum(measure + value)


def _log_sum(logs: Array) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))


def _competitor_sum(function: Curve, t: Array, leads: Array, counts: Array) -> Array:
    """Return Σ_i n_i function(c_i + t) for every t, of any shape, in tables of limited size."""
    flat = t.reshape(-1)
    rows = max(1, _TABLE // leads.size)
    pieces = [
        np.asarray(function(leads + flat[start : start + rows, None])) @ counts
        for start in range(0, flat.size, rows)
    ]
    return np.concatenate(pieces).reshape(t.shape)
