"""Majorisation by its other definitions: transfers, doubly stochastic mixing, every convex function."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orderlens.theory import compare_spread, majorises


def mixed(rng, y):
    """Return an average of permutations of y: what y majorises, by Birkhoff and Hardy–Littlewood–Pólya."""
    weights = rng.dirichlet(np.ones(4))
    return sum(weight * rng.permutation(y) for weight in weights)


@pytest.mark.parametrize("seed", range(8))
def test_averages_of_permutations_are_majorised(seed):
    rng = np.random.default_rng(seed)
    y = -rng.gamma(0.7, 2.0, 6)
    found = compare_spread(y, mixed(rng, y))
    assert found.more_uneven == "first"
    assert found.second_below == pytest.approx(0, abs=1e-9)
    assert found.first_below > 0
    assert compare_spread(mixed(rng, y), y).more_uneven == "second"


@pytest.mark.parametrize("seed", range(8))
def test_the_verdict_is_that_of_every_hinge(seed):
    """a majorises b if and only if Σ max(c − a, 0) ≥ Σ max(c − b, 0) for every c (equal totals)."""
    rng = np.random.default_rng(100 + seed)
    a, b = -rng.gamma(0.7, 2.0, (2, 5))
    b *= a.sum() / b.sum()
    cuts = np.concatenate([a, b])
    hinge = [np.maximum(c - a, 0).sum() - np.maximum(c - b, 0).sum() for c in cuts]
    expected = {(True, False): "first", (False, True): "second", (True, True): "neither"}[
        (max(hinge) > 1e-9, min(hinge) < -1e-9)
    ]
    found = compare_spread(a, b)
    assert found.more_uneven == expected
    assert majorises(a, b) is (expected == "first")
    assert majorises(b, a) is (expected == "second")


def test_both_kinds_of_pairs_occur_among_the_cases_above():
    seen = set()
    for seed in range(8):
        rng = np.random.default_rng(100 + seed)
        a, b = -rng.gamma(0.7, 2.0, (2, 5))
        seen.add(compare_spread(a, b * a.sum() / b.sum()).more_uneven)
    assert "neither" in seen
    assert seen & {"first", "second"}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[1:])
def test_the_order_of_steps_does_not_matter(order):
    y = np.array([-0.1, -2.0, -0.7])
    found = compare_spread(y, y[list(order)])
    assert found.more_uneven == "equal"
    assert (found.first_below, found.second_below) == (0.0, 0.0)
    assert majorises(y, y[list(order)])
    assert majorises(y[list(order)], y)


def test_the_amounts_are_the_largest_gaps_of_partial_sums():
    first, second = [-4.0, -1.0, -1.0], [-3.0, -2.5, -0.5]
    # lowest: −4 against −3; lowest two: −5 against −5.5; all: equal
    found = compare_spread(first, second)
    assert (found.first_below, found.second_below) == pytest.approx((1.0, 0.5))
    assert found.more_uneven == "neither"
    assert compare_spread(first, second, tolerance=0.6).more_uneven == "first"
    assert compare_spread(first, second, tolerance=2.0).more_uneven == "equal"
