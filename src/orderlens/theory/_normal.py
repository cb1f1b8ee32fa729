"""The standard normal law in the one form that survives both tails.

Everything is written in a = |x| with x = −z/√2, because Φ(z) = ½ erfc(x) = ½ erfcx(x) e^{−x²}: erfcx never
underflows, and z = logit(q)/(σ√2) gives x = −logit(q)/(2σ) without a rounded √2 in between.
Callers hold ``numpy.errstate``: overflow in an unused branch is normal here.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx

from orderlens.theory._inputs import Array

SQRT2 = float(np.sqrt(2.0))
SQRT_PI = float(np.sqrt(np.pi))
LN2_HIGH = float.fromhex("0x1.62e42fefa39efp-1")
LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-56")

EXCESS_CUT = 16.0
"""Below z = −16 the excess z + r is summed from its series: the direct difference loses z² ulps."""


def _series(terms: int) -> tuple[float, ...]:
    """Return the c of z + r(z) = Σ c_j u^{−(2j+1)}, u = −z, as u → ∞: 1, −2, 10, −74, 706 and so on.

    Since r' = −r(z + r), e(u) = z + r obeys e² + u·e = 1 + e', which gives each coefficient from the earlier.
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
    """(z + r)/√2 from x = −z/√2 and ratio = r/√2."""
    excess = ratio - x
    far = np.flatnonzero(x > EXCESS_CUT / SQRT2)
    excess[far] = excess_far_left(x[far] * SQRT2) / SQRT2
    return excess


def scaled_tail(a: Array) -> Array:
    """erfcx(a) for a ≥ 0."""
    return np.asarray(erfcx(a))
