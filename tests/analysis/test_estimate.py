"""Intervals: seeded, clustered by prompt, equal to plain loops, honest about what is missing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orderlens.analysis.estimate import BinaryRanks, Clusters, Resampling, mean, means, median
from orderlens.errors import UserInputError

FEW = Resampling(reps=40, seed=3)


def resampled_rows(clusters):
    """Yield the row numbers of each resample, the slow way."""
    for counts in clusters.resamples():
        for row in counts:
            yield np.concatenate(
                [np.repeat(np.flatnonzero(clusters.codes == c), int(k)) for c, k in enumerate(row)]
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
    monkeypatch.setattr("orderlens.analysis.estimate._PIECE", 60)
    monkeypatch.setattr("orderlens.analysis.estimate._CACHED", 0)
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


def test_bad_settings_are_refused():
    with pytest.raises(UserInputError, match="got -1"):
        Resampling(reps=-1)
    with pytest.raises(UserInputError, match="level"):
        Resampling(level=1.0)
