"""Text metrics: worked examples, many sequences against one at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sps

from orderlens.errors import UserInputError
from orderlens.metrics import cut_at_eos, distinct_n, eos_fraction, length_matched_distinct_n, token_entropy
from orderlens.metrics.segments import Segments
from orderlens.metrics.text import segment_distinct_n, segment_token_entropy


def test_worked_examples():
    assert distinct_n(list("abcabc"), 3) == 0.75
    assert distinct_n("aaaa", 3) == 0.5
    assert math.isnan(distinct_n([1, 2], 3))
    assert distinct_n([1, 2, 0, 3, 0, 0], 3, eos_ids={0}) == 1.0


def test_length_matched_cuts_to_the_shortest():
    long, short = [1, 2, 3, 1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 9, 9]
    assert distinct_n(long, 3) == pytest.approx(3 / 7)
    assert length_matched_distinct_n([long, short], 3, eos_ids={9}) == [1.0, 1.0]
    assert length_matched_distinct_n([], 3) == []


def test_eos():
    assert eos_fraction([5, 0, 7, 0], {0}) == 0.5
    assert math.isnan(eos_fraction([], {0}))
    assert cut_at_eos([5, 6, 0, 7], {0}) == [5, 6]
    assert cut_at_eos([5, 6], {0}) == [5, 6]


def test_token_entropy():
    assert token_entropy([1, 1, 2, 2]) == pytest.approx(math.log(2))
    assert token_entropy([4, 4, 4]) == 0.0
    assert math.isnan(token_entropy([0], {0}))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=20), min_size=1, max_size=6), st.integers(1, 4))
def test_many_sequences_equal_the_definition(sequences, n):
    segments = Segments.of_lengths([len(s) for s in sequences])
    flat = np.array([t for s in sequences for t in s], np.int64)
    grams = [[tuple(s[i : i + n]) for i in range(len(s) - n + 1)] for s in sequences]
    expected = [len(set(g)) / len(g) if g else np.nan for g in grams]
    np.testing.assert_allclose(segment_distinct_n(flat, segments, n), expected)
    entropy = [sps.entropy(np.unique(s, return_counts=True)[1]) if s else np.nan for s in sequences]
    np.testing.assert_allclose(segment_token_entropy(flat, segments), entropy, atol=1e-12)


def test_huge_token_ids_do_not_collide():
    ids = [2**31 - 1, 2**31 - 2, 2**31 - 1, 2**31 - 2, 2**31 - 1, 2**31 - 2]
    assert distinct_n(ids, 4) == pytest.approx(2 / 3)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_first_token_of_an_n_gram_counts_however_large_ids_are(n):
    """Written side by side, four ids of 31 bits leave no room for the first one in 64 bits."""
    ids = [1, 7, 8, 9, 6, 2, 7, 8, 9, 6, 2**31 - 1, 1, 7, 8, 9, 6]
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    assert distinct_n(ids, n) == pytest.approx(len(set(grams)) / len(grams))


def test_nonsense_is_refused():
    with pytest.raises(UserInputError, match="n ≥ 1, got 0"):
        distinct_n([1, 2], 0)
    with pytest.raises(UserInputError, match="shape"):
        distinct_n([[1, 2]], 1)
