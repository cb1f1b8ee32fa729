"""Choosing an order per item, against a loop over items; ties, missing candidates and missing orders."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis.selecting import SELECTORS, compare_selectors, is_candidate, pick_weights, selectors
from orderlens.metrics.estimate import Resampling
from orderlens.rules.cards import is_structured

NONE = Resampling(reps=0)
ORDERS = ("forced-ar", "max-prob", "top-margin", "random:0", "random:1")


def random_table(seed):
    """Return graded samples with ties, missing verdicts, undefined and one-token traces."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(14):
        for order in ORDERS:
            if rng.random() < 0.1:
                continue
            n = int(rng.integers(0, 6))
            mean, var = (np.nan, np.nan) if n == 0 else (-rng.integers(1, 4) / 2, rng.integers(0, 3) / 2)
            correct = None if rng.random() < 0.1 else bool(rng.random() < 0.5)
            rows.append(("t", order, item, correct, mean, var, n, -rng.integers(1, 4) / 1.0))
    names = ["task", "order", "item_id", "correct", "mean", "var", "n", "min"]
    return pd.DataFrame(rows, columns=names)


def by_loop(frame):
    """Return the accuracy of every selector, one item after the other."""
    right = {name: [] for name in ("min_v", "max_v", "max_mean", "max_min", "shortest", "random", "oracle")}
    items = []
    for item, rows in frame.groupby("item_id", sort=False):
        usable = [
            row
            for row in rows.itertuples()
            if row.correct is not None and row.n >= 2 and math.isfinite(row.var)
        ]
        if not usable:
            continue
        items.append(item)
        scores = {
            "min_v": [-row.var for row in usable],
            "max_v": [row.var for row in usable],
            "max_mean": [row.mean for row in usable],
            "max_min": [row.min for row in usable],
            "shortest": [-row.n for row in usable],
            "random": [0 for row in usable],
        }
        for name, score in scores.items():
            best = [row.correct for row, value in zip(usable, score, strict=True) if value == max(score)]
            right[name].append(sum(best) / len(best))
        right["oracle"].append(float(any(row.correct for row in usable)))
    graded = frame[frame["correct"].notna() & frame["item_id"].isin(items)]
    fixed = {
        order: rows["correct"].astype(float).mean() for order, rows in graded.groupby("order", sort=False)
    }
    return {name: 100 * np.mean(values) for name, values in right.items()} | {
        "best_fixed": 100 * max(fixed.values())
    }, items


@pytest.mark.parametrize("seed", range(6))
def test_every_selector_equals_the_loop(seed):
    frame = random_table(seed)
    everything, structured = compare_selectors(frame, NONE)
    for found, rows in (
        (everything, frame),
        (structured, frame[[is_structured(order) for order in frame["order"]]]),
    ):
        expected, items = by_loop(rows)
        assert found.n_items == len(items)
        assert found.n_undefined == rows["item_id"].nunique() - len(items)
        for name, value in expected.items():
            assert found.accuracy[name].value == pytest.approx(value), name
        delta = found.accuracy["min_v"].value - found.accuracy["max_v"].value
        assert found.accuracy["delta_pp"].value == pytest.approx(delta)
        assert found.accuracy["oracle"].value >= max(
            found.accuracy[name].value for name in ("min_v", "max_v")
        )
    assert (everything.scope, structured.scope) == ("all orders", "structured orders")


def test_weights_of_an_item_sum_to_one_and_ties_share():
    rows = [(0.1, -1.0, 3), (0.1, -2.0, 4), (0.5, -1.0, 3), (0.2, -9.0, 5)]
    frame = pd.DataFrame(rows, columns=["var", "mean", "n"])
    weights = pick_weights(frame, np.array([0, 0, 0, 1]))
    assert weights["min_v"].tolist() == [0.5, 0.5, 0.0, 1.0]
    assert weights["max_v"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert weights["max_mean"].tolist() == [0.5, 0.0, 0.5, 1.0]
    assert weights["shortest"].tolist() == [0.5, 0.0, 0.5, 1.0]
    assert weights["random"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
    assert "max_min" not in weights


def test_an_undefined_smallest_log_q_is_the_last_choice():
    frame = pd.DataFrame({"var": [1.0, 1.0], "mean": [-1.0, -1.0], "n": [2, 2], "min": [np.nan, -50.0]})
    assert pick_weights(frame, np.array([0, 0]))["max_min"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("mean", "var", "n", "usable"),
    [
        (-1.0, 0.0, 2, True),
        (-1.0, 0.0, 1, False),
        (-1.0, np.nan, 9, False),
        (-np.inf, 1.0, 9, False),
        (-1.0, 0.5, np.nan, False),
    ],
)
def test_candidates_have_a_mean_a_var_and_two_tokens(mean, var, n, usable):
    frame = pd.DataFrame({"mean": [mean], "var": [var], "n": [n]})
    assert is_candidate(frame).tolist() == [usable]


@pytest.mark.parametrize(
    ("orders", "correct", "why"),
    [
        (("forced-ar",), True, "1 order: nothing to choose from"),
        (("forced-ar", "max-prob"), None, "no sample with a verdict, a defined Var and at least 2 tokens"),
    ],
)
def test_what_cannot_be_compared_says_why_in_every_cell(orders, correct, why):
    frame = pd.DataFrame(
        [("t", order, item, correct, -1.0, 0.5, 9) for order in orders for item in range(3)],
        columns=["task", "order", "item_id", "correct", "mean", "var", "n"],
    )
    found = compare_selectors(frame, NONE)[0]
    assert found.why == why
    assert set(found.accuracy) == set(SELECTORS)
    assert {cell.why for cell in found.accuracy.values()} == {why}
    assert (found.best_fixed_order, found.n_items, found.n_undefined) == (None, 0, 3)
    row = selectors(frame, NONE).iloc[0]
    assert row["why"] == why
    assert math.isnan(row["min_v"])


def test_a_run_of_random_orders_has_no_structured_scope():
    frame = pd.DataFrame(
        [("t", f"random:{k}", item, k == 0, -1.0, 0.5 + k, 9) for k in range(2) for item in range(3)],
        columns=["task", "order", "item_id", "correct", "mean", "var", "n"],
    )
    row = selectors(frame, NONE).iloc[0]
    assert (row["min_v"], row["max_v"], row["best_fixed_order"]) == (100.0, 0.0, "random:0")
    assert row["why_structured"] == "0 orders: nothing to choose from"
    assert row["n_items_structured"] == 0


def test_tasks_keep_their_sequence_and_do_not_mix():
    parts = [random_table(seed).assign(task=name) for seed, name in enumerate(("z", "a"))]
    both = selectors(pd.concat(parts), NONE)
    assert both["task"].tolist() == ["z", "a"]
    for place, part in enumerate(parts):
        alone = selectors(part, NONE).iloc[0]
        assert both.iloc[place]["min_v"] == alone["min_v"]
        assert both.iloc[place]["best_fixed_order"] == alone["best_fixed_order"]
