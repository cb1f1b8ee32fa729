"""One step: the probability f that the noisy argmax is the target, and g = log f as a function of log q.

With target probability q, one competitor of mass 1 − q and independent N(0, σ²) noise on both logits,
f(q) = Φ(z) with z = logit(q)/(σ√2). There are functions of y = log q because traces store log-probabilities:
near q = 1, y is more precise than the float q. This module does not depend on traces, orders or models.

The normal distribution function is computed from a = |x| with x = −z/√2, because Φ(z) = ½ erfc(x) =
½ erfcx(x) e^{−x²}. erfcx never underflows, and x = −logit(q)/(2σ) needs no rounded √2. Callers set
``numpy.errstate``: overflow in an unused branch is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx

from orderlens.theory import _inputs
from orderlens.theory._inputs import Array, Values

SQRT2 = float(np.sqrt(2.0))
SQRT_PI = float(np.sqrt(np.pi))
LN2_HIGH = float.fromhex("0x1.62e42fefa39efp-1")
LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-56")

EXCESS_CUT = 16.0
"""Below z = −16 the excess z + r is computed from its series: the direct difference loses z² ulps."""


def _series(terms: int) -> tuple[float, ...]:
    """Return the c of z + r(z) = Σ c_j u^{−(2j+1)}, u = −z, as u → ∞: 1, −2, 10, −74, 706, ….

    Because r' = −r(z + r), e(u) = z + r satisfies e² + u·e = 1 + e', a recursion for the coefficients.
    """
    c = [1.0]
    for j in range(1, terms):
        c.append(-(2 * j - 1) * c[-1] - sum(c[i] * c[j - 1 - i] for i in range(j)))
    return tuple(c)


EXCESS_SERIES = _series(12)


def excess_far_left(u: Array) -> Array:
    """Return z + r(z) for u = −z ≥ 16."""
    inverse_square = 1.0 / (u * u)
    total = np.full_like(u, EXCESS_SERIES[-1])
    for coefficient in EXCESS_SERIES[-2::-1]:
        total *= inverse_square
        total += coefficient
    return np.asarray(total / u)


def excess_over_sqrt2(x: Array, ratio: Array) -> Array:
    """Return (z + r)/√2 from x = −z/√2 and ratio = r/√2."""
    excess = ratio - x
    far = np.flatnonzero(x > EXCESS_CUT / SQRT2)
    excess[far] = excess_far_left(x[far] * SQRT2) / SQRT2
    return excess


def scaled_tail(a: Array) -> Array:
    """Return erfcx(a) for a ≥ 0."""
    return np.asarray(erfcx(a))


_TINY_Q = -37.0
"""Below y = −37, log(1 − q) is less than half an ulp of y, so logit(q) = y."""

_NEAR_HALF = 0.35
"""|y + ln 2| below which logit(q) is computed from the difference, which is precise at q ≈ ½."""

_SHARP_BELOW = 0.1
"""Noise below which an ulp of logit(q) at q ≈ ½ matters: the resulting relative error grows as 1/σ."""

_FAR_ABOVE, _NEAR_CERTAIN = 24.0, 1e-140
"""If z/√2 is above the first, or the odds against below the second, r underflows or 1/(1 − q)² overflows."""

_LARGEST = 1e150
"""Upper limit of |x|, far in the asymptotic regime; it prevents products such as r·(z + r) = inf·0."""


def success(q: ArrayLike, sigma: ArrayLike) -> Values:
    """f(q) = Φ(logit(q)/(σ√2)): the probability that the target wins against one competitor of mass 1 − q.

    Args:
        q: probability of the target, strictly between 0 and 1, any shape.
        sigma: noise scale on each logit, positive; broadcasts with ``q``.
    """
    return _inputs.elementwise(_success, _inputs.probabilities(q), _inputs.noise(sigma))


def log_success(y: ArrayLike, sigma: ArrayLike) -> Values:
    """g(y) = log f(e^y), with y = log q in nats, finite and negative."""
    return _inputs.elementwise(_log_success, _inputs.log_probabilities(y), _inputs.noise(sigma))


def log_failure(y: ArrayLike, sigma: ArrayLike) -> Values:
    """Return log(1 − f(e^y)), the log-probability that the competitor wins."""
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
    """Return z + r(z) > 0 for any real z, without cancellation as z → −∞, where it tends to −1/z."""
    return _inputs.elementwise(
        lambda piece, _: mills_excess_kernel(piece), _inputs.finite(z, "z"), np.ones(())
    )


def logit_of_log(y: Array, sharp: NDArray[np.bool_] | bool = True) -> tuple[Array, Array]:
    """Return logit(q) and the odds (1 − q)/q against the target, for y = log q < 0.

    Near q = ½, ``sharp`` elements have a relative error of an ulp or two, the others an absolute one.
    """
    odds = np.expm1(-y)
    logit = -np.log(odds)
    tiny = np.flatnonzero(y < _TINY_Q)
    if tiny.size:
        logit[tiny] = y[tiny]
    if not np.any(sharp):
        return logit, odds
    above_half = y + LN2_HIGH
    near = np.flatnonzero((np.abs(above_half) < _NEAR_HALF) & sharp)
    if near.size:
        # (1 − q)/q = 2e^{−d} − 1 with d = y + ln 2, so logit(q) = −log(1 + 2(e^{−d} − 1)).
        logit[near] = -np.log1p(2.0 * np.expm1(-(above_half[near] + LN2_LOW)))
    return logit, odds


def logit_of_probability(q: Array) -> Array:
    """Return logit(q); for q ≥ ¼, 2q − 1 is exact, so 2 artanh(2q − 1) is precise at q = ½."""
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
    return _by_region(y, sigma, _d1_below_half, _d1_above_half, _d1_near_one)


def _d2(y: Array, sigma: Array | float) -> Array:
    return _by_region(y, sigma, _d2_below_half, _d2_above_half, _d2_near_one)


class _Rows(NamedTuple):
    """Some elements, all [M]: the odds against, a = |z|/√2, σ (or one for all), −log(1 − q) if needed."""

    odds: Array
    a: Array
    sigma: Array | float
    surprise: Array | None = None


def _by_region(y: Array, sigma: Array | float, *formulas: Callable[[_Rows], Array]) -> Array:
    """Evaluate one formula where q < ½, one where q ≥ ½, and one near q = 1, where the second would overflow.

    Splitting the rows is faster than computing every formula for all rows.
    """
    logit, odds = logit_of_log(y, sigma < _SHARP_BELOW)
    a = np.minimum(np.abs(logit) / (2.0 * sigma), _LARGEST)
    loses = logit < 0
    near_one = ~loses & ((a > _FAR_ABOVE) | (odds < _NEAR_CERTAIN))
    out = np.empty_like(y)
    for formula, chosen in zip(formulas, (loses, ~(loses | near_one), near_one), strict=True):
        rows = np.flatnonzero(chosen)
        if rows.size:
            noise = sigma if isinstance(sigma, float) else sigma[rows]
            surprise = logit[rows] - y[rows] if chosen is near_one else None
            out[rows] = formula(_Rows(odds[rows], a[rows], noise, surprise))
    return out


def _d1_below_half(at: _Rows) -> Array:
    return np.asarray((1.0 + 1.0 / at.odds) / (SQRT_PI * at.sigma * scaled_tail(at.a)))


def _d1_above_half(at: _Rows) -> Array:
    bell, denominator = _bell_parts(at.a)
    return np.asarray(bell / denominator * ((1.0 + 1.0 / at.odds) / at.sigma))


def _d1_near_one(at: _Rows) -> Array:
    assert at.surprise is not None
    root = _flushed_exp(0.5 * (at.surprise - at.a * at.a))
    return np.asarray(root / (_bell_parts(np.minimum(at.a, _FAR_ABOVE))[1] * at.sigma) * root)


def _d2_below_half(at: _Rows) -> Array:
    ratio = 1.0 / (SQRT_PI * scaled_tail(at.a))
    bracket = excess_over_sqrt2(at.a, ratio) - at.sigma / (1.0 + at.odds)
    scale = (1.0 + 1.0 / at.odds) / at.sigma
    return np.asarray(-ratio * bracket * scale * scale)


def _d2_above_half(at: _Rows) -> Array:
    bell, denominator = _bell_parts(at.a)
    ratio = bell / denominator
    bracket = (at.a + ratio) - at.sigma / (1.0 + at.odds)
    scale = (1.0 + 1.0 / at.odds) / at.sigma
    return np.asarray(-(ratio * scale) * bracket * scale)


def _d2_near_one(at: _Rows) -> Array:
    assert at.surprise is not None
    bell, denominator = _bell_parts(np.minimum(at.a, _FAR_ABOVE))
    bracket = (at.a + bell / denominator) - at.sigma / (1.0 + at.odds)
    # Exponents are added first, and the root is multiplied twice: no intermediate result underflows.
    root = _flushed_exp(at.surprise - 0.5 * at.a * at.a) / at.sigma
    return np.asarray(-root / denominator * bracket * root)


def _bell_parts(a: Array) -> tuple[Array, Array]:
    """Return e^{−a²} and √π·2Φ(z); their ratio is r/√2 for z ≥ 0."""
    bell = np.exp(-a * a)
    return bell, SQRT_PI * (2.0 - bell * scaled_tail(a))


def _flushed_exp(x: Array) -> Array:
    """Return e^x, and 0 below e^{−700}: processors take ten times longer for results that underflow."""
    return np.asarray(np.exp(np.maximum(x, -700.0)) * (x > -700.0))


def inverse_mills_kernel(z: Array) -> Array:
    """Return r(z), unchecked; callers set ``numpy.errstate``."""
    scaled = scaled_tail(np.abs(z) / SQRT2)
    bell = np.exp(-0.5 * z * z)
    return np.asarray(np.where(z < 0, 1.0 / scaled, bell / (2.0 - bell * scaled)) * (SQRT2 / SQRT_PI))


def mills_excess_kernel(z: Array) -> Array:
    """Return z + r(z), unchecked; callers set ``numpy.errstate``."""
    excess = z + inverse_mills_kernel(z)
    far = z < -EXCESS_CUT
    excess[far] = excess_far_left(-z[far])
    return excess
