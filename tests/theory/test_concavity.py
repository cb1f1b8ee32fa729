"""The critical noise, the margin and the convex stretches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens import theory


def test_critical_sigma_to_twelve_digits() -> None:
    point = theory.critical_point()
    assert theory.critical_sigma() == pytest.approx(1.052582699429131, abs=2e-13)
    assert point.q == pytest.approx(0.676470951326349, abs=1e-11)
    assert theory.critical_sigma(1) == theory.critical_sigma(1.0)


# k = 1, 2, 10 and 157183 are in the specification.
@pytest.mark.parametrize(("k", "want"), [(2, 1.16685), (10, 1.36259), (157_183, 2.14360)])
def test_critical_sigma_of_crowds(k: int, want: float) -> None:
    assert theory.critical_sigma(k) == pytest.approx(want, abs=6e-6)


def test_critical_sigma_is_where_the_margin_touches_zero() -> None:
    y = np.log(np.linspace(0.001, 0.999, 99_901))
    sigma = theory.critical_sigma()
    assert theory.concavity_margin(y, sigma * (1 - 1e-7)).min() > 0
    assert theory.concavity_margin(y, sigma * (1 + 1e-7)).min() < 0


def test_critical_sigma_of_a_crowd_by_brute_force() -> None:
    y = np.log(np.linspace(0.3, 0.95, 400))
    sigma = theory.critical_sigma(3)
    assert np.all(theory.d2_k(y, 3, 0.999 * sigma) < 0)
    assert np.any(theory.d2_k(y, 3, 1.001 * sigma) > 0)


def test_margin_at_a_tenth() -> None:
    assert theory.concavity_ratio(np.log(0.226135), 0.1) == pytest.approx(3.505194, abs=1e-6)
    y = -np.geomspace(1e-15, 690.0, 2000)
    assert np.all(theory.concavity_ratio(y, 0.1) > 3.505)
    assert theory.concavity_margin(-690.0, 0.1) == pytest.approx(
        0.1 * np.sqrt(2) / 690, rel=1e-3
    )  # → 0, not below


@given(st.floats(-30.0, -1e-6), st.floats(0.05, 5.0))
@settings(max_examples=200, deadline=None)
def test_sign_of_curvature_is_the_sign_of_the_margin(y: float, sigma: float) -> None:
    curvature, margin = theory.d2(y, sigma), theory.concavity_margin(y, sigma)
    assert np.sign(curvature) == -np.sign(margin) or curvature == 0
    assert (theory.concavity_ratio(y, sigma) > 1) == (margin > 0) or abs(margin) < 1e-12


@given(st.floats(1e-3, 1.0), st.floats(1e-12, 1 - 1e-12))
@settings(max_examples=200, deadline=None)
def test_repaired_proof_concave_for_every_q_up_to_one(sigma: float, q: float) -> None:
    assert theory.concavity_margin(np.log(q), sigma) > 0


def test_no_violation_up_to_the_critical_noise() -> None:
    for sigma in (0.01, 0.1, 1.0, 1.0525826):
        assert theory.violation_intervals(sigma) == []


@pytest.mark.parametrize("sigma", [1.0525828, 1.06, 1.2, 2.0, 5.0])
def test_violation_interval_edges_are_zeros_of_the_curvature(sigma: float) -> None:
    (part,) = theory.violation_intervals(sigma)
    assert part.q_low < theory.critical_point().q < part.q_high
    inside = np.linspace(part.y_low, part.y_high, 102)[1:-1]
    assert np.all(theory.d2(inside, sigma) > 0)
    for edge, outwards in ((part.y_low, 1.001), (part.y_high, 0.999)):
        assert theory.d2(edge * outwards, sigma) < 0
        assert abs(theory.concavity_ratio(edge, sigma) - 1) < 1e-9


def test_violation_reaches_beyond_float_q_for_large_noise() -> None:
    (part,) = theory.violation_intervals(5.0)
    assert part.q_high == 1.0
    assert part.logit_high == pytest.approx(50.0, abs=1e-3)  # z = σ√2, that is logit q = 2σ²
    assert -1e-20 < part.y_high < 0


def test_violation_of_crowds() -> None:
    assert theory.violation_intervals(1.3, k=10) == []
    (part,) = theory.violation_intervals(1.6, k=10)
    middle = 0.5 * (part.y_low + part.y_high)
    assert theory.d2_k(middle, 10, 1.6) > 0
    assert theory.d2_k(1.01 * part.y_low, 10, 1.6) < 0


def test_bad_input() -> None:
    with pytest.raises(theory.CompetitorError, match=r"at least 1; got 0\.0"):
        theory.critical_sigma(0)
    with pytest.raises(theory.NoiseError, match="one number"):
        theory.violation_intervals(np.array([1.0, 2.0]))
