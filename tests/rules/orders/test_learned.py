"""The learned order: its numbers against a plain loop, its weights, and what it decodes."""

from __future__ import annotations

import json
import math
from importlib import resources

import numpy as np
import pytest

import orderlens as ol
from orderlens.errors import UserInputError
from orderlens.rules import parse_policy
from orderlens.rules.orders.learned import FEATURES, ODDS, REACH, features
from orderlens.rules.stats import PositionStats
from orderlens.rules.view import StepView

OFFSETS = np.array([2, 3, 4, 9, 20])
P = np.array([0.9, 0.5, 0.3, 0.999999, 0.2])
SECOND = np.array([0.05, 0.4, 0.2, 1e-7, 0.1])
STATS = PositionStats(
    np.arange(5), np.log(P), np.log(SECOND), np.array([0.4, 0.8, 1.5, 0.01, 2.0]), np.log([0.1] * 5)
)


def _slow(row):
    """The ten numbers of one masked position, written a second time."""
    offset, p = int(OFFSETS[row]), float(P[row])
    masked = set(OFFSETS.tolist())
    left = next(d for d in range(1, 99) if offset - d not in masked)
    right = next(d for d in range(1, 99) if offset + d not in masked)
    odds = max(-ODDS, min(ODDS, math.log(p / (1 - p))))
    numbers = [math.log(p), p - SECOND[row], STATS.entropy[row], 0.1, offset / 32, row / 5]
    return [*numbers, min(left, REACH) / REACH, min(right, REACH) / REACH, odds, 0.0]


def test_the_features_are_those_of_a_plain_loop():
    found = features(StepView.of(STATS, OFFSETS), STATS)
    assert found.shape == (5, len(FEATURES)) == (5, 10)
    for row in range(5):
        assert found[row] == pytest.approx(_slow(row), abs=1e-9)


def test_long_runs_of_masks_have_distances_up_to_the_reach():
    count = 12
    stats = PositionStats(*(np.full(count, value) for value in (0, -1.0, -2.0, 1.0, -5.0)))
    found = features(StepView.of(stats), stats)
    assert (found[:, 6] * REACH).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]
    assert (found[:, 7] * REACH).tolist() == [8, 8, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("teacher", ["oracle-margin", "census"])
def test_scores_use_the_shipped_weights(teacher):
    text = resources.files("orderlens.rules.orders").joinpath("learned.json").read_text("utf-8")
    shipped = json.loads(text)
    order = parse_policy(f"learned:teacher={teacher}").order
    assert shipped["features"] == list(FEATURES)
    expected = [
        sum(w * x for w, x in zip(shipped["weights"][teacher], _slow(row), strict=True)) for row in range(5)
    ]
    assert order.scores(StepView.of(STATS, OFFSETS)) == pytest.approx(expected, abs=1e-6)


def test_names_and_refusals():
    assert parse_policy("learned:teacher=oracle-margin").spec == "learned"
    with pytest.raises(UserInputError, match="teacher must be oracle-margin or census"):
        parse_policy("learned:teacher=me")


def test_it_decodes():
    orders = "learned,learned:teacher=census"
    run = ol.generate("hmm", "The ferry", orders, max_new_tokens=8, overflow="mask")
    assert run.samples().to_arrow()["likelihood"].to_pylist() == ["exact", "exact"]
    assert run.samples().to_arrow()["n"].to_pylist() == [8, 8]
