"""The corrected range on worlds whose truth is known: what its interval covers, and the size of its test.

A population of texts is scored once; its own range is the truth for samples drawn from it.
"""

from __future__ import annotations

import itertools
import math
import os
import sys

import numpy as np
import pytest
from scipy import stats

from orderlens import Sample, score
from orderlens.claims.checks import Check
from orderlens.common.rng import keyed_generator
from orderlens.metrics import coherence as module
from orderlens.metrics.coherence import agreement_p, order_range
from orderlens.metrics.estimate import Resampling
from orderlens.models.loading import load_model

ORDERS = "forced-ar,reverse-ar,random,max-prob"


def population(spec, n_texts=240, orders=ORDERS, length=8):
    """Return log P/n of texts that the model itself makes up, one column per order [S, O]."""
    model, rng = load_model(spec), np.random.default_rng(0)
    start, move, emit = (
        getattr(model.parameters, name) for name in ("initial_K", "transition_KK", "emission_KV")
    )
    samples = []
    for number in range(n_texts):
        state, tokens = rng.choice(len(start) - 1, p=start[:-1]), []
        for _ in range(4 + length):
            tokens.append(int(rng.choice(emit.shape[1], p=emit[state])))
            state = rng.choice(len(start) - 1, p=move[state, :-1] / move[state, :-1].sum())
        samples.append(Sample(str(number), tokens[:4], tokens[4:]))
    frame = score(model, samples, orders=orders, batch_size=64).samples().to_pandas()
    return frame.pivot_table(index="sample_id", columns="order", values="mean").to_numpy()


@pytest.fixture(scope="module")
def incoherent():
    return population("hmm:incoherence=0.5")


def outcomes(values, n, studies, draws, monkeypatch, seed=0):
    """Return how often the interval lies above, covers and lies below the truth, and the mean ratios."""
    monkeypatch.setattr(module, "DRAWS", draws)
    rng, truth = np.random.default_rng(seed), np.ptp(values.mean(axis=0))
    found = np.empty((studies, 4))
    for study in range(studies):
        drawn = values[rng.integers(len(values), size=n)]
        found[study] = *module._corrected(drawn, Resampling(seed=study)), np.ptp(drawn.mean(axis=0))
    above, below = found[:, 0] > truth + 1e-12, found[:, 2] < truth - 1e-12
    ratio = found[:, [1, 3]].mean(axis=0) / max(truth, 1e-12)
    return above.mean(), 1 - (above | below).mean(), below.mean(), *ratio


def worlds(values):
    """Return worlds with the noise of a real one: as it is, orders far apart in two shapes, and no range."""
    flat = values - values.mean(axis=0)
    one, half = np.array([0, 0, 0, -0.1]), np.array([0.03, 0.03, -0.03, -0.03])
    return {"as it is": values, "one far": flat + one, "halves": flat + half, "none": flat}


def test_the_interval_covers_the_truth(incoherent, monkeypatch):
    covered, too_large = [], []
    for values in worlds(incoherent).values():
        for n in (10, 30, 100):
            _, cover, _, ratio, plain = outcomes(values, n, 30, 199, monkeypatch)
            assert cover >= 0.8, n
            covered.append(cover)
            too_large.append(ratio < plain)
    assert 0.91 <= np.mean(covered) <= 0.985
    assert all(too_large)


STUDIES = int(os.environ.get("ORDERLENS_SIMULATIONS", "200"))
SPECS = (
    "hmm:incoherence=0.1",
    "hmm:incoherence=0.5",
    "hmm:seed=7,incoherence=0.3",
    "hmm:seed=3,incoherence=1",
)


@pytest.mark.slow
def test_the_interval_covers_nine_to_ten_in_every_world(capsys, monkeypatch):
    """Prints the table of docs/results/judging.md; the variable gives the number of studies per line."""
    every = {spec: population(spec, 600, length=16) for spec in SPECS}
    shifted = {f"{name}, shifted": values for name, values in worlds(every[SPECS[1]]).items()}
    del shifted["as it is, shifted"]
    lines = ["| world | texts | covers | estimate / truth | plain / truth |", "|---|---|---|---|---|"]
    slack = 2.5 * math.sqrt(0.05 * 0.95 / STUDIES)
    for name, values in (every | shifted).items():
        truth = np.ptp(values.mean(axis=0))
        for n in (10, 30, 100):
            _, cover, _, ratio, plain = outcomes(values, n, STUDIES, 399, monkeypatch)
            shown = f"{ratio:.2f} | {plain:.2f}" if truth > 1e-9 else "- | -"
            lines.append(f"| {name} | {n} | {100 * cover:.1f} % | {shown} |")
            assert 0.9 - slack <= cover <= 0.98 + slack, lines[-1]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))


def test_the_test_has_its_size_when_orders_agree_up_to_noise(monkeypatch):
    """Also when one order is much noisier than the others, where it is only approximately valid."""
    monkeypatch.setattr(module, "DRAWS", 99)
    rng = np.random.default_rng(0)
    for scale in ([1.0, 1.0, 1.0], [1.0, 1.0, 4.0]):
        p = [
            agreement_p(rng.normal(size=(20, 1)) + rng.normal(size=(20, 3)) * scale, Resampling(seed=n))
            for n in range(300)
        ]
        assert 0.02 <= np.mean(np.array(p) <= 0.05) <= 0.09, scale


