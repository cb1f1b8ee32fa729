"""k equal competitors and arbitrary masses against independent references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, owens_t

from orderlens import theory
from orderlens.theory._competition import equal_competitors

# (q, k, σ, log f, log(1 − f)) by mpmath with 34 digits around a bisected peak; f + (1 − f) = 1 to 20 digits.
REFERENCE = [
    (0.3, 3, 0.7, -1.048754121361156, -0.43135846750514452),
    (0.02, 3, 0.7, -10.195049830881773, -3.7355471921118529e-5),
    (0.9, 3, 0.7, -0.0012572003174934577, -6.6794965348031461),
    (1e-40, 7, 0.3, -39545.784843314148, 0.0),
    (0.6, 7, 0.3, -1.0420729714803358e-7, -16.076883731971339),
    (0.2, 50, 1.3, -0.93402318100448161, -0.49917630503226539),
    (0.95, 50, 1.3, -0.0035927775494697954, -5.6306255359055258),
    (0.001, 1000, 0.5, -6.9022698447397876, -0.0010060063615384467),
    (0.4, 1000, 2.5, -1.296246595090583, -0.31959475816919098),
    (1e-200, 1000, 1.0, -103476.64768551841, 0.0),
    (0.003, 31999, 0.9, -0.1999234826181993, -1.7081174765905115),
    (1e-07, 157183, 0.6, -65.79929801542939, 0.0),
    (5e-06, 157183, 0.6, -13.839785054313434, -9.7601823597783041e-7),
    (0.5, 157183, 2.0, -0.076751700789657755, -2.6053101440952134),
    (1e-30, 157183, 0.05, -655971.80727640273, 0.0),
    (0.999, 20, 0.4, -np.exp(-154.00652431515951), -154.00652431515951),
    (0.02, 157183, 1.5, -0.21306458000217277, -1.6508014503155855),
]


@pytest.mark.parametrize(("q", "k", "sigma", "log_f", "log_miss"), REFERENCE)
def test_against_high_precision(q: float, k: int, sigma: float, log_f: float, log_miss: float) -> None:
    y = np.log(q) if q < 0.9 else np.log1p(-(1 - q))
    assert theory.log_success_k(y, k, sigma) == pytest.approx(log_f, rel=1e-10, abs=0)
    assert theory.log_failure_k(y, k, sigma) == pytest.approx(log_miss, rel=1e-10, abs=1e-20)
    assert theory.success_k(q, k, sigma) == pytest.approx(np.exp(log_f), abs=1e-10)


def test_values_of_the_specification() -> None:
    got = theory.success_k([0.3, 0.5, 0.1, 0.05], [2, 10, 100, 31_999], 1.0)
    np.testing.assert_allclose(got, [0.29102233, 0.74698227, 0.46602154, 0.99914750], atol=1e-8)


def test_one_competitor_is_the_closed_form() -> None:
    y = np.log(np.concatenate([np.geomspace(1e-300, 0.4, 40), 1 - np.geomspace(0.4, 1e-12, 40)]))
    for sigma in (0.5, 1.0, 4.0):
        logit = y - np.log(-np.expm1(y))
        competition = equal_competitors(logit / sigma, 1.0)
        kept = competition.log_win < 0
        np.testing.assert_allclose(competition.log_win[kept], theory.log_success(y, sigma)[kept], rtol=1e-10)
        slope = np.exp(competition.log_slope + logit - y) / sigma
        np.testing.assert_allclose(slope, theory.d1(y, sigma), rtol=1e-9)
    np.testing.assert_array_equal(theory.d2_k(y, 1, 0.7), theory.d2(y, 0.7))


def test_two_competitors_are_a_bivariate_normal() -> None:
    u = np.linspace(-9.0, 9.0, 91)
    h = u / np.sqrt(2.0)
    want = ndtr(h) - 2.0 * owens_t(h, 1.0 / np.sqrt(3.0))
    np.testing.assert_allclose(np.exp(equal_competitors(u, 2.0).log_win), want, atol=1e-14)


def test_simulation_agrees() -> None:
    rng = np.random.default_rng(3)
    q, k, sigma, n = 0.15, 12, 0.9, 200_000
    target = np.log(q) + sigma * rng.normal(size=n)
    best = np.log((1 - q) / k) + sigma * rng.normal(size=(k, n)).max(axis=0)
    assert theory.success_k(q, k, sigma) == pytest.approx(np.mean(target > best), abs=4 * np.sqrt(0.25 / n))


@given(st.floats(1e-6, 1 - 1e-6), st.floats(1.0, 2e5), st.floats(0.1, 3.0))
@settings(max_examples=40, deadline=None)
def test_win_and_lose_add_to_one(q: float, k: float, sigma: float) -> None:
    y = np.log(q)
    total = np.exp(theory.log_success_k(y, k, sigma)) + np.exp(theory.log_failure_k(y, k, sigma))
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("k", "sigma"), [(2, 0.4), (30, 1.0), (157_183, 1.7)])
def test_derivatives_of_crowds(k: int, sigma: float) -> None:
    y, h = np.log(np.array([1e-7, 0.001, 0.05, 0.3, 0.7, 0.95])), 1e-5
    slope = (theory.log_success_k(y + h, k, sigma) - theory.log_success_k(y - h, k, sigma)) / (2 * h)
    bend = (theory.d1_k(y + h, k, sigma) - theory.d1_k(y - h, k, sigma)) / (2 * h)
    np.testing.assert_allclose(theory.d1_k(y, k, sigma), slope, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(theory.d2_k(y, k, sigma), bend, rtol=1e-4, atol=1e-8)


def test_extreme_arguments_give_numbers_without_warnings() -> None:
    with np.errstate(all="raise"):
        for k in (2, 157_183):
            y = np.array([-1e5, -690.0, -1.0, -1e-15, -1e-300])
            for sigma in (1e-12, 1e-3, 0.01, 5.0, 1e6):
                values = theory.log_success_k(y, k, sigma)
                assert not np.isnan(values).any()
                assert np.all(np.diff(values) >= 0)
                assert not np.isnan(theory.d2_k(y, k, sigma)).any()
    # Deep tail: all noise goes where it is cheapest, log f → −(log(q k))² k / (2σ²(k + 1)).
    assert theory.log_success_k(-690.0, 3, 1e-7) == pytest.approx(
        -((690 - np.log(3)) ** 2) * 3e14 / 8, rel=1e-6
    )


def test_masses_equal_and_split() -> None:
    for q, k, sigma in ((0.3, 7, 1.0), (0.9, 20, 0.5), (0.01, 300, 2.0), (1e-8, 50, 0.1)):
        masses = np.full(k, (1 - q) / k)
        want = theory.log_success_k(np.log(q), k, sigma)
        assert theory.log_success_masses(q, masses, sigma) == pytest.approx(want, rel=1e-9)
        uneven = masses * (1 + 1e-10 * np.arange(k))  # all distinct, so nothing is grouped
        assert theory.log_success_masses(q, uneven, sigma) == pytest.approx(want, rel=1e-6)


def test_massless_competitors_do_not_matter() -> None:
    with_zeros = theory.success_masses(0.3, [0.0, 0.5, 0.2, 0.0], 0.9)
    assert with_zeros == theory.success_masses(0.3, [0.5, 0.2], 0.9)


def test_masses_against_simulation() -> None:
    rng = np.random.default_rng(4)
    q, sigma, n = 0.2, 0.8, 200_000
    masses = np.array([0.5, 0.2, 0.08, 0.02])
    noisy = np.log(masses)[:, None] + sigma * rng.normal(size=(4, n))
    hits = np.log(q) + sigma * rng.normal(size=n) > noisy.max(axis=0)
    assert theory.success_masses(q, masses, sigma) == pytest.approx(hits.mean(), abs=4 * np.sqrt(0.25 / n))


def test_masses_broadcast_and_zipf_sums() -> None:
    masses = np.stack([theory.zipf_masses(q, 9) for q in (0.1, 0.6)])
    assert masses.sum(axis=1) == pytest.approx([0.9, 0.4])
    values = theory.success_masses([0.1, 0.6], masses, 1.0)
    assert values.shape == (2,)
    assert values[1] == pytest.approx(theory.success_masses(0.6, masses[1], 1.0))
    flat = theory.zipf_masses(0.3, 5, exponent=0.0)
    assert theory.success_masses(0.3, flat, 1.0) == pytest.approx(theory.success_k(0.3, 5, 1.0), rel=1e-9)


def test_one_competitor_is_not_conservative_in_the_tail() -> None:
    assert theory.success(0.05, 1.0) > theory.success_k(0.05, 2, 1.0)
    assert theory.success(0.4, 1.0) < theory.success_k(0.4, 2, 1.0)


def test_shapes_broadcast() -> None:
    assert theory.success_k(np.full((3, 1), 0.2), [1, 2], 0.5).shape == (3, 2)
    assert isinstance(theory.success_k(0.2, 3, 0.5), float)


@pytest.mark.parametrize("k", [0, 0.5, -3, float("nan"), float("inf")])
def test_bad_k(k: float) -> None:
    with pytest.raises(theory.CompetitorError, match=r"k must be finite and at least 1; got"):
        theory.success_k(0.3, k, 1.0)


def test_bad_masses() -> None:
    with pytest.raises(theory.CompetitorError, match=r"sum to 1 − q = 0\.7; got 0\.65"):
        theory.success_masses(0.3, [0.6, 0.05], 1.0)
    with pytest.raises(theory.CompetitorError, match=r"between 0 and 1; got -0\.1"):
        theory.success_masses(0.3, [0.8, -0.1], 1.0)
    with pytest.raises(theory.CompetitorError, match="got nan"):
        theory.success_masses(0.3, [0.7, np.nan], 1.0)
    with pytest.raises(theory.CompetitorError, match=r"sum to 1 − q = 0\.7; got 0\.0"):
        theory.success_masses(0.3, [0.0, 0.0], 1.0)
    with pytest.raises(theory.TheoryError, match="do not broadcast"):
        theory.success_masses([0.3, 0.3], [[0.7], [0.7], [0.7]], 1.0)
    with pytest.raises(theory.CompetitorError, match=r"whole number of competitors; got 2\.5"):
        theory.zipf_masses(0.3, 2.5)
    with pytest.raises(theory.CompetitorError, match="at least one competitor"):
        theory.success_masses(0.3, [], 1.0)
    with pytest.raises(theory.ProbabilityError):
        theory.success_masses(1.3, [0.1], 1.0)
