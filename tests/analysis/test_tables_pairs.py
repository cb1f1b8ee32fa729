"""Paired comparisons: values against scipy, the size of the test, and the table of orders and models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import orderlens
from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.tables_pairs import paired_differences, sign_flip_p


def test_differences_of_rounding_are_ties():
    values = np.array([3e-16, -2e-16, 1e-10, 4e-16, 0.0, 2e-16, 2e-16])
    (found,) = paired_differences([values])
    assert (found.estimate.value, found.wins, found.losses, found.p) == (0.0, 0, 0, 1.0)


def test_values_agree_with_scipy():
    values = np.random.default_rng(0).normal(0.3, 1.0, 12)
    (found,) = paired_differences([np.append(values, math.nan)])
    interval = stats.ttest_1samp(values, 0.0).confidence_interval()
    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))
    assert (found.estimate.n, found.estimate.n_undefined) == (12, 1)
    assert (found.wins, found.losses) == (int((values > 0).sum()), int((values < 0).sum()))
    exact = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.p == pytest.approx(exact.pvalue, abs=1e-9)


def test_flips_are_drawn_where_there_are_too_many():
    values = np.random.default_rng(1).normal(0.2, 1.0, 60)
    assert sign_flip_p(values) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, abs=0.02)
    assert sign_flip_p(np.ones(60)) == pytest.approx(1e-4)
    assert sign_flip_p(np.zeros(60)) == 1.0
    assert math.isnan(sign_flip_p(np.ones(1)))


def test_the_test_has_its_size():
    rng = np.random.default_rng(2)
    p = np.array([sign_flip_p(rng.standard_t(3, 10)) for _ in range(400)])
    assert 0.03 <= (p <= 0.05).mean() <= 0.08


def test_holm_runs_over_all_pairs():
    first, second = paired_differences([np.full(8, 1.0) + 0.01 * np.arange(8), np.arange(-4.0, 5.0)])
    assert first.p_holm == pytest.approx(2 * first.p)
    assert second.p_holm == second.p == 1.0
    (empty,) = paired_differences([np.array([math.nan])])
    assert empty.estimate.why == "no text in common"


LETTERS = "abcdefghijklmnop"


def scored(spec):
    model = orderlens.load_model(spec)
    samples = [orderlens.Sample(f"s{i}", LETTERS[:3], LETTERS[i : i + 8]) for i in range(8)]
    return orderlens.score(model, samples, orders=["forced-ar", "random:0", "random:1", "oracle-max-q"])


def test_the_table_compares_orders_and_says_which_see_the_target():
    run = scored("hmm:incoherence=0.5")
    table = Study(run, Options(Resampling(50))).table("order-pairs")
    assert [(row["first"], row["second"], row["kind"]) for row in table.rows] == [
        ("forced-ar", "random", "deployable"),
        ("forced-ar", "oracle-max-q", "target-aware"),
        ("random", "oracle-max-q", "target-aware"),
    ]
    frame = run.samples().to_pandas()
    wide = frame.pivot_table(index="sample_id", columns="order", values="mean")
    expected = (wide["forced-ar"] - wide["random"]).mean()
    assert table.rows[0]["difference"].value == pytest.approx(expected)
    assert table.rows[0]["wins"] + table.rows[0]["losses"] == 8
    assert any("not a likelihood" in note for note in table.notes)


def test_the_table_compares_models_on_the_same_texts(tmp_path):
    for place, spec in enumerate(("hmm", "hmm:seed=7")):
        model = orderlens.load_model(spec)
        samples = [orderlens.Sample(f"s{i}", LETTERS[:3], LETTERS[i : i + 8]) for i in range(8)]
        orderlens.score(model, samples, orders=["forced-ar", "max-prob"], out=tmp_path / str(place))
    study = Study.open([tmp_path / "0", tmp_path / "1"])
    rows = study.table("order-pairs").rows
    kinds = [row["compared"] for row in rows]
    assert kinds.count("orders") == 2
    assert kinds.count("models") == 2
    found = [row for row in rows if row["compared"] == "models"]
    assert {row["within"] for row in found} == {"forced-ar", "max-prob"}
    assert all(row["n"] == 8 for row in found)


def test_one_order_has_nothing_to_compare():
    model = orderlens.load_model("hmm")
    run = orderlens.score(model, [orderlens.Sample("s", "ab", "cdef")], orders=["forced-ar"])
    (row,) = Study(run).table("order-pairs").rows
    assert "nothing to compare" in row["difference"].why
