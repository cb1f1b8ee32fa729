"""Paired statistics against numpy, one resample at a time."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orderlens.analysis.frames import (
    Paired,
    mean_difference,
    rank_rows,
    side_by_side,
    stack,
    wide_of,
)
from orderlens.metrics.estimate import Resampling, weighted_medians


@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_weighted_medians_are_medians_of_the_repeated_rows(rows, seed):
    values = np.array(rows)
    counts = np.random.default_rng(seed).integers(0, 4, (5, len(rows))).astype(float)
    found = weighted_medians(values, counts)
    for row, weights in zip(found, counts.astype(int), strict=True):
        repeated = np.repeat(values, weights, axis=0)
        expected = np.median(repeated, axis=0) if len(repeated) else np.full(3, np.nan)
        np.testing.assert_allclose(row, expected)


def test_undefined_entries_do_not_count_in_a_median():
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    found = weighted_medians(values, np.ones((1, 3)))
    assert found[0, 0] == 2.0
    assert math.isnan(found[0, 1])


def test_the_interval_of_a_paired_difference_ignores_what_prompts_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, 60)
    wide = pd.DataFrame({"a": shared + 1 + rng.normal(0, 0.1, 60), "b": shared})
    table = Paired.of(wide, Resampling(200))
    found = table.of_means(lambda m: stack(m[:, 0] - m[:, 1]))[0]
    assert found.value == pytest.approx(float((wide["a"] - wide["b"]).mean()))
    assert 0.9 < found.low < found.value < found.high < 1.1
    assert found.n == 60


def test_means_skip_undefined_entries_of_their_own_column():
    wide = pd.DataFrame({"a": [1.0, np.nan, 3.0], "b": [1.0, 1.0, 4.0]})
    cells = Paired.of(wide, Resampling(20)).of_means(lambda m: m)
    assert [cell.value for cell in cells] == [2.0, 2.0]


def test_without_prompts_there_is_only_a_reason():
    cell = Paired.of(pd.DataFrame({"a": []}), Resampling(20)).of_means(lambda m: m, "nothing here")[0]
    assert not cell.is_defined
    assert cell.why == "nothing here"


def test_rank_rows_are_scipys_spearman():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 4, (2, 6, 8)).astype(float)
    expected = [stats.spearmanr(a, b)[0] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(rank_rows(x, y), expected)


def test_rank_rows_of_a_constant_or_an_undefined_row_are_undefined():
    x = np.array([[1.0, 1.0, 1.0], [1.0, np.nan, 2.0]])
    assert np.isnan(rank_rows(x, np.array([[1.0, 2.0, 3.0]] * 2))).all()


def test_wide_tables_join_runs_and_name_columns():
    frame = pd.DataFrame(
        {
            "run": ["generate", "sweep"],
            "prompt": [4, 4],
            "order": ["random", "random"],
            "temperature": [0.0, 0.5],
            "var": [1.0, 2.0],
        }
    )
    wide = wide_of(frame, "var", ("order", "temperature"))
    assert wide.shape == (1, 2)
    assert list(wide.columns) == ["random@0", "random@0.5"]


def test_prompts_of_one_name_with_other_texts_stay_apart():
    """A study numbers prompts by task, id and text; what it keeps apart no finding may average."""
    rows = [(0, "a", "max-prob", 1.0), (1, "a", "max-prob", 3.0), (0, "a", "random", 5.0)]
    frame = pd.DataFrame(rows, columns=["prompt", "sample_id", "order", "var"]).assign(task=None)
    wide = wide_of(frame, "var")
    assert wide["max-prob"].tolist() == [1.0, 3.0]
    assert wide["random"].iloc[0] == 5.0
    assert math.isnan(wide["random"].iloc[1])


def test_seeds_of_one_order_are_averaged_before_prompts_are_compared():
    rows = [(0, "random", 0.0, 1.0), (0, "random", 1.0, 2.0), (1, "random", 0.0, 4.0), (1, "x", None, 7.0)]
    wide = wide_of(pd.DataFrame(rows, columns=["prompt", "order", "seed", "var"]), "var")
    assert wide["random"].tolist() == [1.5, 4.0]
    assert Paired.of(wide, Resampling(0)).mean("random").value == pytest.approx(2.75)


def test_differences_and_means_of_columns_that_are_not_there_say_so():
    table = Paired.of(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, np.nan]}), Resampling(30))
    assert table.mean("c").why == "c was not run, or is undefined for every text"
    assert table.difference("a", "c").why == "a and c were not both run"
    assert table.difference("a", "b").value == pytest.approx(1.5 - 3.0)
    assert table.mean("a").n == 2


def test_picked_columns_keep_prompts_and_sequence():
    table = Paired.of(pd.DataFrame({"a": [1.0, 2.0], "b": [5.0, 7.0]}, index=["x", "y"]), Resampling(20))
    picked = table.pick("b", "a")
    assert picked.columns == ("b", "a")
    assert [cell.value for cell in picked.of_means(lambda m: m)] == [6.0, 1.5]
    assert table.has("a", "b")
    assert not table.has("a", "c")


def test_seeds_are_averaged_side_by_side():
    frame = pd.DataFrame(
        {"prompt": ["a", "a", "a"], "order": ["random", "random", "forced-ar"], "mean": [-1.0, -3.0, -1.5]}
    )
    wide = side_by_side(frame, "mean")
    assert wide.shape == (1, 2)
    assert wide["random"].iloc[0] == -2.0


def test_the_mean_difference_counts_only_prompts_with_both():
    cell = mean_difference(pd.Series([1.0, np.nan, 3.0], index=list("abc")), Resampling(20), "none")
    assert (cell.value, cell.n) == (2.0, 2)
    assert mean_difference(pd.Series([np.nan]), Resampling(20), "none").why == "none"
