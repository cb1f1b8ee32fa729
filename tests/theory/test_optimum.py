"""The numerical maximiser against exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens import theory


def best_pair(total: float, sigma: float) -> float:
    """Best log A of two steps by a fine scan, dense where the second step is almost certain."""
    high = -np.concatenate([np.geomspace(1e-300, 1e-4, 2000), np.linspace(1e-4, -total / 2, 20_000)])
    return float(np.max(theory.log_success(high, sigma) + theory.log_success(total - high, sigma)))


@pytest.mark.parametrize("sigma", [1.06, 1.1, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("total", [-0.3, -1.02, -2.0, -6.0])
def test_two_steps_against_a_scan(sigma: float, total: float) -> None:
    found = theory.best_profile(total, 2, sigma)
    assert found.y.sum() == pytest.approx(total, abs=1e-12)
    scan = best_pair(total, sigma)
    assert found.log_a >= scan - 1e-12
    assert found.log_a <= scan + 1e-4
    assert found.log_a == pytest.approx(theory.log_recoverability(found.y, sigma), rel=1e-12)


@pytest.mark.parametrize(("sigma", "total"), [(1.1, -1.53), (1.5, -3.0), (2.0, -0.9)])
def test_three_steps_against_a_grid(sigma: float, total: float) -> None:
    axis = np.linspace(total, -1e-9, 400)[1:]
    a, b = np.meshgrid(axis, axis)
    third = total - a - b
    inside = third < -1e-12
    steps = (theory.log_success(part, sigma) for part in (a[inside], b[inside], third[inside]))
    grid = float(np.max(sum(steps)))
    found = theory.best_profile(total, 3, sigma)
    assert grid - 1e-12 <= found.log_a <= grid + 0.02


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.0525])
@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_uniform_below_the_critical_noise(sigma: float, n: int) -> None:
    found = theory.best_profile(-0.4 * n, n, sigma)
    assert found.is_uniform
    assert found.gain == 0
    np.testing.assert_allclose(found.y, -0.4)


def test_better_than_random_search_above_the_critical_noise() -> None:
    n, sigma = 12, 1.6
    total = -0.6 * n
    found = theory.best_profile(total, n, sigma)
    rng = np.random.default_rng(0)
    shapes = rng.gamma(np.geomspace(0.02, 20.0, 4000)[:, None], size=(4000, n)) + 1e-12
    profiles = total * shapes / shapes.sum(axis=1, keepdims=True)
    assert found.log_a >= theory.log_recoverability(profiles, sigma).max()
    assert found.gain > 0.5
    assert not found.is_uniform


def test_all_but_one_step_share_two_values_and_one_slope() -> None:
    found = theory.best_profile(-10.0, 20, 1.3)
    values, counts = np.unique(np.round(found.y, 8), return_counts=True)
    assert len(values) <= 3
    assert sum(counts == 1) <= 1 or len(values) == 2
    slopes = theory.d1(found.y, 1.3)
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-5)


def test_long_profiles_use_the_relaxed_optimum() -> None:
    short, long = theory.best_profile(-32.0, 64, 2.0), theory.best_profile(-320.0, 640, 2.0)
    assert long.log_a / 10 >= short.log_a - 1e-9  # ten copies of the short one are allowed
    assert long.gain / 640 == pytest.approx(short.gain / 64, rel=1e-3)


def test_bad_input() -> None:
    with pytest.raises(theory.ProbabilityError, match=r"negative; got 0\.5"):
        theory.best_profile(0.5, 2, 1.0)
    with pytest.raises(theory.ProfileError, match="n = 0"):
        theory.best_profile(-1.0, 0, 1.0)
    with pytest.raises(theory.NoiseError):
        theory.best_profile(-1.0, 2, -1.0)
