"""Profiles: the recoverability of a trace of confidences, compared with an even profile of the same total.

A profile is y_t = log q_t on the last axis. If steps succeed independently, log A = Σ g(y_t). The even
profile with the same total has n·g(ȳ). The difference is the Jensen loss, exact for every profile. Its
second-order approximation −n/2·g''(ȳ)·Var motivates the paper's use of Var; here g'' keeps its sign.
``taylor_radius`` is the radius of convergence of the Taylor series of g.

Two profiles are comparable in evenness if one majorises the other. Profile a majorises b if both have the
same total and, for every m, the sum of the m lowest steps of a is at most that of b. Then Σ g(a) ≤ Σ g(b) for
every concave g, so b is the safer profile at every σ ≤ σ₀. Most pairs are not comparable, and then no single
number, including Var, orders their recoverability for every g. Does not depend on orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import wofz

from orderlens.theory import _inputs
from orderlens.theory._inputs import Array, ProfileError, Values
from orderlens.theory.competitors import d2_k, log_success_k

_MOST_ZEROS = 1 << 15


def taylor_radius(y: float, sigma: float) -> float:
    """Return the radius of convergence of g's Taylor series at one y = log q < 0."""
    centre, noise = float(_inputs.log_probabilities(y)), _inputs.single_noise(sigma)
    return float(np.min(np.abs(singularities(noise) - centre), initial=-centre))


def singularities(sigma: float) -> NDArray[np.complex128]:
    """Return the complex y with Re y < 0, Im y > 0 and Φ(z(y)) = 0; their conjugates are singular too.

    Zeros of erfc beyond |ζ| ≈ 2/σ have logits without a y with Re y < 0 near the real axis.
    """
    count = min(_MOST_ZEROS, 16 + int((2.0 / sigma) ** 2 / 6.0))
    logit = -2.0 * sigma * erfc_zeros(1 << (count - 1).bit_length())
    with np.errstate(all="ignore"):
        principal = -np.log1p(np.exp(-logit))
        turns = np.round((logit - principal + np.log1p(-np.exp(principal))).imag / (2.0 * np.pi))
    y = principal + 2j * np.pi * turns
    return np.asarray(y[np.isfinite(y) & (y.real < 0)])


@lru_cache(maxsize=8)
def erfc_zeros(count: int) -> NDArray[np.complex128]:
    """Return the first zeros of erfc in the lower left quadrant of the complex plane.

    Newton's method from the asymptotic zeros. Its step is (√π/2) w(iζ), because erfc(ζ) e^{ζ²} = w(iζ) with
    the Faddeeva function w, and erfc' = −2e^{−ζ²}/√π.
    """
    size = np.sqrt((np.arange(1, count + 1) - 0.125) * np.pi)
    inward = np.log(2.0 * size * np.sqrt(2.0 * np.pi)) / (4.0 * size)
    zeta = (inward - size) - 1j * (inward + size)
    for _ in range(8):
        zeta = zeta + 0.5 * np.sqrt(np.pi) * wofz(1j * zeta)
    return np.asarray(zeta)


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """The second-order approximation for one profile, with the exact loss for comparison.

    Attributes:
        log_a: n·g(ȳ) + (n/2) g''(ȳ) Var, the approximation of log A.
        loss: −(n/2) g''(ȳ) Var, its Jensen loss; negative where g is convex.
        exact_loss: n·g(ȳ) − Σ g(y_t).
        curvature: g''(ȳ), signed.
        variance: Var(y), ddof 0.
        radius: radius of convergence of g's Taylor series at ȳ (an upper bound of it for k > 1).
        furthest: max |y_t − ȳ|.
    """

    log_a: float
    loss: float
    exact_loss: float
    curvature: float
    variance: float
    radius: float
    furthest: float

    @property
    def is_valid(self) -> bool:
        """Whether the series converges at every step; otherwise the approximation is not reliable."""
        return self.furthest < self.radius


@dataclass(frozen=True, slots=True)
class CostlyStep:
    """A step with a large cost: its index in the trace, y, g(y) and its share of log A (0 to 1)."""

    step: int
    y: float
    log_success: float
    share: float


def log_recoverability(y: ArrayLike, sigma: float, k: float = 1) -> Values:
    """Return log A = Σ_t g_k(y_t), the log-probability that greedy decoding recovers the whole target.

    Args:
        y: log q of every step [..., n]; exactly 0 counts as certain.
        sigma: noise scale.
        k: number of equal competitors.
    """
    return _step_logs(_inputs.profile(y), sigma, k).sum(axis=-1)[()]


def log_distortion(y: ArrayLike, sigma: float, k: float = 1) -> Values:
    """Return log D = Σ_t (g_k(y_t) − y_t), so that A = P·D."""
    checked = _inputs.profile(y)
    return (_step_logs(checked, sigma, k) - checked).sum(axis=-1)[()]


