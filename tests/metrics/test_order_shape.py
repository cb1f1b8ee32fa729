"""Order shape: worked examples, random baselines, fast against obvious."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from orderlens.errors import UserInputError
from orderlens.metrics import (
    agreement,
    concordance,
    eos_cascade,
    frontier_distance,
    global_arness,
    local_arness,
    rank_correlation,
    spearman_l2r,
)
from orderlens.metrics.order_shape import (
    masks_to_the_left,
    segment_concordance,
    segment_eos_cascade,
    segment_frontier_distance,
    segment_local_arness,
    segment_spearman_l2r,
)
from orderlens.metrics.segments import Segments

PATHS = st.lists(st.integers(0, 40), min_size=0, max_size=40, unique=True)


def test_worked_examples():
    assert spearman_l2r([0, 1, 3, 2]) == pytest.approx(0.8)  # steps 1, 2, 4, 3
    assert local_arness([0, 1, 3, 2], 1) == pytest.approx(1 / 3)
    assert global_arness([0, 1, 3, 2], 1) == pytest.approx(3 / 4)
    assert concordance([0, 1, 3, 2]) == pytest.approx(5 / 6)
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505139, abs=1e-14)


def test_left_to_right_and_back():
    path = np.arange(32) + 100
    for measure in (spearman_l2r, local_arness, global_arness, concordance):
        assert measure(path) == 1.0
    back = path[::-1]
    assert spearman_l2r(back) == -1.0
    assert (local_arness(back), global_arness(back), concordance(back)) == (0.0, 1 / 32, 0.0)


def test_too_short_is_undefined():
    for measure in (spearman_l2r, local_arness, concordance):
        assert math.isnan(measure([5]))
    assert math.isnan(global_arness([]))
    assert global_arness([5]) == 1.0
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


def test_random_baselines():
    rng = np.random.default_rng(0)
    paths = rng.permuted(np.tile(np.arange(8), (4000, 1)), axis=1).reshape(-1)
    segments = Segments.of_lengths([8] * 4000)
    harmonic = sum(1 / k for k in range(1, 9))
    leftmost = segments.mean(masks_to_the_left(paths, segments) == 0)
    assert leftmost.mean() == pytest.approx(harmonic / 8, abs=0.01)
    assert segment_concordance(paths, segments).mean() == pytest.approx(0.5, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(1, 3))
def test_against_the_definitions(path, k):
    n = len(path)
    if n > 1:
        assert spearman_l2r(path) == pytest.approx(sps.spearmanr(path, range(n)).statistic, abs=1e-10)
        pairs = [path[u] < path[t] for t in range(n) for u in range(t)]
        assert concordance(path) == pytest.approx(np.mean(pairs))
    windows = [path[t - k : t + 1] for t in range(k, n)]
    if windows:
        hits = [all(b == a + 1 for a, b in pairwise(w)) for w in windows]
        assert local_arness(path, k) == pytest.approx(np.mean(hits))
    if n:
        near = [sorted(path[t:]).index(path[t]) < k for t in range(n)]
        assert global_arness(path, k) == pytest.approx(np.mean(near))
    edge = min(path, default=0) - 1
    expected = [p - max([q for q in path[:t] if q < p], default=edge) for t, p in enumerate(path)]
    assert frontier_distance(path).tolist() == expected


def test_frontier_sees_the_prompt():
    assert frontier_distance([34, 33, 35]).tolist() == [2, 1, 1]
    assert frontier_distance([34, 33, 35], left_edge=31).tolist() == [3, 2, 1]


def test_eos_cascade():
    # content 0, EOS 7 6 5, content 1 2, EOS 4 3
    path = [0, 7, 6, 5, 1, 2, 4, 3]
    eos = [0, 1, 1, 1, 0, 0, 1, 1]
    cascade = eos_cascade(path, eos)
    assert (cascade.length, cascade.start, cascade.resume) == (3, 1.0, 4.0)
    rising = eos_cascade([0, 1, 2], [0, 1, 1])
    assert (rising.length, rising.start) == (1, 1.0)
    assert math.isnan(rising.resume)
    none = eos_cascade([0, 1], [0, 0])
    assert none.length == 0
    assert math.isnan(none.start)
    special = eos_cascade([0, 3, 2, 1, 4], [0, 1, 1, 0, 0], [1, 0, 0, 0, 1])
    assert special.resume == 4.0  # a special token is not content


@pytest.mark.parametrize(
    ("path", "eos", "length", "start", "resume"),
    [
        ([3, 2, 1, 0], "EEEE", 4, 0, None),
        ([3, 2, 0, 1], "EEcc", 2, 0, 2),
        ([0, 3, 2, 1], "cEEE", 3, 1, None),
        ([3, 2, 0, 5, 4, 1], "EEcEEc", 2, 0, 2),  # of two equal ones the first
        ([3, 0, 5, 4, 2, 1], "EcEEEc", 3, 2, 5),
        ([2, 3, 1, 0], "EEEc", 2, 1, 3),  # 2, 3 rises: the run starts anew
        ([1], "E", 1, 0, None),
        ([], "", 0, None, None),
    ],
)
def test_cascades_at_the_edges_of_a_path(path, eos, length, start, resume):
    found = eos_cascade(np.array(path, int), [letter == "E" for letter in eos])
    assert found.length == length
    for value, expected in ((found.start, start), (found.resume, resume)):
        assert value == expected if expected is not None else math.isnan(value)


@pytest.mark.parametrize("seed", range(5))
def test_cascades_equal_a_loop_over_steps(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(n) for n in (9, 1, 14, 6)]
    flags = [rng.random(len(path)) < 0.7 for path in parts]
    segments = Segments.of_lengths([len(path) for path in parts])
    eos = np.concatenate(flags)
    length, start, resume = segment_eos_cascade(np.concatenate(parts), eos, ~eos, segments)
    for place, (path, is_eos) in enumerate(zip(parts, flags, strict=True)):
        best, first = 0, math.nan
        for t in range(len(path)):
            stop = t
            while stop < len(path) and is_eos[stop] and (stop == t or path[stop] < path[stop - 1]):
                stop += 1
            if stop - t > best:
                best, first = stop - t, t
        later = [t for t in range(len(path)) if best and t >= first + best and not is_eos[t]]
        np.testing.assert_equal(
            [length[place], start[place], resume[place]], [best, first, later[0] if later else math.nan]
        )


def test_agreement_on_shared_positions():
    assert agreement([1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(1.0)
    assert agreement([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert agreement([1, 9, 2, 4, 3], [1, 2, 4, 3, 7]) == pytest.approx(1.0)
    assert math.isnan(agreement([1], [2]))


def test_many_paths_equal_one_at_a_time():
    rng = np.random.default_rng(2)
    lengths = [32, 0, 1, 7, 32, 2]
    segments = Segments.of_lengths(lengths)
    paths = [rng.permutation(n) + 10 * i for i, n in enumerate(lengths)]
    flat = np.concatenate(paths)
    eos = rng.random(len(flat)) < 0.5
    length, start, resume = segment_eos_cascade(flat, eos, ~eos, segments)
    for i, path in enumerate(paths):
        rows = slice(segments.bounds[i], segments.bounds[i + 1])
        np.testing.assert_allclose(segment_spearman_l2r(flat, segments)[i], spearman_l2r(path), atol=1e-12)
        np.testing.assert_allclose(segment_concordance(flat, segments)[i], concordance(path))
        np.testing.assert_allclose(segment_local_arness(flat, segments, 2)[i], local_arness(path, 2))
        assert segment_frontier_distance(flat, segments)[rows].tolist() == frontier_distance(path).tolist()
        assert masks_to_the_left(flat, segments)[rows].tolist() == [
            sorted(path[t:]).index(p) for t, p in enumerate(path)
        ]
        one = eos_cascade(path, eos[rows])
        np.testing.assert_allclose([length[i], start[i], resume[i]], [one.length, one.start, one.resume])


def test_nonsense_is_refused():
    with pytest.raises(UserInputError, match="k ≥ 1, got 0"):
        local_arness([1, 2], 0)
    with pytest.raises(UserInputError, match="undefined value"):
        spearman_l2r([1.0, np.nan])
    with pytest.raises(UserInputError, match="shape"):
        spearman_l2r([[1]])