def test_a_clear_difference_is_found_and_its_size_is_right():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 1)) + np.array([0.0, 0.0, 0.5]) + 0.3 * rng.normal(size=(200, 3))
    found = order_range(values)
    assert found.p == pytest.approx(1 / (1 + module.DRAWS))
    assert 0.4 < found.estimate.low < found.estimate.value < found.estimate.high < 0.6
    assert found.plain == pytest.approx(np.ptp(values.mean(axis=0)))


def test_two_equal_orders_include_zero():
    """The case of the report: two equal orders on 20 texts had an interval that excluded 0."""
    values = np.random.default_rng(3).normal(size=(20, 2)) * 0.02
    found = order_range(values)
    assert found.p > 0.05
    assert found.estimate.low == 0.0
    assert found.estimate.value <= found.plain <= found.estimate.high


def test_the_lower_end_of_two_orders_is_a_studentised_interval_by_sign_flips():
    """With a clear gap it is the mean difference less the 97.5 % quantile of t times its standard error."""
    gaps, how = np.array([3.0, 3.2, 2.9, 3.4, 3.1]), Resampling(seed=4)
    n = len(gaps)
    signs = keyed_generator(how.seed, "order range", n).choice(np.array([-1.0, 1.0]), size=(module.DRAWS, n))
    flipped = signs * (gaps - gaps.mean())
    t = flipped.mean(axis=1) / (flipped.std(axis=1, ddof=1) / math.sqrt(n))
    error = gaps.std(ddof=1) / math.sqrt(n)
    found = order_range(np.column_stack([gaps, np.zeros(n)]), how)
    assert found.estimate.low == pytest.approx(gaps.mean() - np.quantile(t, 0.975) * error, rel=1e-9)
    assert found.plain == pytest.approx(gaps.mean())
    reversed_ = order_range(np.column_stack([np.zeros(n), gaps]), how).estimate
    assert reversed_.low == pytest.approx(gaps.mean() - np.quantile(-t, 0.975) * error, rel=1e-9)


def test_the_statistic_is_the_largest_paired_t():
    values = np.random.default_rng(2).normal(size=(3, 9, 1)) * 3 + np.random.default_rng(3).normal(
        size=(3, 9, 4)
    )
    found = module._largest_t(values)
    for row, table in enumerate(values):
        every = [abs(stats.ttest_rel(table[:, a], table[:, b]).statistic) for a in range(4) for b in range(a)]
        assert found[row] == pytest.approx(max(every))


def test_the_p_of_two_orders_is_that_of_all_sign_flips():
    """Permuting two orders within a text flips the sign of its difference: 2⁷ ways, all counted here."""
    gaps = np.array([0.4, -0.1, 0.8, 0.3, -0.2, 0.5, 0.6])
    flips = np.array(list(itertools.product([-1, 1], repeat=7))) * gaps
    t = np.abs(flips.mean(axis=1)) / flips.std(axis=1, ddof=1)
    exact = np.mean(t >= abs(gaps.mean()) / gaps.std(ddof=1) - 1e-12)
    found = agreement_p(np.column_stack([gaps, np.zeros(7)]), Resampling())
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / module.DRAWS))


def test_odd_tables():
    same = order_range(np.repeat(np.arange(8.0)[:, None], 3, axis=1))
    assert (same.estimate.value, same.estimate.low, same.estimate.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    shifted = order_range(np.arange(8.0)[:, None] + np.array([0.0, 1.0])).estimate
    assert (shifted.low, shifted.value, shifted.high) == pytest.approx((1.0, 1.0, 1.0))
    assert "fewer than two orders" in order_range(np.zeros((4, 1))).estimate.why
    missing = order_range(np.array([[1.0, math.nan], [math.nan, 2.0]]))
    assert (missing.estimate.n_undefined, missing.estimate.is_defined) == (2, False)
    single = order_range(np.array([[1.0, 2.0]]))
    assert (single.estimate.value, math.isnan(single.estimate.low), math.isnan(single.p)) == (1.0, True, True)
    unasked = order_range(np.array([[1.0, 2.0], [2.0, 2.5], [math.nan, 9.0]]), Resampling(reps=0))
    assert unasked.estimate.why == "no interval requested"
    assert (unasked.estimate.value, unasked.plain) == (0.75, 0.75)
    assert (unasked.estimate.n, unasked.estimate.n_undefined) == (2, 1)
    assert math.isnan(unasked.p)
    few = order_range(np.array([[1.0, 2.0, 3.0], [2.0, 2.5, 5.0], [1.0, 1.5, 2.0]]))
    assert few.estimate.low <= few.estimate.value <= few.estimate.high


def test_rounding_is_no_range_and_sure_not_to_be_one():
    """Eight texts under an exact joint distribution: the interval holds 0 and excludes 1e-9 beyond doubt."""
    values_SO = np.random.default_rng(5).normal(scale=1e-16, size=(8, 5)) + np.array([0, 0, 0, 0, 3e-16])
    found = order_range(values_SO)
    assert found.p == 1.0
    assert found.estimate.low == found.estimate.value == 0.0
    assert 0 < found.estimate.high < 1e-14
    assert Check("range", found.estimate, above=1e-9, p=found.p).p_values(0.95)[1] < 1e-9
