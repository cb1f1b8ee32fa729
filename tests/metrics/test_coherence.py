"""Coherence metrics, and the telescoping identity of adjacent swaps on a model given by random tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.errors import UserInputError
from orderlens.metrics import (
    adjacent_swaps,
    circulation,
    circulation_by,
    dispersion,
    ensemble_gap,
    mean_of_ranges,
    noise_floor,
    range_of_means,
    summarise_circulation,
)


def test_the_two_ranges_differ():
    values = np.array([[-1.0, -2.0], [-2.0, -1.0]])
    assert range_of_means(values) == 0.0
    assert mean_of_ranges(values) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_range_of_means_never_exceeds_mean_of_ranges(seed):
    values = np.random.default_rng(seed).normal(size=(20, 5))
    assert range_of_means(values) <= mean_of_ranges(values) + 1e-12


def test_only_complete_sequences_count():
    values = np.array([[-1.0, -1.5], [np.nan, -9.0]])
    assert range_of_means(values) == 0.5
    assert math.isnan(range_of_means(values[:, :1]))
    assert math.isnan(mean_of_ranges(values[1:]))
    with pytest.raises(UserInputError, match="shape"):
        range_of_means([1.0])


def test_dispersion_and_ensemble_gap():
    rng = np.random.default_rng(0)
    per_token = rng.normal(size=(6, 8))
    np.testing.assert_allclose(dispersion(per_token), per_token.std(axis=1, ddof=1), atol=1e-12)
    gap = ensemble_gap(per_token * 10, np.full(6, 10))
    np.testing.assert_allclose(
        gap, (np.log(np.exp(per_token * 10).mean(axis=1)) - 10 * per_token.mean(axis=1)) / 10
    )
    assert (gap >= 0).all()
    assert ensemble_gap([[-700.0, -700.0]], [10])[0] == 0.0  # no underflow
    missing = per_token.copy()
    missing[0, 1:] = np.nan
    assert math.isnan(dispersion(missing)[0])
    assert math.isnan(ensemble_gap(missing, np.ones(6))[0])
    np.testing.assert_allclose(dispersion(missing)[1:], dispersion(per_token)[1:])


def test_orders_that_are_missing_count_neither_in_the_spread_nor_in_the_gap():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 6))
    holes = values.copy()
    holes[0, 2] = holes[1, :4] = holes[2, 5] = np.nan
    spread, gap = dispersion(holes), ensemble_gap(holes, np.array([3, 5, 7, 9]))
    for row, n, found, excess in zip(holes, (3, 5, 7, 9), spread, gap, strict=True):
        known = row[np.isfinite(row)]
        assert found == pytest.approx(known.std(ddof=1))
        assert excess == pytest.approx((np.log(np.exp(known).mean()) - known.mean()) / n)


class Tables:
    """log p(position holds its target | R), one random number per (position, R): no joint exists."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        sets = [frozenset(s) for k in range(n) for s in itertools.combinations(range(n), k)]
        self.table = {(i, s): -rng.gamma(1.0) for s in sets for i in range(n) if i not in s}

    def log_p(self, position, revealed):
        return self.table[position, frozenset(revealed)]

    def path(self, path):
        return math.fsum(self.log_p(p, path[:t]) for t, p in enumerate(path))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.permutations(range(6)), st.permutations(range(6)))
def test_swaps_telescope_to_the_difference_of_log_p(seed, path_a, path_b):
    model = Tables(6, seed)
    gammas = [
        float(
            circulation(
                model.log_p(i, seen),
                model.log_p(j, [*seen, i]),
                model.log_p(j, seen),
                model.log_p(i, [*seen, j]),
            )
        )
        for seen, i, j in adjacent_swaps(path_a, path_b)
    ]
    assert math.fsum(gammas) == pytest.approx(model.path(path_a) - model.path(path_b), abs=1e-12)


def test_swaps_need_the_same_positions():
    with pytest.raises(UserInputError, match="same positions"):
        list(adjacent_swaps([0, 1], [0, 2]))


def test_circulation_summaries():
    gamma = [1.0, -3.0, 2.0, np.nan]
    summary = summarise_circulation(gamma)
    assert (summary.n, summary.n_undefined, summary.median_abs, summary.signed_mean) == (3, 1, 2.0, 0.0)
    assert summary.rms == pytest.approx(math.sqrt(14 / 3))
    binned = circulation_by(gamma, [0.0, 0.5, 1.0, 0.2], [0.0, 0.5, 1.0])
    assert {k: v.n for k, v in binned.items()} == {"[0, 0.5)": 1, "[0.5, 1]": 2}
    assert math.isnan(summarise_circulation([]).rms)


def test_noise_floor_headline_is_the_largest():
    floor = noise_floor(
        [-10.0, -20.0, -10.0], [-10.1, -20.0, -12.0], [10, 10, 10], ["batch-size", "batch-size", "bfloat16"]
    )
    assert floor.by_perturbation["batch-size"] == pytest.approx(0.005)
    assert floor.headline == pytest.approx(0.2)
    assert floor.n == {"batch-size": 2, "bfloat16": 1}
    assert math.isnan(noise_floor([], [], [], []).headline)
    assert math.isnan(noise_floor([-1.0], [-1.0], [0], ["cache"]).headline)
