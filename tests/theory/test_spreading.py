"""Whole profiles: recoverability, Jensen loss, second order, majorisation."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfc

from orderlens import theory
from orderlens.theory.spreading import erfc_zeros, singularities

PROFILES = st.lists(st.floats(-12.0, -1e-6), min_size=2, max_size=12)


def bottleneck() -> np.ndarray:
    return np.append(np.full(98, (99 * -0.35 + 0.85) / 98), -0.85)


def two_levels() -> np.ndarray:
    return np.concatenate([np.full(66, -0.525), np.full(33, -1e-9)])


def test_recoverability_is_a_product() -> None:
    q = np.array([0.9, 0.4, 0.7])
    want = np.log(np.prod(theory.success(q, 0.8)))
    assert theory.log_recoverability(np.log(q), 0.8) == pytest.approx(want, rel=1e-12)
    assert theory.log_distortion(np.log(q), 0.8) == pytest.approx(want - np.log(q).sum(), rel=1e-12)
    many = theory.log_recoverability(np.log(q), 0.8, k=5)
    assert many == pytest.approx(np.log(np.prod(theory.success_k(q, 5, 0.8))), rel=1e-9)


def test_profiles_of_one_length_come_in_batches() -> None:
    batch = -np.random.default_rng(0).exponential(1.0, (2, 3, 7))
    for function in (theory.log_recoverability, theory.log_distortion, theory.jensen_loss):
        together = function(batch, 0.5)
        assert together.shape == (2, 3)
        assert together[1, 2] == pytest.approx(function(batch[1, 2], 0.5), rel=1e-12)


def test_certain_steps_cost_nothing() -> None:
    y = np.array([-0.5, 0.0, -2.0, 0.0])
    assert theory.log_recoverability(y, 0.4) == pytest.approx(theory.log_recoverability(y[[0, 2]], 0.4))
    assert theory.log_recoverability([0.0, 0.0], 0.4) == 0
    assert theory.second_order([0.0, 0.0], 0.4) == theory.SecondOrder(*[0.0] * 7)
    assert np.isfinite(theory.jensen_loss(y, 0.4))


@given(PROFILES, st.sampled_from([0.1, 0.3, 0.5, 1.0, 1.05]))
@settings(max_examples=150, deadline=None)
def test_uneven_profiles_lose_below_the_critical_noise(y: list[float], sigma: float) -> None:
    loss = theory.jensen_loss(y, sigma)
    assert loss >= -1e-9 * (1 + abs(theory.log_recoverability(y, sigma)))


def test_counterexamples_above_the_critical_noise() -> None:
    values = [float(np.exp(theory.log_recoverability(np.log(q), 2.0))) for q in ([0.9, 0.4], [0.6, 0.6])]
    assert values == pytest.approx([0.346152205, 0.310242898], abs=1e-9)
    near = [0.75, 0.61]
    even = [np.sqrt(0.75 * 0.61)] * 2
    values = [float(np.exp(theory.log_recoverability(np.log(q), 1.1))) for q in (near, even)]
    assert values == pytest.approx([0.465978609, 0.465417653], abs=1e-9)
    assert theory.jensen_loss(np.log([0.9, 0.4]), 2.0) < 0


def test_variance_does_not_order_recoverability() -> None:
    low, high = bottleneck(), two_levels()
    assert low.mean() == pytest.approx(-0.35)
    assert high.mean() == pytest.approx(-0.35, abs=1e-8)
    assert low.var() == pytest.approx(0.00255, abs=1e-5)
    assert high.var() == pytest.approx(0.0612, abs=1e-4)
    assert theory.log_recoverability(low, 0.1) == pytest.approx(-3.946, abs=5e-4)
    assert theory.log_recoverability(high, 0.1) == pytest.approx(-0.292, abs=5e-4)


def test_uniform_value_and_loss_are_consistent() -> None:
    y = np.log([0.9, 0.2, 0.5])
    uniform = theory.uniform_log_recoverability(y.sum(), 3, 0.7)
    assert uniform - theory.log_recoverability(y, 0.7) == pytest.approx(theory.jensen_loss(y, 0.7))
    assert uniform == pytest.approx(3 * theory.log_success(y.mean(), 0.7))
    assert theory.uniform_log_recoverability([-1.0, -2.0], 2, 0.7).shape == (2,)
    assert theory.uniform_log_recoverability(0.0, 2, 0.7) == 0


@pytest.mark.parametrize(("sigma", "k"), [(0.5, 1), (1.1, 1), (2.0, 1), (0.8, 6)])
def test_second_order_is_the_limit_of_small_spread(sigma: float, k: int) -> None:
    shape = np.array([1.0, -0.4, -0.9, 0.3])
    for size in (1e-2, 1e-3):
        found = theory.second_order(-0.4 + size * shape, sigma, k)
        assert found.is_valid
        assert found.loss == pytest.approx(found.exact_loss, rel=20 * size)


def test_second_order_keeps_the_sign_of_the_curvature() -> None:
    found = theory.second_order(np.log([0.75, 0.65]), 1.1)
    assert found.curvature > 0
    assert found.loss < 0
    assert found.exact_loss < 0
    assert found.log_a > theory.uniform_log_recoverability(np.log(0.75 * 0.65), 2, 1.1)


def test_second_order_is_flagged_where_it_fails() -> None:
    found = theory.second_order(bottleneck(), 0.1)
    assert not found.is_valid
    assert found.exact_loss > 1e6 * found.loss
    assert found.furthest == pytest.approx(0.5)


def test_zeros_of_erfc() -> None:
    zeros = erfc_zeros(64)
    assert np.abs(erfc(zeros[:20])).max() < 1e-12
    assert zeros[0] == pytest.approx(-1.3548101281120 - 1.9914668428339j, abs=1e-12)
    assert np.all(np.diff(np.abs(zeros)) > 0)


CENTRES = [(-0.35, 0.1), (-1.0, 0.1), (-0.69, 0.3), (-0.5, 1.0), (-2.0, 0.5), (-3.0, 0.2)]


@pytest.mark.parametrize(("centre", "sigma"), CENTRES)
def test_taylor_radius_is_where_cauchys_formula_breaks(centre: float, sigma: float) -> None:
    radius = theory.taylor_radius(centre, sigma)
    assert 0 < radius <= -centre

    def slope(y: mp.mpc) -> mp.mpc:
        x = (y - mp.log(1 - mp.exp(y))) / (2 * mp.mpf(sigma))
        return mp.exp(-x * x) / (mp.sqrt(mp.pi) * sigma * (1 - mp.exp(y)) * mp.erfc(-x))

    def coefficient(size: float, n: int = 256) -> mp.mpc:
        """Third Taylor coefficient of g' from a circle: the same on every circle inside the radius."""
        turns = [mp.expjpi(mp.mpf(2 * j) / n) for j in range(n)]
        return sum(slope(centre + size * turn) / turn**3 for turn in turns) / n / mp.mpf(size) ** 3

    small, inside, outside = (coefficient(share * radius) for share in (0.5, 0.9, 1.05))
    assert abs(inside - small) < 1e-6 * abs(small)
    assert abs(outside - small) > 0.05 * abs(small)


