"""Slow, obvious references in arbitrary precision, written from the definitions."""

from __future__ import annotations

from typing import NamedTuple

import mpmath as mp
import pytest

SMALLEST, LARGEST = mp.mpf("2.3e-308"), mp.mpf("1.7e308")


class Exact(NamedTuple):
    f: mp.mpf
    g: mp.mpf
    d1: mp.mpf
    d2: mp.mpf
    d2_terms: mp.mpf
    margin: mp.mpf
    ratio: mp.mpf


def exact_step(sigma: float, *, q: float | None = None, y: float | None = None) -> Exact:
    """f, g, g', g'' and the summed magnitudes of the two terms of g'', from q or from y = log q."""
    with mp.workdps(60):
        s = mp.mpf(float(sigma)) * mp.sqrt(2)
        prob = mp.mpf(float(q)) if y is None else mp.exp(mp.mpf(float(y)))
        rest = 1 - prob if y is None else -mp.expm1(mp.mpf(float(y)))
        z = mp.log(prob / rest) / s
        below, above = mp.erfc(-z / mp.sqrt(2)) / 2, mp.erfc(z / mp.sqrt(2)) / 2
        r = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi) / below
        g = mp.log(below) if z < 0 else mp.log1p(-above)
        scale = r / (s * rest) ** 2
        return Exact(
            below, g, r / (s * rest), -scale * (z + r - s * prob), scale * (abs(z + r) + s * prob),
            z + r - s * prob, (z + r) / (s * prob),
        )  # fmt: skip


def relative_error(got: float, want: mp.mpf, scale: mp.mpf | None = None) -> float:
    """|got − want| over ``scale``; 0 where the scale is not a normal float64 number."""
    size = abs(want if scale is None else scale)
    if not SMALLEST < size < LARGEST:
        return 0.0
    return float(abs(mp.mpf(float(got)) - want) / size)


@pytest.fixture
def exact() -> object:
    return exact_step


@pytest.fixture
def error() -> object:
    return relative_error
