"""Intervals: seeded, clustered by prompt, equal to plain loops, honest about what is missing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orderlens.errors import UserInputError
from orderlens.metrics.estimate import (
    MOST_REPS,
    BinaryRanks,
    Clusters,
    Resampling,
    difference_of_means,
    mean,
    means,
    median,
    student_p,
    student_t,
)

FEW = Resampling(reps=40, seed=3)


def resampled_rows(clusters):
    """Yield the row numbers of each resample, the slow way."""
    for counts in clusters.resamples():
        for row in counts:
            yield np.concatenate(
                [np.tile(np.flatnonzero(clusters.codes == c), int(k)) for c, k in enumerate(row)]
            )


def percentile(values):
    return np.nanquantile(values, [0.025, 0.975])


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(15), 3)
    return prompts, rng.normal(size=45) + 0.1 * prompts, rng.random(45) < 0.5


def test_mean_and_median_equal_the_loop_over_resamples(rows):
    prompts, values, _ = rows
    clusters = Clusters(prompts, FEW)
    samples = list(resampled_rows(clusters))
    cell = mean(values, clusters)
    assert cell.value == pytest.approx(values.mean())
    np.testing.assert_allclose([cell.low, cell.high], percentile([values[s].mean() for s in samples]))
    cell = median(values, clusters)
    assert cell.value == np.median(values)
    np.testing.assert_allclose([cell.low, cell.high], percentile([np.median(values[s]) for s in samples]))


def test_rank_statistics_equal_scipy_on_every_resample(rows):
    prompts, values, yes = rows
    values = np.round(values, 1)  # ties
    clusters = Clusters(prompts, FEW)
    rho, auroc = BinaryRanks.of(values, yes).estimates(clusters)
    assert rho.value == pytest.approx(stats.spearmanr(values, yes).statistic, abs=1e-12)
    u = stats.mannwhitneyu(values[yes], values[~yes]).statistic
    assert auroc.value == pytest.approx(u / (yes.sum() * (~yes).sum()), abs=1e-12)
    draws = [stats.spearmanr(values[s], yes[s]).statistic for s in resampled_rows(clusters)]
    np.testing.assert_allclose([rho.low, rho.high], percentile(draws), atol=1e-12)


def test_clusters_widen_the_interval_of_repeated_rows():
    rng = np.random.default_rng(1)
    base = rng.normal(size=50)
    values = np.repeat(base, 20)
    naive = mean(values, Clusters(np.arange(1000), Resampling(300)))
    clustered = mean(values, Clusters(np.repeat(np.arange(50), 20), Resampling(300)))
    assert clustered.high - clustered.low > 3 * (naive.high - naive.low)
    width = 2 * 1.96 * base.std() / math.sqrt(50)
    assert clustered.high - clustered.low == pytest.approx(width, rel=0.2)


def test_the_same_seed_gives_the_same_interval_whatever_the_piece_size(rows, monkeypatch):
    prompts, values, _ = rows
    first = mean(values, Clusters(prompts, Resampling(100, seed=7)))
    assert mean(values, Clusters(prompts, Resampling(100, seed=7))) == first
    monkeypatch.setattr("orderlens.metrics.estimate._PIECE", 60)
    monkeypatch.setattr("orderlens.metrics.estimate._CACHED", 0)
    assert mean(values, Clusters(prompts, Resampling(100, seed=7))) == first
    assert mean(values, Clusters(prompts, Resampling(100, seed=8))) != first


def test_undefined_rows_are_counted_not_zeroed():
    cell = mean([1.0, np.nan, 3.0], Clusters("abc", FEW))
    assert (cell.value, cell.n, cell.n_undefined) == (2.0, 2, 1)
    both = means(np.array([[1.0, np.nan], [2.0, np.nan]]), Clusters("ab", FEW), why="no content")
    assert both[0].is_defined
    assert not both[1].is_defined
    assert (both[1].n, both[1].n_undefined, both[1].why) == (0, 2, "no content")
    empty = median([np.nan], Clusters("a", FEW), why="nothing")
    assert (empty.why, empty.n_undefined) == ("nothing", 1)


def test_one_prompt_or_no_resamples_leave_the_interval_open():
    for clusters in (Clusters("aaa", FEW), Clusters("abc", Resampling(reps=0))):
        cell = mean([1.0, 2.0, 3.0], clusters)
        assert cell.value == 2.0
        assert math.isnan(cell.low)


def difference(values, first, prompts):
    """Mean of the first minus mean of the others, and its error: each prompt moves both means."""
    one, two = values[first].mean(), values[~first].mean()
    pull = np.where(first, (values - one) / first.sum(), -(values - two) / (~first).sum())
    return one - two, math.sqrt(sum(pull[prompts == name].sum() ** 2 for name in np.unique(prompts)))


@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_a_difference_of_means_equals_the_loop_over_resamples(rows, skew):
    prompts, values, first = rows
    values = np.exp(skew * values) if skew else values
    clusters = Clusters(prompts, FEW)
    value, error = difference(values, first, prompts)
    t = []
    for sample in resampled_rows(clusters):
        names = np.repeat(np.arange(len(sample) // 3), 3)  # a prompt that is drawn twice counts as two
        again, spread = difference(values[sample], first[sample], names)
        t.append((again - value) / spread)
    smaller = min(first.sum(), (~first).sum())
    student = stats.t.ppf(0.975, smaller - 1) * math.sqrt(smaller / (smaller - 1))
    left, right = percentile(t)
    found = difference_of_means(values, first, clusters)
    assert (found.value, found.n) == (pytest.approx(value), 45)
    assert found.low == pytest.approx(value - max(right, student) * error)
    assert found.high == pytest.approx(value - min(left, -student) * error)


@pytest.mark.parametrize(
    ("values", "first"), [([1.0, 1.0, 2.0, 2.0], [1, 1, 0, 0]), ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1])]
)
def test_a_difference_without_spread_or_without_a_group_has_no_interval(values, first):
    found = difference_of_means(np.array(values), np.array(first, bool), Clusters("abcd", FEW))
    assert found.value == pytest.approx(-1.0) if 0 in first else math.isnan(found.value)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_one_value_in_a_group_still_counts_as_two_for_students_t(rows):
    """With one degree of freedom Student's t is Cauchy's: 12.7 errors to each side, times √2."""
    _, values, _ = rows
    first = np.arange(45) == 7
    found = difference_of_means(values, first, Clusters(np.arange(45), FEW))
    _, error = difference(values, first, np.arange(45))
    assert found.value - found.low >= math.tan(0.475 * math.pi) * math.sqrt(2) * error * (1 - 1e-9)


def test_students_t_with_one_and_two_degrees_has_closed_forms():
    assert student_t(0.95, 1) == pytest.approx(math.tan(0.475 * math.pi))
    assert student_t(0.9, 2) == pytest.approx(0.9 * math.sqrt(2 / (1 - 0.81)))
    for t in (3.0, -3.0):
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(3) / math.pi)
        assert student_p(t, 2) == pytest.approx(1 - 3 / math.sqrt(11))


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([0.0, 10.0], (0.25, 9.75)),
        ([0.0, 10.0, math.nan, math.inf], (0.25, 9.75)),
        ([5.0, math.nan, math.nan], (math.nan, math.nan)),
        ([], (math.nan, math.nan)),
    ],
)
def test_an_interval_needs_half_of_its_draws(draws, expected):
    found = Clusters("ab", Resampling(level=0.95)).interval(np.array(draws))
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("wrong", [{"reps": -1}, {"reps": MOST_REPS + 1}, {"level": 0.0}, {"level": 1.0}])
def test_bad_settings_are_refused_and_the_ends_are_not(wrong):
    with pytest.raises(UserInputError, match=f"got {next(iter(wrong.values()))}"):
        Resampling(**wrong)
    assert (Resampling(reps=0).reps, Resampling(reps=MOST_REPS).reps) == (0, MOST_REPS)
