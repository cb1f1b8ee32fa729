"""Intervals: seeded, clustered by prompt, equal to plain loops, honest about what is missing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import (
    MAX_REPS,
    Clusters,
    Resampling,
    difference_of_means,
    least_mean,
    mean,
    means,
    median,
    student_p,
    student_t,
)
from orderlens.metrics.significance import BinaryRanks

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


def mean_and_pull(values, rows, prompts):
    """Mean of some rows, and what each prompt adds to its error."""
    middle = values[rows].mean()
    pull = np.where(rows, values - middle, 0.0) / rows.sum()
    return middle, np.array([pull[prompts == name].sum() for name in np.unique(prompts)])


@pytest.mark.parametrize("skew", [0.3, 2.0])
def test_a_difference_of_means_equals_the_loop_over_resamples(rows, skew):
    prompts, values, first = rows
    values = np.exp(skew * values)
    clusters = Clusters(prompts, FEW)
    noise = keyed_generator(FEW.seed, "bootstrap noise", 15).standard_normal((40, 15), np.float32)
    value, low, high, pulls = [], [], [], []
    for group in (first, ~first):
        middle, pull = mean_and_pull(values, group, prompts)
        of_prompt = [values[group & (prompts == name)] for name in np.unique(prompts)]
        logs = [math.log(part.mean()) for part in of_prompt if len(part)]
        width = np.std(logs) * len(logs) ** -0.2
        t = []
        for sample, row in zip(resampled_rows(clusters), noise, strict=True):
            names = np.repeat(np.arange(len(sample) // 3), 3)  # a prompt that is drawn twice counts as two
            noisy = values[sample] * np.exp(width * row[clusters.codes[sample]] - width**2 / 2)
            again, spread = mean_and_pull(noisy, group[sample], names)
            t.append((again - middle) / np.linalg.norm(spread))
        left, right = percentile(t)
        value.append(middle)
        low.append(right * np.linalg.norm(pull))
        high.append(-left * np.linalg.norm(pull))
        pulls.append(pull)
    r = pulls[0] @ pulls[1] / np.linalg.norm(pulls[0]) / np.linalg.norm(pulls[1])
    found = difference_of_means(values, first, clusters)
    down = math.sqrt(low[0] ** 2 + high[1] ** 2 - 2 * r * low[0] * high[1])
    up = math.sqrt(high[0] ** 2 + low[1] ** 2 - 2 * r * high[0] * low[1])
    assert (found.value, found.n) == (pytest.approx(value[0] - value[1]), 45)
    assert found.low == pytest.approx(found.value - down, rel=1e-5)
    assert found.high == pytest.approx(found.value + up, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "first"), [([1.0, 1.0, 2.0, 2.0], [1, 1, 0, 0]), ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1])]
)
def test_a_difference_without_spread_or_without_a_group_has_no_interval(values, first):
    found = difference_of_means(np.array(values), np.array(first, bool), Clusters("abcd", FEW))
    assert found.value == pytest.approx(-1.0) if 0 in first else math.isnan(found.value)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(("n", "has_interval"), [(1, False), (4, False), (7, False), (8, True)])
def test_a_group_of_few_prompts_has_no_interval_and_a_reason(rows, n, has_interval):
    first, clusters = np.arange(45) < n, Clusters(np.arange(45), FEW)
    difference = difference_of_means(rows[1], first, clusters)
    for found in (difference, *BinaryRanks.of(rows[1], first).estimates(clusters)):
        assert math.isfinite(found.value)
        assert math.isfinite(found.low) == has_interval
        assert found.why == (None if has_interval else "no interval: a group has fewer than 8 prompts")


def test_repeated_rows_of_a_prompt_do_not_make_a_group_large(rows):
    first = np.arange(45) < 21  # three rows of each of seven prompts
    assert math.isnan(difference_of_means(rows[1], first, Clusters(rows[0], FEW)).low)


def test_the_least_mean_allows_for_the_choice_of_the_column():
    """With one column it is Student's interval but for the upper end; further columns move only that."""
    values = np.random.default_rng(0).normal(size=(60, 3)) + np.array([0.0, 0.1, 50.0])
    ends = [stats.ttest_1samp(column, 0).confidence_interval(0.95) for column in values.T]
    upper = [stats.ttest_1samp(column, 0).confidence_interval(1 - 0.1 / 3) for column in values.T]
    found = least_mean(values, 0.95)
    assert (found.value, found.n) == (pytest.approx(values.mean(axis=0).min()), 60)
    assert found.low == pytest.approx(min(end.low for end in ends))
    assert found.high == pytest.approx(min(end.high for end in upper))
    values[1:, 2] = np.nan
    assert math.isnan(least_mean(values, 0.95).low), "one value has no spread"


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


@pytest.mark.parametrize("wrong", [{"reps": -1}, {"reps": MAX_REPS + 1}, {"level": 0.0}, {"level": 1.0}])
def test_bad_settings_are_refused_and_the_ends_are_not(wrong):
    with pytest.raises(UserInputError, match=f" is {next(iter(wrong.values()))}; it must be"):
        Resampling(**wrong)
    assert (Resampling(reps=0).reps, Resampling(reps=MAX_REPS).reps) == (0, MAX_REPS)