def uniform_log_recoverability(log_p: ArrayLike, n: int, sigma: float, k: float = 1) -> Values:
    """n·g_k(log P/n): log A of n equal steps with total ``log_p``; the maximum for σ ≤ σ₀."""
    if n < 1:
        raise ProfileError(f"a profile needs at least one step; got n = {n!r}")
    total = _inputs.profile(np.asarray(log_p)[..., None])[..., 0]
    return n * _step_logs(total / n, sigma, k)[()]


def jensen_loss(y: ArrayLike, sigma: float, k: float = 1) -> Values:
    """n·g_k(ȳ) − Σ_t g_k(y_t): the exact loss of log A by unevenness; negative if unevenness is a gain."""
    checked = _inputs.profile(y)
    n = checked.shape[-1]
    even = _step_logs(checked.mean(axis=-1), sigma, k)
    return (n * even - _step_logs(checked, sigma, k).sum(axis=-1))[()]


def second_order(y: ArrayLike, sigma: float, k: float = 1) -> SecondOrder:
    """Return the signed second-order approximation for one profile [n], with the exact loss."""
    checked = _one_profile(y)
    n, mean = checked.size, float(checked.mean())
    if mean == 0.0:
        return SecondOrder(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    variance = float(checked.var())
    curvature = float(d2_k(mean, k, sigma))
    loss = -0.5 * n * curvature * variance
    return SecondOrder(
        log_a=n * float(log_success_k(mean, k, sigma)) - loss,
        loss=loss,
        exact_loss=float(jensen_loss(checked, sigma, k)),
        curvature=curvature,
        variance=variance,
        radius=taylor_radius(mean, sigma) if k == 1 else -mean,
        furthest=float(np.max(np.abs(checked - mean))),
    )


def bottlenecks(y: ArrayLike, sigma: float, k: float = 1, top: int = 5) -> list[CostlyStep]:
    """Return the ``top`` steps of one profile [n] with the largest share of log A, largest first."""
    checked = _one_profile(y)
    cost = _step_logs(checked, sigma, k)
    total = float(cost.sum())
    largest = np.argsort(cost, kind="stable")[: max(top, 0)]
    share = np.divide(cost, total, out=np.zeros_like(cost), where=total != 0)
    return [CostlyStep(int(i), float(checked[i]), float(cost[i]), float(share[i])) for i in largest]


def _one_profile(y: ArrayLike) -> Array:
    checked = _inputs.profile(y)
    if checked.ndim != 1:
        raise ProfileError(f"this function takes one profile [n]; got shape {checked.shape}")
    return checked


def _step_logs(y: Array, sigma: float, k: float) -> Array:
    """Return g_k of every step; 0 where y is exactly 0."""
    noise, n_competitors = _inputs.single_noise(sigma), _inputs.competitors(k)
    out = np.zeros(y.shape)
    inside = y < 0
    out[inside] = log_success_k(y[inside], n_competitors, noise)
    return out


Relation = Literal["equal", "first", "second", "neither"]


@dataclass(frozen=True, slots=True)
class SpreadComparison:
    """Result of :func:`compare_spread`.

    Attributes:
        more_uneven: ``"first"`` or ``"second"`` if that profile majorises the other, ``"equal"`` if they are
            the same up to order, ``"neither"`` if they are not comparable.
        first_below: largest amount by which a partial sum of the first is below the second's, in nats.
        second_below: the same with the roles exchanged.
    """

    more_uneven: Relation
    first_below: float
    second_below: float


def compare_spread(first: ArrayLike, second: ArrayLike, tolerance: float = 1e-9) -> SpreadComparison:
    """Compare two profiles of the same length and total by majorisation.

    Args:
        first: log q of every step [n].
        second: log q of every step [n].
        tolerance: difference in nats up to which totals and partial sums count as equal.
    """
    a, b = _inputs.profile(first), _inputs.profile(second)
    if a.ndim != 1 or a.shape != b.shape:
        raise ProfileError(
            f"profiles must have the same length to compare; got shapes {a.shape} and {b.shape}"
        )
    if abs(a.sum() - b.sum()) > tolerance * max(1.0, abs(a.sum())):
        raise ProfileError(
            f"profiles must have the same total log-probability to compare; got {a.sum()!s} and {b.sum()!s}"
        )
    gap = np.cumsum(np.sort(a)) - np.cumsum(np.sort(b))
    below, above = float(max(-gap.min(), 0.0)), float(max(gap.max(), 0.0))
    return SpreadComparison(_relation(below > tolerance, above > tolerance), below, above)


def majorises(first: ArrayLike, second: ArrayLike, tolerance: float = 1e-9) -> bool:
    """Return whether ``first`` is at least as uneven as ``second`` in the sense of majorisation."""
    return compare_spread(first, second, tolerance).more_uneven in ("first", "equal")


def _relation(first_lower: bool, second_lower: bool) -> Relation:
    if first_lower and second_lower:
        return "neither"
    if first_lower:
        return "first"
    return "second" if second_lower else "equal"
