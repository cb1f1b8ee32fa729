"""Bits per byte against plain sums, for texts and seeds that lack a value too."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis.tables_policies import NO_BYTES, NO_LIKELIHOOD, TextBits
from orderlens.metrics.estimate import Resampling

LOG2 = math.log(2)
HOW = Resampling(reps=40)


def traces(rows):
    """Rows: prompt, seed, log P in bits, bytes, kind."""
    frame = pd.DataFrame(rows, columns=["prompt", "seed", "bits", "n_bytes", "likelihood"])
    return frame.assign(log_prob=-frame["bits"] * LOG2)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["exact", "exact"], "exact"),
        (["exact", "estimate"], "estimate"),
        (["estimate", "none"], "none"),
        (["exact", None], "exact"),
        ([None, None], "none"),
    ],
)
def test_the_weakest_kind_of_any_trace_is_the_policys(kinds, expected):
    rows = [(f"p{place}", None, 4.0, 2, kind) for place, kind in enumerate(kinds)]
    assert TextBits.of(traces(rows)).kind == expected


def test_texts_by_seeds_whatever_the_sequence_of_the_rows():
    rows = [
        ("b", 1.0, 3.0, 6, "estimate"),
        ("a", 0.0, 1.0, 5, "estimate"),
        ("b", 0.0, 4.0, 6, "estimate"),
        ("a", 1.0, 2.0, 5, "estimate"),
    ]
    bits = TextBits.of(traces(rows))
    assert bits.prompts == ["b", "a"]
    assert bits.n_seeds == 2
    assert bits.n_bytes_T.tolist() == [6.0, 5.0]
    np.testing.assert_allclose(np.sort(-bits.log_prob_TK / LOG2, axis=1), [[3.0, 4.0], [1.0, 2.0]])
    expected = [-math.log2((2**-3 + 2**-4) / 2), -math.log2((2**-1 + 2**-2) / 2)]
    assert bits.bits() == pytest.approx(expected)
    assert bits.per_byte(HOW).value == pytest.approx(sum(expected) / 11)


def test_orders_without_a_seed_have_one_column():
    bits = TextBits.of(traces([("a", None, 3.0, 2, "exact"), ("b", np.nan, 5.0, 2, "exact")]))
    assert bits.n_seeds == 1
    assert bits.per_byte(HOW).value == pytest.approx(2.0)


@pytest.mark.parametrize("without", [0, 1, 2])
def test_a_seed_left_out_is_not_counted_in_the_mean_either(without):
    p = np.array([[0.5, 0.25, 0.1], [0.9, 0.01, 0.3]])
    bits = TextBits("estimate", np.log(p), np.ones(2), ["a", "b"])
    kept = np.delete(p, without, axis=1)
    assert bits.bits(without) == pytest.approx(-np.log2(kept.mean(axis=1)))


def test_probabilities_far_below_the_smallest_float_do_not_vanish():
    bits = TextBits("estimate", np.array([[-2000.0, -2000.0 - LOG2]]), np.ones(1), ["a"])
    assert bits.bits()[0] == pytest.approx(2000 / LOG2 - math.log2(0.75))


@pytest.mark.parametrize(
    ("log_prob", "n_bytes"),
    [([-1.0, np.nan], 4.0), ([-1.0, -np.inf], 4.0), ([-1.0, -2.0], 0.0), ([-1.0, -2.0], np.nan)],
)
def test_a_text_that_lacks_a_seed_or_its_bytes_is_left_out_and_counted(log_prob, n_bytes):
    table = np.array([[-3.0, -4.0], log_prob, [-5.0, -6.0]])
    whole = TextBits("estimate", table, np.array([3.0, n_bytes, 5.0]), ["a", "b", "c"])
    rest = TextBits("estimate", table[[0, 2]], np.array([3.0, 5.0]), ["a", "c"])
    assert whole.usable.tolist() == [1.0, 0.0, 1.0]
    found, expected = whole.per_byte(HOW), rest.per_byte(HOW)
    assert found.value == pytest.approx(expected.value)
    assert (found.n, found.n_undefined) == (2, 1)
    assert whole.over_seeds(0.9).value == pytest.approx(expected.value)
    assert whole.over_seeds(0.9).n == 2


def test_the_interval_over_texts_is_the_loop_over_resamples():
    rng = np.random.default_rng(0)
    log_prob, n_bytes = -rng.gamma(9.0, 2.0, (7, 1)), rng.integers(3, 30, 7).astype(float)
    bits = TextBits("exact", log_prob, n_bytes, list(range(7)))
    found = bits.per_byte(Resampling(reps=60, seed=4, level=0.8))
    from orderlens.metrics.estimate import Clusters

    draws = []
    for counts in Clusters(range(7), Resampling(reps=60, seed=4, level=0.8)).resamples():
        for row in counts:
            rows = np.repeat(np.arange(7), row.astype(int))
            draws.append(-log_prob[rows, 0].sum() / LOG2 / n_bytes[rows].sum())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.1, 0.9])))


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_the_interval_over_seeds_is_the_jackknife(n_seeds):
    rng = np.random.default_rng(n_seeds)
    p = rng.uniform(0.01, 0.9, (4, n_seeds))
    n_bytes = np.array([2.0, 3.0, 5.0, 7.0])
    bits = TextBits("estimate", np.log(p), n_bytes, list("abcd"))

    def rate(columns):
        return -np.log2(p[:, columns].mean(axis=1)).sum() / 17

    every = list(range(n_seeds))
    pseudo = [n_seeds * rate(every) - (n_seeds - 1) * rate([k for k in every if k != out]) for out in every]
    error = np.std(pseudo, ddof=1) / math.sqrt(n_seeds)
    from scipy import stats

    half = stats.t.ppf(0.95, n_seeds - 1) * error
    found = bits.over_seeds(0.9)
    assert (found.value, found.low, found.high) == pytest.approx(
        (rate(every), rate(every) - half, rate(every) + half)
    )


@pytest.mark.parametrize(
    ("kind", "n_bytes", "per_byte", "over_seeds"),
    [
        ("none", 3.0, NO_LIKELIHOOD, NO_LIKELIHOOD),
        ("exact", 3.0, None, "nothing is drawn"),
        ("estimate", np.nan, NO_BYTES, NO_BYTES),
        ("exact", np.nan, NO_BYTES, "nothing is drawn"),
    ],
)
def test_what_has_no_number_says_why(kind, n_bytes, per_byte, over_seeds):
    bits = TextBits(kind, np.log([[0.5, 0.5], [0.5, 0.5]]), np.full(2, n_bytes), ["a", "b"])
    assert bits.per_byte(HOW).why == per_byte
    assert bits.over_seeds(0.95).why == over_seeds
    if per_byte == NO_BYTES:
        assert bits.per_byte(HOW).n_undefined == 2
