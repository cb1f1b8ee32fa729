"""Intervals and comparisons of AUROCs: level, cut ends, scores that rank alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orderlens.analysis.ranks import DeLong, delong


def test_the_interval_is_normal_at_its_level_and_cut_at_the_ends():
    found = DeLong(np.array([0.7, 0.98, 0.01]), np.diag([0.01, 0.01, 0.01]))
    for level in (0.5, 0.95):
        half = stats.norm.ppf((1 + level) / 2) * 0.1
        cell = found.estimate(0, 40, level)
        assert (cell.value, cell.low, cell.high, cell.n) == pytest.approx((0.7, 0.7 - half, 0.7 + half, 40))
    assert found.estimate(1, 40).high == 1.0
    assert found.estimate(1, 40).low == pytest.approx(0.98 - 0.1959964)
    assert found.estimate(2, 40).low == 0.0


def test_a_variance_that_rounds_below_0_is_no_width():
    cell = DeLong(np.array([0.5]), np.array([[-1e-20]])).estimate(0, 3)
    assert (cell.low, cell.high) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("scores", "auroc"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1.0),
        ([4.0, 3.0, 2.0, 1.0], 0.0),
        ([1.0, 1.0, 1.0, 1.0], 0.5),
        ([1.0, 2.0, 2.0, 3.0], 0.875),  # 3 of 4 pairs right and one tied
        ([2.0, 3.0, 1.0, 4.0], 0.5),
    ],
)
def test_the_share_of_pairs_in_the_right_order(scores, auroc):
    assert delong(scores, [False, False, True, True]).auroc.tolist() == [auroc]


def test_signs_and_monotone_changes():
    rng = np.random.default_rng(0)
    score, yes = rng.normal(size=30), np.arange(30) < 12
    found = delong([score, -score, np.exp(score)], yes)
    assert found.auroc[1] == pytest.approx(1 - found.auroc[0])
    assert found.auroc[2] == pytest.approx(found.auroc[0])
    difference, p = found.compare(0, 2)
    assert difference == 0.0
    assert math.isnan(p), "they rank alike: there is nothing to test"
    assert found.compare(0, 1)[0] == pytest.approx(-found.compare(1, 0)[0])
    assert found.compare(0, 1)[1] == pytest.approx(found.compare(1, 0)[1])


def test_perfect_against_reversed_has_no_variance_and_p_0():
    score, yes = np.arange(8.0), np.arange(8) >= 4
    assert delong([score, -score], yes).compare(0, 1) == (1.0, 0.0)


@pytest.mark.parametrize("yes", [[True, True, True], [False, False, False]])
def test_one_class_has_neither_value_nor_covariance(yes):
    found = delong([[1.0, 2.0, 3.0]] * 2, yes)
    assert np.isnan(found.auroc).all()
    assert found.covariance.shape == (2, 2)
    assert np.isnan(found.covariance).all()
    assert math.isnan(found.estimate(1, 3).value)


def test_one_row_of_a_class_has_a_value_without_an_interval():
    found = delong([[1.0, 2.0, 3.0]], [False, True, False])
    assert found.auroc[0] == 0.5
    assert math.isnan(found.estimate(0, 3).high)