def test_singularities_are_zeros_of_success() -> None:
    y = singularities(0.2)
    z = (y - np.log1p(-np.exp(y))) / 0.4
    nearest = np.argsort(np.abs(y + 0.6))[:5]
    assert np.abs(erfc(-z[nearest])).max() < 1e-9
    assert np.all(y.real < 0)


def test_bottlenecks() -> None:
    y = np.log([0.9, 0.05, 0.6, 0.3])
    found = theory.bottlenecks(y, 0.5, top=2)
    assert [item.step for item in found] == [1, 3]
    everything = theory.bottlenecks(y, 0.5, top=9)
    assert sum(item.share for item in everything) == pytest.approx(1.0)
    assert theory.bottlenecks([0.0, 0.0], 0.5)[0].share == 0


@given(PROFILES, st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_averaging_steps_is_majorised_and_safer(y: list[float], seed: int) -> None:
    profile = np.array(y)
    i, j = np.random.default_rng(seed).choice(len(y), 2, replace=False)
    softer = profile.copy()
    share = 0.3
    softer[i], softer[j] = (
        (1 - share) * profile[i] + share * profile[j],
        (1 - share) * profile[j] + share * profile[i],
    )
    assert theory.majorises(profile, softer)
    for sigma in (0.2, 1.0):
        gain = theory.log_recoverability(softer, sigma) - theory.log_recoverability(profile, sigma)
        assert gain >= -1e-9 * (1 + abs(theory.log_recoverability(profile, sigma)))


def test_majorisation_relations() -> None:
    even, uneven = [-1.0, -1.0, -1.0], [-2.5, -0.4, -0.1]
    assert theory.compare_spread(uneven, even).more_uneven == "first"
    assert theory.compare_spread(even, uneven).more_uneven == "second"
    assert theory.compare_spread(uneven, uneven[::-1]).more_uneven == "equal"
    assert not theory.majorises(even, uneven)
    crossed = theory.compare_spread([-3.0, -1.5, -1.5], [-2.6, -2.6, -0.8])
    assert crossed.more_uneven == "neither"
    assert crossed.first_below > 0
    assert crossed.second_below > 0
    # The two counterexample profiles are not comparable, which is how Var can mislead.
    high = np.concatenate([np.full(66, (99 * -0.35 + 33e-9) / 66), np.full(33, -1e-9)])
    assert theory.compare_spread(bottleneck(), high, tolerance=1e-6).more_uneven == "neither"


def test_bad_profiles() -> None:
    with pytest.raises(theory.ProfileError, match="at least one step"):
        theory.log_recoverability([], 0.5)
    with pytest.raises(theory.ProfileError, match=r"at most 0; got 0\.2 at index 1"):
        theory.jensen_loss([-1.0, 0.2], 0.5)
    with pytest.raises(theory.ProfileError, match="got nan"):
        theory.log_recoverability([-1.0, np.nan], 0.5)
    with pytest.raises(theory.ProfileError, match="takes one profile"):
        theory.second_order([[-1.0], [-2.0]], 0.5)
    with pytest.raises(theory.ProfileError, match="same length"):
        theory.compare_spread([-1.0], [-0.5, -0.5])
    with pytest.raises(
        theory.ProfileError, match=r"same total log-probability to compare; got -1\.0 and -2\.0"
    ):
        theory.majorises([-1.0], [-2.0])
    with pytest.raises(theory.ProfileError, match="n = 0"):
        theory.uniform_log_recoverability(-1.0, 0, 0.5)
