"""How far the Taylor series of g reaches: the distance from ȳ to the nearest complex singularity.

g(y) = log Φ(z(y)) is singular where q = 1 (y = 0) and where Φ(z(y)) = 0. Φ has no real zeros but infinitely
many complex ones, at z = −√2 ζ for the zeros ζ of erfc. For small σ they crowd around q = ½ and stop the
series long before y = 0 does: the radius is at most |ȳ|, and often much less.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import wofz

from orderlens.theory import _inputs

_MOST_ZEROS = 1 << 15


def taylor_radius(y: float, sigma: float) -> float:
    """Radius of convergence of g's Taylor series at one y = log q < 0."""
    centre, noise = float(_inputs.log_probabilities(y)), _inputs.single_noise(sigma)
    return float(np.min(np.abs(singularities(noise) - centre), initial=-centre))


def singularities(sigma: float) -> NDArray[np.complex128]:
    """Complex y with Re y < 0 and Im y > 0 at which Φ(z(y)) = 0; their conjugates are singular too.

    Zeros of erfc beyond |ζ| ≈ 2/σ belong to logits that no y with Re y < 0 near the real axis reaches.
    """
    wanted = min(_MOST_ZEROS, 16 + int((2.0 / sigma) ** 2 / 6.0))
    logit = -2.0 * sigma * erfc_zeros(1 << (wanted - 1).bit_length())
    with np.errstate(all="ignore"):
        principal = -np.log1p(np.exp(-logit))
        turns = np.round((logit - principal + np.log1p(-np.exp(principal))).imag / (2.0 * np.pi))
    y = principal + 2j * np.pi * turns
    return np.asarray(y[np.isfinite(y) & (y.real < 0)])


@lru_cache(maxsize=8)
def erfc_zeros(count: int) -> NDArray[np.complex128]:
    """The first zeros of erfc in the lower left quadrant of the plane.

    Newton's method from the asymptotic places. Since erfc(ζ) e^{ζ²} = w(iζ) with w the Faddeeva function and
    erfc' = −2e^{−ζ²}/√π, its step is simply (√π/2) w(iζ).
    """
    size = np.sqrt((np.arange(1, count + 1) - 0.125) * np.pi)
    inward = np.log(2.0 * size * np.sqrt(2.0 * np.pi)) / (4.0 * size)
    zeta = (inward - size) - 1j * (inward + size)
    for _ in range(8):
        zeta = zeta + 0.5 * np.sqrt(np.pi) * wofz(1j * zeta)
    return np.asarray(zeta)
