"""The fit of (σ, k) finds what made the data, and says when it cannot be right."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens import theory
from orderlens.theory._fit import HitData, Knots, Surface, maximise


def simulated(n: int, k: float, sigma: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q = np.clip(rng.beta(0.5, 0.8, n), 1e-9, 1 - 1e-9)
    return np.log(q), rng.random(n) < theory.success_k(q, k, sigma)


@pytest.mark.parametrize(("k", "sigma"), [(12.0, 0.8), (300.0, 1.5)])
def test_recovers_the_truth(k: float, sigma: float) -> None:
    fit = theory.fit_noise(*simulated(6000, k, sigma))
    assert fit.sigma_interval[0] < sigma < fit.sigma_interval[1]
    assert fit.k_interval[0] < k < fit.k_interval[1]
    assert fit.sigma_interval[0] < fit.sigma < fit.sigma_interval[1]
    assert fit.sigma == pytest.approx(sigma, rel=0.15)
    assert fit.p_value > 0.01
    assert fit.log_likelihood > fit.log_likelihood_one + 50


def test_one_competitor_is_found_at_the_bound() -> None:
    fit = theory.fit_noise(*simulated(4000, 1.0, 0.4, seed=2))
    assert fit.k_interval[0] == pytest.approx(1.0)
    assert fit.k < 1.3
    assert fit.sigma == pytest.approx(0.4, rel=0.15)
    assert fit.log_likelihood >= fit.log_likelihood_one - 1e-3


def test_bootstrap_is_wider_for_clustered_data_and_repeatable() -> None:
    y, hit = simulated(800, 8.0, 0.7, seed=3)
    data = HitData(np.tile(y, 4), np.tile(hit, 4))
    surface = Surface(data, maximise(data))
    weights = data.weights_by_group(np.tile(np.arange(800), 4))
    draws = [surface.bootstrap(weights, 80, np.random.default_rng(5)) for _ in range(2)]
    assert draws[0] == draws[1]
    width = [np.diff(item[0])[0] for item in (surface.profile_intervals(), draws[0])]
    assert width[1] > 1.4 * width[0]  # four copies of everything: twice as wide
    fit = theory.fit_noise(y[:200], hit[:200], groups=np.arange(200), bootstrap=5)
    assert fit.interval_kind == "bootstrap"


def test_copies_of_every_text_tell_nothing_new() -> None:
    """As when one text is scored under many orders; the searched range must not cut the resamples off."""
    y, hit = simulated(300, 8.0, 0.7, seed=3)
    groups = np.arange(300)
    once = theory.fit_noise(y, hit, groups=groups, bootstrap=60)
    often = theory.fit_noise(np.tile(y, 40), np.tile(hit, 40), groups=np.tile(groups, 40), bootstrap=60)
    assert often.sigma_interval == pytest.approx(once.sigma_interval, rel=0.05)
    assert often.k_interval == pytest.approx(once.k_interval, rel=0.1)


def test_real_argmax_data_are_reported_as_a_misfit() -> None:
    rng = np.random.default_rng(6)
    p = rng.dirichlet(np.full(40, 0.12), 6000)
    target = np.array([rng.choice(40, p=row) for row in p])
    q = np.clip(p[np.arange(6000), target], 1e-12, 1 - 1e-12)
    hit = p.argmax(axis=1) == target
    fit = theory.fit_noise(np.log(q), hit)
    assert fit.misses_above_half == 0
    assert fit.fitted_misses_above_half > 0
    assert fit.log_likelihood > fit.log_likelihood_one
    assert "always the argmax" in fit.remarks[0]
    one_only = sum(fit.log_likelihood - fit.log_likelihood_one > limit for limit in (0, 10))
    assert one_only == 2


def test_certain_reveals_are_counted_not_used() -> None:
    y, hit = simulated(1000, 5.0, 0.8)
    fit = theory.fit_noise(np.append(y, np.zeros(7)), np.append(hit, np.ones(7, bool)))
    assert fit.n == 1000
    assert fit.n_certain == 7
    assert sum(item.n for item in fit.bins) == 1000


def test_knots_change_nothing_that_matters() -> None:
    y, hit = simulated(2000, 20.0, 0.6, seed=7)
    data = HitData(y, hit)
    exact = np.where(hit, theory.log_success_k(y, 20, 0.6), theory.log_failure_k(y, 20, 0.6)).sum()
    assert data.log_likelihood(np.log(0.6), np.log(20.0)) == pytest.approx(exact, abs=0.01)


def test_knots_interpolate_cubics_exactly() -> None:
    logit = np.linspace(-30.0, 20.0, 101)
    knots = Knots(logit)
    np.testing.assert_allclose(knots.weights.sum(axis=1), 1.0)
    place = np.arcsinh(logit / 2.0)
    np.testing.assert_allclose(knots.weights @ np.arcsinh(knots.logit / 2.0) ** 3, place**3, atol=1e-9)
    assert knots.gather(np.ones(101)).sum() == pytest.approx(101)


def test_bad_input() -> None:
    with pytest.raises(theory.ProfileError, match="hits and misses; got 3 hits in 3"):
        theory.fit_noise([-1.0, -2.0, -0.1], [True, True, True])
    with pytest.raises(theory.ProfileError, match="the same length"):
        theory.fit_noise([-1.0, -2.0], [True])
    with pytest.raises(theory.ProfileError, match="booleans"):
        theory.fit_noise([-1.0, -2.0], [0.3, 1.0])
    with pytest.raises(theory.ProfileError, match="one label per reveal"):
        theory.fit_noise([-1.0, -2.0], [True, False], groups=[1], bootstrap=2)
