"""Rank correlations, splines and AUROCs: against scipy, plain algebra and exact cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import interpolate, stats

from orderlens.metrics.significance import (
    DeLong,
    correlation_p,
    delong,
    mann_whitney_less,
    natural_spline_basis,
    orthonormal_basis,
    partial_spearman,
    residuals,
)


@pytest.mark.parametrize(("rho", "n"), [(0.5, 12), (-0.3, 40), (0.01, 5), (-0.95, 9)])
def test_p_of_a_correlation_is_scipys(rho, n):
    beta = stats.beta(n / 2 - 1, n / 2 - 1, loc=-1, scale=2)
    assert correlation_p(rho, n - 2) == pytest.approx(2 * beta.sf(abs(rho)), rel=1e-9)
    assert correlation_p(-rho, n - 2) == correlation_p(rho, n - 2)


@pytest.mark.parametrize("rho", [1.0, -1.0])
def test_a_perfect_correlation_has_p_0(rho):
    assert correlation_p(rho, 7) == 0.0


@pytest.mark.parametrize("tie", [False, True])
def test_without_covariates_it_is_spearman(tie):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 25))
    if tie:
        x, y = np.round(x), np.round(y)
    found, theirs = partial_spearman(x, y, []), stats.spearmanr(x, y)
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_one_covariate_is_the_textbook_formula():
    rng = np.random.default_rng(4)
    x, y, z = rng.normal(size=(3, 30))
    y = y + z
    xy, xz, yz = (stats.spearmanr(*pair).statistic for pair in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    found = partial_spearman(x, y, [z])
    assert found.statistic == pytest.approx(expected)
    assert found.p == pytest.approx(correlation_p(expected, 30 - 3))


def test_dependent_covariates_cost_one_degree_of_freedom_together():
    rng = np.random.default_rng(5)
    x, y, z = rng.normal(size=(3, 20))
    once, twice = partial_spearman(x, y, [z]), partial_spearman(x, y, [z, 2 * z + 1, np.ones(20)])
    assert (twice.statistic, twice.p) == pytest.approx((once.statistic, once.p))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_too_few_rows_are_undefined(n):
    x = np.arange(n, dtype=float)
    found = partial_spearman(x, x[::-1], [np.array([0.0, 2.0, 1.0])[:n]])
    assert math.isnan(found.statistic)
    assert math.isnan(found.p)


@pytest.mark.parametrize(
    ("correct", "incorrect", "u", "p"),
    [
        ([1.0, 2.0], [3.0, 4.0, 5.0], 0.0, 0.1),  # 1 of 10 arrangements
        ([4.0, 5.0], [1.0, 2.0, 3.0], 6.0, 1.0),
        ([1.0, 3.0], [2.0], 1.0, 2 / 3),
    ],
)
def test_mann_whitney_counts_arrangements(correct, incorrect, u, p):
    found = mann_whitney_less(correct, incorrect)
    assert (found.statistic, found.p) == (u, pytest.approx(p))


def test_a_basis_spans_what_it_was_given_and_nothing_twice():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 15))
    basis = orthonormal_basis([x, 1e9 * y, x + 3.0, np.zeros(15)], 15)
    assert basis.shape == (15, 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    for column in (x, y, np.ones(15)):
        assert np.abs(residuals(column, basis)).max() < 1e-10
    other = rng.normal(size=15)
    rest = residuals(other, basis)
    np.testing.assert_allclose(basis.T @ rest, 0, atol=1e-12)
    design = np.column_stack([np.ones(15), x, y])
    np.testing.assert_allclose(
        rest, other - design @ np.linalg.lstsq(design, other, rcond=None)[0], atol=1e-10
    )


def test_an_empty_table_has_an_empty_basis():
    assert orthonormal_basis([np.zeros(0)], 0).shape[0] == 0


@pytest.mark.parametrize("knots", [3, 5, 7])
def test_bent_columns_span_the_natural_cubic_splines_of_their_knots(knots):
    """Any natural cubic spline through values at the knots is a combination of the columns."""
    rng = np.random.default_rng(knots)
    values = rng.gamma(1.0, size=60)
    score = stats.norm.ppf((stats.rankdata(values) - 0.5) / 60)
    places = np.quantile(score, np.linspace(0.05, 0.95, knots))
    columns = natural_spline_basis(values, knots)
    assert len(columns) == knots - 1
    np.testing.assert_allclose(columns[0], score)
    spline = interpolate.CubicSpline(places, rng.normal(size=knots), bc_type="natural")
    inside = (score >= places[0]) & (score <= places[-1])
    slopes = spline(places[[0, -1]], 1)
    curve = np.where(
        inside,
        spline(score),
        np.where(
            score < places[0],
            spline(places[0]) + slopes[0] * (score - places[0]),
            spline(places[-1]) + slopes[1] * (score - places[-1]),
        ),
    )
    basis = orthonormal_basis(columns, 60)
    assert basis.shape[1] == knots
    assert np.abs(residuals(curve, basis)).max() < 1e-9


def test_bending_only_depends_on_ranks():
    values = np.random.default_rng(1).gamma(1.0, size=40)
    for one, two in zip(natural_spline_basis(values), natural_spline_basis(np.log(values)), strict=True):
        np.testing.assert_allclose(one, two)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0], [1.0] * 30 + [2.0]])
def test_columns_without_three_knots_stay_straight(values):
    (column,) = natural_spline_basis(values)
    assert column.shape == (len(values),)
    assert np.isfinite(column).all()


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
    assert math.isnan(p), "they give the same ranking: there is nothing to test"
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


def test_the_smallest_samples_that_have_a_value():
    found = partial_spearman([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [])  # one degree of freedom
    assert found.statistic == pytest.approx(0.5)
    assert found.p == pytest.approx(stats.spearmanr([1, 2, 3], [1, 3, 2]).pvalue)
    assert math.isnan(partial_spearman([1.0, 2.0], [1.0, 2.0], []).statistic)
    assert [column.tolist() for column in natural_spline_basis([5.0])] == [[0.0]]
