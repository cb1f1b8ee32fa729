"""AUP and speed of light against the published formula and plain comparisons of texts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import orderlens as ol
from orderlens.analysis import Study
from orderlens.analysis.speed import CUT_OFF, aup, families
from orderlens.testing import StubModel


def plain_aup(points, best):
    """The published formula, point by point."""
    points = sorted(points)
    kept = [(rho, y) for rho, y in points if y >= points[0][1] - 5]

    def weight(y):
        return min(math.exp(-3 * (1 - y / best)), 1)

    total = kept[0][0] * kept[0][1]
    for (r0, y0), (r1, y1) in itertools.pairwise(kept):
        total += (r1 - r0) * (y1 * weight(y1) + y0 * weight(y0)) / 2
    return total


def test_aup_is_the_published_formula():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rho, y = rng.uniform(1, 8, 5), rng.uniform(60, 75, 5)
        mine = aup(rho, y, 80.0)
        assert mine == pytest.approx(plain_aup(list(zip(rho, y, strict=True)), 80.0), abs=1e-9)
    assert aup(np.array([1.0, 4.0]), np.array([70.0, 70.0]), 70.0) == pytest.approx(280.0)
    assert aup(np.array([1.0, 4.0]), np.array([70.0, 60.0]), 70.0) == pytest.approx(70.0), "left out"
    assert math.isnan(aup(np.array([1.0]), np.array([0.0]), 0.0))


def test_families_differ_in_values_only():
    orders = ("max-prob", "max-prob+top=2", "max-prob+top=4", "entropy+bound=0.1", "max-prob+top=2+edit=0.5")
    assert families(orders) == {
        "max-prob+top": ["max-prob", "max-prob+top=2", "max-prob+top=4"],
        "entropy+bound": ["entropy+bound=0.1"],
        "max-prob+top+edit": ["max-prob", "max-prob+top=2+edit=0.5"],
    }


def test_the_speed_of_light_is_that_of_plain_comparisons():
    model = ol.load_model("hmm")
    orders = ["max-prob", "max-prob+top=2", "max-prob+threshold=0.3", "forced-ar", "forced-ar+top=4"]
    orders += [f"random:{seed}{rule}" for seed in (0, 1, 2) for rule in ("", "+top=2")]
    run = ol.generate(
        model, [f"{word} " for word in ("the", "she", "a", "he was")], orders, max_new_tokens=32
    )
    table = Study(run).tables(["speed"])[1]
    texts = {
        (row["sample_id"], row["seed"], row["order"]): row["token_ids"]
        for row in run.outputs().to_arrow().to_pylist()
    }
    speeds = {
        (row["sample_id"], row["seed"], row["order"]): (row["n"] + row["n_overflow"]) / row["n_passes"]
        for row in run.samples().to_arrow().to_pylist()
    }
    for base in ("max-prob", "forced-ar", "random"):
        ways = {order for _, _, order in texts if order.partition("+")[0] == base}
        ids = [(sample, seed) for sample, seed, order in texts if order == base]
        best = [max(speeds[*i, way] for way in ways if texts[*i, way] == texts[*i, base]) for i in ids]
        assert table.cell("speed_of_light", order=base).value == pytest.approx(np.mean(best), abs=1e-9)
        faster = [value > speeds[*i, base] + 1e-9 for i, value in zip(ids, best, strict=True)]
        assert table.cell("share_faster", order=base).value == pytest.approx(np.mean(faster), abs=1e-9)


def test_aup_keeps_a_setting_exactly_at_the_cut_off_and_tiny_accuracies():
    at_the_edge = aup(np.array([1.0, 2.0]), np.array([50.0, 50.0 - CUT_OFF]), 50.0)
    assert at_the_edge > aup(np.array([1.0]), np.array([50.0]), 50.0) == 50.0
    assert aup(np.array([1.0]), np.array([0.5]), 0.5) == 0.5
    assert math.isnan(aup(np.array([1.0]), np.array([0.0]), 0.0))


def test_tokens_after_an_eos_do_not_make_another_text():
    def row(visible, position):
        logits = np.zeros(5)
        if position < 2:
            logits[0 if position else 1] = 9.0 - position  # token 1, then EOS 0
        else:
            logits[3 if 0 in visible else 2] = 4.0  # tokens that depend on whether EOS is visible
        return logits

    model = StubModel(row, vocab_size=6, block_size=4, eos_ids=(0,))
    orders = ["max-prob", "max-prob+top=4"]
    run = ol.generate(model, [ol.Sample("a", [])], orders, max_new_tokens=4)
    first, second = (item["token_ids"] for item in run.outputs().to_arrow().to_pylist())
    assert first[:2] == second[:2] == [1, 0]
    assert first != second
    assert Study(run).tables(["speed"])[1].cell("speed_of_light", order="max-prob").value == 4.0


@pytest.mark.parametrize(
    ("orders", "temperature", "why"),
    [
        (["max-prob", "max-prob+top=4"], 0.7, "at temperature > 0 every policy draws its own tokens"),
        (["max-prob", "forced-ar+top=4"], 0, "no order was run both"),
    ],
)
def test_an_undefined_speed_of_light_says_why(orders, temperature, why):
    run = ol.generate("hmm", ["the ", "a "], orders, max_new_tokens=8, temperature=temperature)
    (row,) = Study(run).tables(["speed"])[1].rows
    assert why in row["speed_of_light"].why
