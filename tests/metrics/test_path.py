"""Path statistics: worked examples, the law of total variance, many traces against one at a time."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats as sps
from scipy.special import log_ndtr

from orderlens.errors import UserInputError
from orderlens.metrics import block_variance, path_stats
from orderlens.metrics.path import (
    argmax_accuracy,
    block_gini,
    segment_jensen_loss,
    segment_lowest,
    segment_path_stats,
)
from orderlens.metrics.segments import Segments


def g(y, sigma):
    """log Φ((y − log(1 − e^y))/(σ√2)), written out."""
    return log_ndtr((y - np.log(-np.expm1(y))) / (sigma * math.sqrt(2)))


def test_variance_divides_by_n():
    assert path_stats(np.log([0.5, 0.25])).var == pytest.approx(0.12011325347955035, abs=1e-14)
    assert path_stats(np.log([0.9, 0.9, 0.9, 0.1])).var == pytest.approx(0.9052117206094362, abs=1e-14)
    four = path_stats(np.log([0.5, 0.25, 0.125, 0.5]))
    assert (four.var, four.gini) == pytest.approx((0.3303114470687634, 0.25), abs=1e-14)


def test_every_field_against_numpy_and_scipy():
    rng = np.random.default_rng(0)
    y = -rng.gamma(0.5, size=96)
    positions = rng.permutation(96)
    blocks = np.repeat([0, 1, 2], 32)
    mine = path_stats(y, positions, blocks, reference=-0.4)
    text = y[np.argsort(positions)]
    expected = {
        "n": 96,
        "mean": y.mean(),
        "var": y.var(),
        "log_prob": y.sum(),
        "min": y.min(),
        "q05": np.quantile(y, 0.05),
        "bottleneck_rate": np.mean(np.exp(y) < 0.5),
        "mad": sps.median_abs_deviation(y),
        "abs_delta_reveal": np.abs(np.diff(y)).sum(),
        "sq_delta_reveal": (np.diff(y) ** 2).sum(),
        "abs_delta_text": np.abs(np.diff(text)).sum(),
        "sq_delta_text": (np.diff(text) ** 2).sum(),
        "var_about": np.mean((y + 0.4) ** 2),
    }
    for name, value in expected.items():
        assert getattr(mine, name) == pytest.approx(value, abs=1e-10), name
    assert mine.gini_block0 == pytest.approx(path_stats(y[:32]).gini, abs=1e-12)
    assert mine.gini_mean == pytest.approx(
        np.mean([path_stats(y[b : b + 32]).gini for b in (0, 32, 64)]), abs=1e-12
    )


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.5, 1.0])
def test_jensen_loss_is_exact(sigma):
    y = np.log([0.9, 0.4, 0.7, 0.05])
    expected = 4 * g(y.mean(), sigma) - g(y, sigma).sum()
    assert path_stats(y).jensen_loss[sigma] == pytest.approx(expected, rel=1e-10)
    assert expected > 0  # below σ₀ every uneven profile loses
    assert path_stats(np.full(5, -0.3)).jensen_loss[sigma] == pytest.approx(0.0, abs=1e-12)


def test_certain_steps_lose_nothing():
    assert path_stats([0.0, 0.0]).jensen_loss[1.0] == 0.0
    assert path_stats([0.0, -1.0]).jensen_loss[1.0] == pytest.approx(
        2 * g(-0.5, 1.0) - g(-1.0, 1.0), rel=1e-10
    )


def test_variance_splits_into_within_and_between_blocks():
    y = -np.random.default_rng(3).gamma(0.4, size=128)
    equal = np.repeat(np.arange(4), 32)
    within, between = block_variance(y, equal)
    parts = y.reshape(4, 32)
    assert within == pytest.approx(parts.var(axis=1).mean(), abs=1e-12)
    assert between == pytest.approx(parts.mean(axis=1).var(), abs=1e-12)
    assert within + between == pytest.approx(y.var(), abs=1e-12)
    uneven = np.repeat([0, 1, 2], [20, 32, 76])
    assert sum(block_variance(y, uneven)) == pytest.approx(y.var(), abs=1e-12)


def test_one_reveal_has_variance_zero_and_none_has_no_statistics():
    one = path_stats([-0.2])
    assert (one.n, one.var, one.abs_delta_reveal, one.gini) == (1, 0.0, 0.0, 0.0)
    none = path_stats([])
    assert none.n == 0
    assert all(math.isnan(v) for k, v in asdict(none).items() if isinstance(v, float) and k != "n")
    assert math.isnan(none.jensen_loss[0.5])
    assert all(math.isnan(v) for v in block_variance([], []))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_an_undefined_reveal_makes_the_trace_undefined_without_a_warning(bad):
    stats = path_stats([-0.1, bad, -0.3])
    assert stats.n == 3
    assert math.isnan(stats.mean)
    assert math.isnan(stats.var)
    assert math.isnan(stats.gini)
    assert math.isnan(stats.jensen_loss[0.1])


def test_exactly_one_half_is_no_bottleneck_in_either_precision():
    for kind in (np.float32, np.float64):
        y = np.log(np.array([0.5, 0.499, 0.501], kind))
        stats = segment_path_stats(y, Segments.one(3))
        assert stats["bottleneck_rate"][0] == pytest.approx(1 / 3)


def test_many_traces_equal_one_at_a_time():
    rng = np.random.default_rng(5)
    lengths = [128, 1, 0, 17, 128, 40]
    segments = Segments.of_lengths(lengths)
    y = -rng.gamma(0.5, size=segments.n_rows)
    y[140] = np.nan
    positions = np.concatenate([rng.permutation(n) + 32 for n in lengths])
    blocks = np.concatenate([np.arange(n) // 32 for n in lengths])
    table = segment_path_stats(y, segments, positions)
    block0, mean = block_gini(y, segments, blocks)
    loss = segment_jensen_loss(y, segments, 0.5)
    for i, (a, b) in enumerate(zip(segments.bounds[:-1], segments.bounds[1:], strict=True)):
        one = path_stats(y[a:b], positions[a:b], blocks[a:b])
        for name, column in table.items():
            np.testing.assert_allclose(column[i], getattr(one, name), atol=1e-12, err_msg=name)
        np.testing.assert_allclose([block0[i], mean[i]], [one.gini_block0, one.gini_mean], atol=1e-12)
        np.testing.assert_allclose(loss[i], one.jensen_loss[0.5], atol=1e-12)


def test_nonsense_is_refused_by_name():
    with pytest.raises(UserInputError, match=r"≤ 0, got 0\.5"):
        path_stats([0.5])
    with pytest.raises(UserInputError, match="shape"):
        path_stats([[-0.5]])
    with pytest.raises(UserInputError, match="positions has shape"):
        path_stats([-0.5], [1, 2])


def test_argmax_accuracy():
    assert argmax_accuracy([True, False, True, True]) == 0.75
    assert math.isnan(argmax_accuracy([]))


def test_the_weakest_part_against_plain_loops():
    rng = np.random.default_rng(3)
    lengths = [5, 40, 16, 1, 0, 17]
    y, segments = -rng.gamma(0.5, size=sum(lengths)), Segments.of_lengths(lengths)
    positions = np.concatenate([rng.permutation(n) for n in lengths])
    decile, group = segment_lowest(y, segments, positions)
    start = 0
    for place, n in enumerate(lengths):
        own, at = y[start : start + n].tolist(), positions[start : start + n].tolist()
        start += n
        if not n:
            assert np.isnan(decile[place])
            assert np.isnan(group[place])
            continue
        text = [value for _, value in sorted(zip(at, own, strict=True))]
        low = sorted(own)[: math.ceil(n / 10)]
        windows = [text[i : i + 16] for i in range(max(1, n - 15))]
        assert decile[place] == pytest.approx(sum(low) / len(low), abs=1e-12)
        assert group[place] == pytest.approx(min(sum(w) / len(w) for w in windows), abs=1e-12)
    y[7] = -np.inf
    assert np.isnan(segment_lowest(y, segments, positions)[0][1])
