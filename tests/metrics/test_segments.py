"""The flat segment operations against obvious per-segment loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.metrics.segments import Segments, divide, earlier_and_smaller

LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=12)


def cut(values, segments):
    return [values[a:b] for a, b in zip(segments.bounds[:-1], segments.bounds[1:], strict=True)]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(0, 2**31))
def test_reductions_sorts_and_quantiles_match_numpy(lengths, seed):
    segments = Segments.of_lengths(lengths)
    values = np.random.default_rng(seed).normal(size=segments.n_rows)
    parts = cut(values, segments)
    np.testing.assert_allclose(segments.total(values), [p.sum() for p in parts], atol=1e-12)
    np.testing.assert_allclose(
        segments.mean(values), [p.mean() if len(p) else np.nan for p in parts], atol=1e-12
    )
    ordered = segments.sort(values)
    for part, mine in zip(parts, cut(ordered, segments), strict=True):
        np.testing.assert_array_equal(mine, np.sort(part))
    for q in (0.0, 0.05, 0.5, 1.0):
        expected = [np.quantile(p, q) if len(p) else np.nan for p in parts]
        np.testing.assert_allclose(segments.quantile(ordered, q), expected, atol=1e-12)


def test_sort_of_equal_lengths_and_of_integers_takes_the_same_result():
    rng = np.random.default_rng(0)
    equal = Segments.of_lengths([32] * 9)
    values = rng.normal(size=equal.n_rows)
    np.testing.assert_array_equal(equal.sort(values), np.sort(values.reshape(9, 32), axis=1).ravel())
    uneven = Segments.of_lengths([3, 0, 5, 1])
    whole = rng.integers(0, 4, uneven.n_rows)
    np.testing.assert_array_equal(
        np.concatenate([np.sort(p) for p in cut(whole, uneven)]), uneven.sort(whole)
    )


def test_runs_follow_every_key():
    a = np.array([0, 0, 0, 1, 1, 1])
    b = np.array([5, 5, 6, 6, 6, 7])
    assert Segments.of_changes(a, b).bounds.tolist() == [0, 2, 3, 5, 6]
    assert Segments.of_changes(np.zeros(0)).count == 0


def test_kept_can_leave_empty_segments():
    segments = Segments.of_lengths([2, 2, 1])
    kept = segments.filter(np.array([True, False, False, False, True]))
    assert kept.lengths.tolist() == [1, 0, 1]
    assert np.isnan(kept.mean(np.array([1.0, 2.0]))[1])
    assert kept.total(np.array([1.0, 2.0])).tolist() == [1.0, 0.0, 2.0]


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(0, 2**31))
def test_inversion_counts_match_the_double_loop(lengths, seed):
    rng = np.random.default_rng(seed)
    paths = [rng.permutation(n) for n in lengths]
    expected = [sum(p[u] < p[t] for u in range(t)) for p in paths for t in range(len(p))]
    flat = np.concatenate([*paths, np.zeros(0, np.int64)]).astype(np.int64)
    segments = Segments.of_lengths(lengths)
    assert earlier_and_smaller(flat, segments).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orderlens.metrics.segments._SHORT", 20)  # longer ones go digit by digit
        assert earlier_and_smaller(flat, segments).tolist() == expected


@pytest.mark.parametrize("length", [255, 256, 700])
def test_inversion_counts_of_long_segments(length):
    path = np.random.default_rng(0).permutation(length)
    expected = [int((path[:t] < path[t]).sum()) for t in range(length)]
    assert earlier_and_smaller(path, Segments.one(length)).tolist() == expected
    backwards = np.arange(length)[::-1]
    assert earlier_and_smaller(backwards, Segments.one(length)).max() == 0
    assert earlier_and_smaller(backwards[::-1], Segments.one(length)).tolist() == list(range(length))


@pytest.mark.parametrize("gap", [0, 3])
def test_text_order_sorts_positions_with_and_without_gaps(gap):
    rng = np.random.default_rng(1)
    segments = Segments.of_lengths([5, 0, 8])
    paths = [rng.permutation(5) * (gap + 1) + 7, rng.permutation(8) * (gap + 1) + 3]
    flat = np.concatenate(paths)
    rows = segments.text_order(flat)
    assert flat[rows].tolist() == sorted(paths[0].tolist()) + sorted(paths[1].tolist())


def test_text_order_survives_a_repeated_position():
    for path in ([4, 4, 6], [6, 4, 4], [4, 6, 6], [5, 5, 5]):
        rows = Segments.one(3).text_order(np.array(path))
        assert sorted(rows.tolist()) == [0, 1, 2], "every row once"
        assert np.array(path)[rows].tolist() == sorted(path)
    assert Segments.of_lengths([0, 0]).text_order(np.zeros(0, np.int64)).tolist() == []


def test_division_by_zero_is_undefined():
    np.testing.assert_array_equal(divide([1, 0], [0, 2]), [np.nan, 0.0])
