"""The mean-only null: its parts against plain loops and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from orderlens.analysis.tables_controls import (
    _cell_statistics,
    _pooled_statistics,
    _row,
    null_summary,
    probability_given_mean,
    simulate_study,
)
from orderlens.metrics.significance import (
    correlation_p,
    natural_spline_basis,
    orthonormal_basis,
    partial_spearman,
    residuals,
)


@pytest.fixture(scope="module")
def study():
    return simulate_study(30, n_tokens=8)


def test_every_redraw_gets_the_statistics_of_the_tables(study):
    cell = study[study["order"] == "random"]
    verdicts = np.random.default_rng(0).random((5, len(cell))) < 0.5
    found = _cell_statistics(cell, verdicts.astype(float))
    for row, yes in enumerate(verdicts):
        assert found["rho"][row] == pytest.approx(stats.spearmanr(cell["var"], yes).statistic, abs=1e-12)
        given = [cell["mean"], cell["n"]]
        partial = partial_spearman(cell["var"], yes, given).statistic
        assert found["partial_rho"][row] == pytest.approx(partial, abs=1e-12)


def test_constant_verdicts_have_no_correlation(study):
    cell = study[study["order"] == "random"]
    found = _cell_statistics(cell, np.ones((1, len(cell))))
    assert np.isnan(found["rho"]).all()


def test_quadrants_and_picks_of_every_redraw_are_counted_by_hand(study):
    verdicts = (np.random.default_rng(1).random((3, len(study))) < 0.5).astype(float)
    found = _pooled_statistics(study, verdicts)
    high, low_var = study["mean"] > study["mean"].median(), study["var"] <= study["var"].median()
    for row, yes in enumerate(verdicts):
        for name, half in (("hi_mean", high), ("lo_mean", ~high)):
            gap = 100 * (yes[half & low_var].mean() - yes[half & ~low_var].mean())
            assert found[f"{name}: lo_var − hi_var (pp)"][row] == pytest.approx(gap)
        right = study.assign(yes=yes).groupby("item_id")
        picked = [g.loc[g["var"].idxmin(), "yes"] - g.loc[g["var"].idxmax(), "yes"] for _, g in right]
        assert found["delta_pp (min-V − max-V)"][row] == pytest.approx(100 * np.mean(picked))


@pytest.mark.parametrize(
    ("observed", "null", "p"),
    [
        (5.0, [1.0, 2.0, 3.0], 1 / 4),
        (3.0, [1.0, 2.0, 3.0], 3 / 4),  # as far on the other side counts
        (2.0, [1.0, 2.0, 3.0], 4 / 4),
        (5.0, [1.0, math.nan, 3.0], 1 / 3),
        (math.nan, [1.0, 2.0], math.nan),
        (1.0, [math.nan], math.nan),
    ],
)
def test_p_counts_draws_at_least_as_far_from_the_nulls_own_mean(observed, null, p):
    row = _row("t", "o", "rho", np.array([observed, *null]), 9, 0.5)
    assert row["p"] == pytest.approx(p, nan_ok=True)
    known = [value for value in null if not math.isnan(value)]
    expected = np.quantile(known, [0.25, 0.75]) if known else [math.nan, math.nan]
    assert [row["null_low"], row["null_high"]] == pytest.approx(list(expected), nan_ok=True)
    assert row["null_mean"] == pytest.approx(np.mean(known) if known else math.nan, nan_ok=True)
    assert row["n"] == 9


def test_chances_follow_the_mean_even_where_it_turns():
    mean = np.linspace(-3.0, 0.0, 400)
    middle = (np.abs(mean + 1.5) < 0.75).astype(float)
    chance = probability_given_mean(mean, middle)
    assert chance.mean() == pytest.approx(middle.mean(), abs=0.05)
    assert chance[200] > 0.8
    assert max(chance[0], chance[-1]) < 0.2
    assert 0.0 <= chance.min() <= chance.max() <= 1.0
    assert probability_given_mean(mean, np.ones(400)) == pytest.approx(np.ones(400))


def test_a_bent_line_is_a_natural_spline_of_normal_scores():
    """Cubic between its knots with a steady second derivative, straight outside of them."""
    values = np.exp(np.linspace(0, 9, 4001))
    first, *others = natural_spline_basis(values, knots=5)
    assert first == pytest.approx(stats.norm.ppf((np.arange(4001) + 0.5) / 4001))
    assert len(others) == 3
    knots = np.quantile(first, np.linspace(0.05, 0.95, 5))
    for column in others:
        assert not column[first < knots[0]].any()
        beyond = first > knots[-1]
        line = np.polyfit(first[beyond], column[beyond], 1)
        assert np.polyval(line, first[beyond]) == pytest.approx(
            column[beyond], abs=1e-9 * np.abs(column).max()
        )
        bend = np.gradient(np.gradient(column, first), first)[2000:3700]
        assert np.abs(np.diff(bend)).max() < 0.02 * np.abs(bend).max()
        for low, high in itertools.pairwise(knots):
            inside = (first >= low) & (first <= high)
            cubic = np.polyfit(first[inside], column[inside], 3)
            assert np.polyval(cubic, first[inside]) == pytest.approx(column[inside], abs=1e-6)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [2.0], []])
def test_what_cannot_bend_stays_straight(values):
    assert len(natural_spline_basis(values)) == 1


def test_a_basis_drops_what_depends_on_the_rest_and_nothing_is_left_of_it():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    basis = orthonormal_basis([x, 3 * x - 1, np.zeros(4)], 4)
    assert basis.shape == (4, 2)
    assert basis.T @ basis == pytest.approx(np.eye(2))
    assert residuals(5 * x + 2, basis) == pytest.approx(np.zeros(4), abs=1e-12)
    rest = residuals(x**2, basis)
    slope, start = np.polyfit(x, x**2, 1)
    assert rest == pytest.approx(x**2 - slope * x - start)


@pytest.mark.parametrize(("rho", "p"), [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, 0.4), (-0.6, 0.4)])
def test_p_of_a_correlation_with_two_degrees_is_one_minus_its_size(rho, p):
    assert correlation_p(rho, 2) == pytest.approx(p)


def test_the_summary_counts_cells_whose_partial_rho_leaves_the_null():
    rows = [
        ("rho", -0.30, -0.2, 0.5),
        ("rho", -0.10, -0.4, 0.5),
        ("partial_rho", -0.3, 0.0, 0.01),
        ("partial_rho", -0.1, 0.0, 0.05),
        ("partial_rho", 0.0, 0.0, math.nan),
    ]
    first, second = null_summary(pd.DataFrame(rows, columns=["statistic", "observed", "null_mean", "p"]))
    assert "would be -0.400 to -0.200 in these cells; observed: -0.300 to -0.100" in first
    assert "in 1 of 2 cells (p < 0.05, not adjusted)" in second


def test_nothing_to_compare_is_said_in_words():
    rows = [("rho", math.nan, math.nan, math.nan), ("partial_rho", math.nan, math.nan, math.nan)]
    (only,) = null_summary(pd.DataFrame(rows, columns=["statistic", "observed", "null_mean", "p"]))
    assert "nothing to compare" in only


def test_a_simulated_study_has_the_asked_for_shape(study):
    assert study.shape[0] == 4 * 30
    assert set(study["n"]) == {8}
    assert (study["min"] <= study["mean"]).all()
    assert study.equals(simulate_study(30, n_tokens=8))
    assert not study.equals(simulate_study(30, n_tokens=8, seed=1))
    means = study.groupby("order")["mean"].mean()
    assert means.idxmin() == "random", "its self-information is doubled"
