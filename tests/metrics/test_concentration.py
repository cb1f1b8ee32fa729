"""Lorenz curves and Gini coefficients: worked examples, invariants, bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.errors import UserInputError
from orderlens.metrics import gini, lorenz, lorenz_gini
from orderlens.metrics.path import segment_gini, segment_lorenz
from orderlens.metrics.segments import Segments


def test_worked_examples():
    assert gini([1, 2, 3, 4]) == pytest.approx(0.25, abs=1e-14)
    np.testing.assert_allclose(lorenz([4, 1, 3, 2]), [0, 0.1, 0.3, 0.6, 1.0], atol=1e-15)
    assert gini([0, 0, 0, 1]) == 0.75
    assert gini(-np.log([0.9, 0.9, 0.9, 0.1])) == pytest.approx(0.6292967603629767, abs=1e-14)
    assert gini(-np.log([0.5, 0.25, 0.125, 0.5])) == pytest.approx(0.25, abs=1e-14)


def test_all_zeros_are_perfectly_even():
    assert gini(np.zeros(4)) == 0.0
    np.testing.assert_array_equal(lorenz(np.zeros(4)), [0, 0.25, 0.5, 0.75, 1])


def test_undefined_is_nan_and_nonsense_is_refused():
    assert np.isnan(gini([]))
    assert np.isnan(gini([1.0, np.nan]))
    for broken in ([1.0, np.inf], [np.nan, 2.0, 3.0], []):
        assert np.isnan(lorenz(broken)).all()
        assert len(lorenz(broken)) == len(broken) + 1
    with pytest.raises(UserInputError, match=r"≥ 0, got -0\.5"):
        gini([-0.5, 1])
    with pytest.raises(UserInputError, match="shape"):
        lorenz([[1.0]])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 50), min_size=1, max_size=40))
def test_gini_is_half_the_relative_mean_difference(values):
    s = np.array(values)
    if s.sum() > 1e-6:
        pairwise = np.abs(s[:, None] - s[None, :]).mean() / (2 * s.mean())
        assert gini(s) == pytest.approx(pairwise, abs=1e-10)
        assert lorenz_gini(lorenz(s)) == pytest.approx(gini(s), abs=1e-10)


def test_gini_of_the_mean_lorenz_curve_is_the_mean_gini():
    blocks = np.random.default_rng(0).gamma(0.4, size=(50, 32))
    curves = segment_lorenz(blocks)
    np.testing.assert_allclose(curves[7], lorenz(blocks[7]), atol=1e-14)
    assert lorenz_gini(curves.mean(axis=0)) == pytest.approx(np.mean([gini(b) for b in blocks]), abs=1e-12)


def test_many_blocks_equal_one_at_a_time():
    rng = np.random.default_rng(1)
    parts = [rng.gamma(0.5, size=n) for n in (32, 5, 1, 32)] + [np.zeros(3), np.array([1.0, np.nan])]
    segments = Segments.of_lengths([len(p) for p in parts])
    np.testing.assert_allclose(
        segment_gini(np.concatenate(parts), segments), [gini(p) for p in parts], atol=1e-14
    )


def test_curves_of_zero_and_undefined_blocks():
    curves = segment_lorenz(np.array([[0.0, 0.0], [1.0, np.nan]]))
    np.testing.assert_array_equal(curves[0], [0, 0.5, 1])
    assert np.isnan(curves[1]).all()
