"""One step: the chance f that the noisy argmax still picks the target, and g = log f as a function of log q.

With target probability q, one competitor of mass 1 − q and independent N(0, σ²) noise on both logits,
f(q) = Φ(z) with z = logit(q)/(σ√2). The functions of y = log q exist because traces store log-probabilities:
near q = 1 the float q has lost what y still knows. This module knows nothing of traces, orders or models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from orderlens.theory import _inputs
from orderlens.theory._inputs import Array, Values
from orderlens.theory._normal import (
    EXCESS_CUT,
    LN2_HIGH,
    LN2_LOW,
    SQRT2,
    SQRT_PI,
    excess_far_left,
    excess_over_sqrt2,
    scaled_tail,
)

_TINY_Q = -37.0
"""Below y = −37, log(1 − q) is under half an ulp of y: logit(q) = y."""

_NEAR_HALF = 0.35
"""|y + ln 2| below which logit(q) is formed from the difference, so that it keeps its digits at q ≈ ½."""

_LARGEST = 1e150
"""Cap on |x|, far beyond any asymptotic regime, that keeps products such as r·(z + r) from becoming inf·0."""


def success(q: ArrayLike, sigma: ArrayLike) -> Values:
    """f(q) = Φ(logit(q)/(σ√2)): the chance that the target wins against one competitor of mass 1 − q.

    Args:
        q: probability of the target, strictly between 0 and 1, any shape.
        sigma: noise scale on each logit, positive; broadcasts with ``q``.
    """
    return _inputs.elementwise(_success, _inputs.probabilities(q), _inputs.noise(sigma))


def log_success(y: ArrayLike, sigma: ArrayLike) -> Values:
    """g(y) = log f(e^y), with y = log q in nats, finite and negative."""
    return _inputs.elementwise(_log_success, _inputs.log_probabilities(y), _inputs.noise(sigma))


def log_failure(y: ArrayLike, sigma: ArrayLike) -> Values:
    """Return log(1 − f(e^y)): the competitor wins instead."""
    return _inputs.elementwise(_log_failure, _inputs.log_probabilities(y), _inputs.noise(sigma))


def d1(y: ArrayLike, sigma: ArrayLike) -> Values:
    """g'(y) = r(z)/(σ√2 (1 − q)) > 0, where r is the inverse Mills ratio."""
    return _inputs.elementwise(_d1, _inputs.log_probabilities(y), _inputs.noise(sigma))


def d2(y: ArrayLike, sigma: ArrayLike) -> Values:
    """g''(y) = −r[(z + r) − σ√2 q]/(2σ²(1 − q)²); positive where log-recoverability is convex."""
    return _inputs.elementwise(_d2, _inputs.log_probabilities(y), _inputs.noise(sigma))


def inverse_mills(z: ArrayLike) -> Values:
    """r(z) = φ(z)/Φ(z) for any real z."""
    return _inputs.elementwise(
        lambda piece, _: inverse_mills_kernel(piece), _inputs.finite(z, "z"), np.ones(())
    )


def mills_excess(z: ArrayLike) -> Values:
    """Return z + r(z) > 0 for any real z, free of cancellation as z → −∞, where it tends to −1/z."""
    return _inputs.elementwise(
        lambda piece, _: mills_excess_kernel(piece), _inputs.finite(z, "z"), np.ones(())
    )


def logit_of_log(y: Array) -> tuple[Array, Array]:
    """Return logit(q) and the odds (1 − q)/q against the target, for y = log q < 0."""
    odds = np.expm1(-y)
    logit = -np.log(odds)
    tiny = np.flatnonzero(y < _TINY_Q)
    if tiny.size:
        logit[tiny] = y[tiny]
    above_half = y + LN2_HIGH
    near = np.flatnonzero(np.abs(above_half) < _NEAR_HALF)
    if near.size:
        # (1 − q)/q = 2e^{−d} − 1 with d = y + ln 2, so logit(q) = −log(1 + 2(e^{−d} − 1)).
        logit[near] = -np.log1p(2.0 * np.expm1(-(above_half[near] + LN2_LOW)))
    return logit, odds


def logit_of_probability(q: Array) -> Array:
    """Return logit(q): for q ≥ ¼, 2q − 1 is exact, so 2 artanh(2q − 1) loses nothing at q = ½."""
    return np.where(q < 0.25, np.log(q) - np.log1p(-q), 2.0 * np.arctanh(2.0 * q - 1.0))


def log_half_erfc(x: Array) -> Array:
    """Return log Φ(z) with x = −z/√2."""
    scaled = scaled_tail(np.abs(x))
    square = x * x
    return np.where(x > 0, np.log(0.5 * scaled) - square, np.log1p(-0.5 * scaled * np.exp(-square)))


def _success(q: Array, sigma: Array | float) -> Array:
    x = -logit_of_probability(q) / (2.0 * sigma)
    tail = 0.5 * scaled_tail(np.abs(x)) * np.exp(-x * x)
    return np.where(x > 0, tail, 1.0 - tail)


def _log_success(y: Array, sigma: Array | float) -> Array:
    return log_half_erfc(-logit_of_log(y)[0] / (2.0 * sigma))


def _log_failure(y: Array, sigma: Array | float) -> Array:
    return log_half_erfc(logit_of_log(y)[0] / (2.0 * sigma))


def _d1(y: Array, sigma: Array | float) -> Array:
    return _on_both_sides(y, sigma, _d1_behind, _d1_ahead)


def _d2(y: Array, sigma: Array | float) -> Array:
    return _on_both_sides(y, sigma, _d2_behind, _d2_ahead)


class _Side(NamedTuple):
    """The elements on one side of z = 0: y = log q, logit q, odds against, a = |z|/√2 and σ, all [M]."""

    y: Array
    logit: Array
    odds: Array
    a: Array
    sigma: Array | float


def _on_both_sides(
    y: Array, sigma: Array | float, behind: Callable[[_Side], Array], ahead: Callable[[_Side], Array]
) -> Array:
    """Evaluate ``behind`` where q < ½ and ``ahead`` elsewhere; taking rows apart is faster than masking."""
    logit, odds = logit_of_log(y)
    a = np.minimum(np.abs(logit) / (2.0 * sigma), _LARGEST)
    loses = logit < 0
    out = np.empty_like(y)
    for rows, formula in ((np.flatnonzero(loses), behind), (np.flatnonzero(~loses), ahead)):
        if rows.size:
            noise = sigma if isinstance(sigma, float) else sigma[rows]
            out[rows] = formula(_Side(y[rows], logit[rows], odds[rows], a[rows], noise))
    return out


def _d1_behind(side: _Side) -> Array:
    ratio = 1.0 / (SQRT_PI * scaled_tail(side.a))
    return np.asarray(ratio * (1.0 + 1.0 / side.odds) / side.sigma)


def _d2_behind(side: _Side) -> Array:
    ratio = 1.0 / (SQRT_PI * scaled_tail(side.a))
    bracket = excess_over_sqrt2(side.a, ratio) - side.sigma / (1.0 + side.odds)
    scale = (1.0 + 1.0 / side.odds) / side.sigma
    return np.asarray(-ratio * bracket * scale * scale)


def _ahead_parts(side: _Side, power: int) -> tuple[Array, Array, Array]:
    """Return bell = e^{−a²}, √π·2Φ(z) and the root of bell/(1 − q)^power, all for z ≥ 0.

    The exponents are added before use, because r alone underflows where r/(1 − q)² does not; the root is
    multiplied in twice, so that what stands in between cannot be lost to underflow either.
    """
    square = side.a * side.a
    bell = np.exp(-square)
    root = np.exp(0.5 * (power * (side.logit - side.y) - square))
    return bell, SQRT_PI * (2.0 - bell * scaled_tail(side.a)), root


def _d1_ahead(side: _Side) -> Array:
    _, denominator, root = _ahead_parts(side, 1)
    return np.asarray(root / (denominator * side.sigma) * root)


def _d2_ahead(side: _Side) -> Array:
    bell, denominator, root = _ahead_parts(side, 2)
    bracket = (side.a + bell / denominator) - side.sigma / (1.0 + side.odds)
    root = root / side.sigma
    return np.asarray(-root / denominator * bracket * root)


def inverse_mills_kernel(z: Array) -> Array:
    """r(z), unchecked; callers hold ``numpy.errstate``."""
    scaled = scaled_tail(np.abs(z) / SQRT2)
    bell = np.exp(-0.5 * z * z)
    return np.asarray(np.where(z < 0, 1.0 / scaled, bell / (2.0 - bell * scaled)) * (SQRT2 / SQRT_PI))


def mills_excess_kernel(z: Array) -> Array:
    """Return z + r(z), unchecked; callers hold ``numpy.errstate``."""
    excess = z + inverse_mills_kernel(z)
    far = z < -EXCESS_CUT
    excess[far] = excess_far_left(-z[far])
    return excess
