"""Quality against compute: the ladder, equal passes and the front, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import orderlens as ol
from orderlens.analysis import Options, Resampling, Study, Table
from orderlens.analysis.external import pair_key
from orderlens.analysis.frontier import (
    BITS,
    NO_LADDER,
    OUTSIDE,
    Measure,
    ladder_of,
    log_axis,
    measures,
    on_ladder,
    overview,
    unit_of,
)
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.trace_table import overflow_note
from orderlens.testing import make_run, make_trace

QUICK = Options(resampling=Resampling(reps=60))


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        (["max-prob+top=4", "max-prob", "forced-ar"], ["max-prob", "max-prob+top=4"]),
        (["a+top=2", "a+top=8", "a", "max-prob", "max-prob+top=2"], ["a", "a+top=2", "a+top=8"]),
        (["forced-ar", "forced-ar+top=2", "max-prob", "max-prob+top=2"], ["max-prob", "max-prob+top=2"]),
        (["max-prob", "max-prob+threshold=0.9", "max-prob+top=2+edit=0.9"], []),
        ([], []),
    ],
)
def test_the_ladder_is_the_order_with_most_rungs(orders, expected) -> None:
    assert ladder_of(orders) == expected


def test_on_the_ladder_is_the_line_between_neighbouring_rungs() -> None:
    rungs, quality = np.array([[8.0, 4.0, 2.0]]), np.array([[1.0, 0.6, 0.5]])
    found = on_ladder(np.array([[6.0, 4.0, 3.0, 1.0, 9.0]]), rungs, quality)[0]
    assert found[:3] == pytest.approx([0.8, 0.6, 0.55])
    assert np.isnan(found[3:]).all()
    assert np.isnan(on_ladder(np.array([[6.0]]), rungs[:, :1], quality[:, :1])).all()


def rows_of(values: dict[str, list[float]], passes: dict[str, float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"prompt": c, "order": o, "value": v, "weight": 1.0, "passes": passes[o], "tokens": 8.0}
            for o, column in values.items()
            for c, v in enumerate(column)
        ]
    )


VALUES = {
    "max-prob": [1.0, 1.0, 0.0, 1.0],
    "max-prob+top=4": [0.0, 1.0, 0.0, 0.0],
    "max-prob+threshold=0.9": [1.0, 1.0, 0.0, 0.0],
    "random+top=8": [0.0, 0.0, 0.0, 0.0],
}
PASSES = {"max-prob": 8.0, "max-prob+top=4": 2.0, "max-prob+threshold=0.9": 5.0, "random+top=8": 1.0}


def test_points_by_hand() -> None:
    """Rungs (8 passes, 0.75) and (2, 0.25): at 5 passes the ladder has 0.5, like the threshold rule."""
    measure = Measure.of("accuracy", 1, rows_of(VALUES, PASSES), list(VALUES))
    points = {point.order: point for point in measure.points(QUICK.resampling)}
    rule = points["max-prob+threshold=0.9"]
    assert (rule.quality.value, rule.passes.value, rule.tokens_per_pass.value) == (0.5, 5.0, 1.6)
    assert rule.gain.value == pytest.approx(0.0)
    assert rule.gain.low <= 0 <= rule.gain.high
    assert points["max-prob"].gain.why == "a rung of the ladder"
    assert points["random+top=8"].gain.why == OUTSIDE
    assert {order for order, point in points.items() if point.front} == set(VALUES)


def test_lower_is_better_turns_gain_and_front_around() -> None:
    values = {**VALUES, "forced-ar": [9.0, 9.0, 9.0, 9.0]}
    rows = rows_of(values, {**PASSES, "forced-ar": 5.0})
    points = {
        point.order: point for point in Measure.of("bits", -1, rows, list(values)).points(QUICK.resampling)
    }
    assert points["forced-ar"].gain.value == pytest.approx(0.5 - 9.0)
    assert points["forced-ar"].front is False
    neither = Measure.of("EOS", 0, rows, list(values)).points(QUICK.resampling)
    assert neither[0].front is None


def test_a_prompt_that_lacks_a_value_does_not_count() -> None:
    values = {name: list(column) for name, column in VALUES.items()}
    values["max-prob"][2] = np.nan
    measure = Measure.of("accuracy", 1, rows_of(values, PASSES), list(values))
    assert (measure.prompts, measure.n_missing) == ((0, 1, 3), 1)
    assert measure.points(QUICK.resampling)[0].quality.n_undefined == 1


def test_without_a_ladder_the_gain_says_so() -> None:
    rows = rows_of({"max-prob": [1.0], "forced-ar": [0.0]}, {"max-prob": 8.0, "forced-ar": 8.0})
    points = Measure.of("accuracy", 1, rows, ["max-prob", "forced-ar"]).points(QUICK.resampling)
    assert {point.gain.why for point in points} == {NO_LADDER}
    assert np.isnan(points[0].quality.low)  # one prompt: no interval


def test_measures_of_scored_and_generated_texts() -> None:
    model = ol.load_model("hmm")
    samples = [ol.Sample(str(i), "hello ", "there she is"[: 8 + i]) for i in range(3)]
    orders = ["max-prob", "max-prob+top=2", "max-prob+top=4"]
    scored = Study(ol.score(model, samples, [*orders, "oracle-max-q"]), QUICK)
    (bits,) = measures(scored)
    assert bits.name == BITS
    assert bits.orders == tuple(orders)  # a target-aware order has no likelihood
    found = {point.order: point.quality.value for point in bits.points(QUICK.resampling)}
    table = scored.table("policies")
    assert found == pytest.approx({order: table.cell("bits_per_byte", order=order).value for order in orders})
    made = Study(ol.generate(model, samples, orders, max_new_tokens=16), QUICK)
    assert [measure.name for measure in measures(made)] == ["texts that end, texts", "EOS share, texts"]


def test_tasks_are_measured_apart() -> None:
    traces, verdicts = [], []
    for task in ("a", "b"):
        for item in range(3):
            for order, forward in (("max-prob", [0, 1, 2, 3]), ("max-prob+top=4", [0, 0, 0, 0])):
                key = {"task": task, "temperature": 0.0}
                traces.append(make_trace(f"{task}{item}", order, [-0.1] * 4, forward=forward, **key))
                correct = task == "a" or order == "max-prob"
                verdicts.append({"sample_id": f"{task}{item}", "order": order, "correct": correct, **key})
    study = Study(make_run(traces, verdicts=verdicts), QUICK)
    table = study.table("frontier")
    assert table.cell("quality", measure="accuracy, a", order="max-prob+top=4").value == 100.0
    assert table.cell("quality", measure="accuracy, b", order="max-prob+top=4").value == 0.0
    assert table.cell("tokens_per_pass", measure="accuracy, a", order="max-prob+top=4").value == 4.0
    assert table.cell("front", measure="accuracy, a", order="max-prob") == "no"
    assert table.cell("front", measure="texts that end, a", order="max-prob") == ""
    assert any(note == "Ladder: max-prob, max-prob+top=4." for note in table.notes)
    assert "frontier" in study.suited()


def test_a_run_of_one_by_one_orders_is_not_offered_a_frontier() -> None:
    study = Study(make_run([make_trace("a", "max-prob", [-1.0, -2.0])]), QUICK)
    assert "frontier" not in study.suited()
    assert study.table("frontier").rows


def test_the_overview_has_a_row_per_policy_and_only_what_can_be_better() -> None:
    def row(measure: str, order: str, value: float, front: str) -> dict[str, object]:
        known = dict.fromkeys(("tokens_per_pass", "passes", "gain"), Estimate(2.0))
        return known | {
            "measure": measure,
            "order": order,
            "n": 3,
            "quality": Estimate(value),
            "front": front,
        }

    rows = (
        row("bits per byte", "max-prob", 1.5, "yes"),
        row("accuracy, sums", "max-prob", 80.0, "no"),
        row("accuracy, sums", "max-prob+edit=0.9", 20.0, "no"),
        row("accuracy, sums", "max-prob+top=4", 60.0, "no"),
        row("EOS share, sums", "max-prob", 25.0, ""),
    )
    overflow = overflow_note(np.array([0, 2]))
    notes = ("counts.", overflow, "more.")
    found = overview(Table("frontier", "Quality", ("measure", "order"), (), rows, notes))
    assert [row["order"] for row in found.rows] == ["max-prob", "max-prob+edit=0.9", "max-prob+top=4"]
    assert [column.name for column in found.columns] == [
        "bits per byte, tokens/pass",
        "bits per byte",
        "bits per byte, gain",
        "accuracy, sums, tokens/pass",
        "accuracy, sums",
        "accuracy, sums, gain",
    ]
    assert found.rows[0]["bits per byte"].value == 1.5
    assert found.rows[1]["accuracy, sums"].value == 20.0
    assert found.rows[1]["bits per byte"].why == "not measured under this policy"
    assert found.notes[-2:] == ("Ladder: max-prob, max-prob+top=4.", overflow)


EOS = 0


def decoded(sample, order, *, task=None, eos=0, together=1, n=6):
    tokens = np.r_[np.arange(5, 5 + n - eos), np.full(eos, EOS)]
    return make_trace(
        sample, order, [-0.5] * n, tokens=tokens, forward=np.arange(n) // together, temperature=0.0, task=task
    )


def named(study):
    return {measure.name: measure for measure in measures(study)}


def quality(measure):
    return {point.order: point.quality.value for point in measure.points(QUICK.resampling)}


def test_endings_are_measured_per_task_and_apart_from_plain_texts():
    traces = [
        decoded("a", "max-prob", eos=2),
        decoded("b", "max-prob"),
        decoded("q", "max-prob", task="sums", eos=3),
        decoded("a", "max-prob+top=2", eos=1, together=2),
        decoded("b", "max-prob+top=2", eos=6, together=2),
        decoded("q", "max-prob+top=2", task="sums", together=2),
    ]
    found = named(Study(make_run(traces), QUICK))
    assert set(found) == {
        "texts that end, texts",
        "EOS share, texts",
        "texts that end, sums",
        "EOS share, sums",
    }
    assert quality(found["texts that end, texts"]) == {"max-prob": 50.0, "max-prob+top=2": 100.0}
    assert quality(found["EOS share, texts"]) == pytest.approx(
        {"max-prob": 100 * (2 / 6 + 0) / 2, "max-prob+top=2": 100 * (1 / 6 + 1) / 2}
    )
    assert quality(found["EOS share, sums"]) == {"max-prob": 50.0, "max-prob+top=2": 0.0}
    points = {point.order: point for point in found["EOS share, texts"].points(QUICK.resampling)}
    assert points["max-prob+top=2"].tokens_per_pass.value == 2.0
    assert points["max-prob+top=2"].front is None, "neither more nor less is better"


def test_external_scores_leave_the_tasks_out():
    orders, traces, outputs, external = ("max-prob", "max-prob+top=2"), [], [], []
    for order in orders:
        for sample, task in (("a", None), ("b", None), ("q", "sums")):
            traces.append(decoded(sample, order, task=task))
            text = f"{sample} {order}"
            key = {"sample_id": sample, "order": order, "task": task, "temperature": 0.0}
            outputs.append(key | {"text": text, "prompt_text": "ask"})
            level = -1.0 if order == "max-prob" else -4.0
            logprobs = [level, level - (1.0 if sample == "b" else 0.0), level] if task is None else [-99.0]
            external.append({"evaluator": "judge", "text_key": pair_key(("ask", text)), "logprobs": logprobs})
    found = named(Study(make_run(traces, outputs=outputs, external=external), QUICK))
    measure = found["external NLL (judge)"]
    assert measure.orders == orders
    assert quality(measure) == pytest.approx({"max-prob": 1 + 1 / 6, "max-prob+top=2": 4 + 1 / 6})
    front = {point.order: point.front for point in measure.points(QUICK.resampling)}
    assert front["max-prob"] is True, "a lower NLL is better"


def test_a_verdict_that_is_missing_leaves_its_item_out_under_every_policy():
    traces, verdicts = [], []
    for item in range(4):
        for order in ("max-prob", "max-prob+top=2"):
            traces.append(decoded(f"q{item}", order, task="sums"))
            correct = None if (item, order) == (0, "max-prob") else item % 2 == 1
            key = {"sample_id": f"q{item}", "order": order, "task": "sums", "temperature": 0.0}
            verdicts += [key | {"correct": correct, "grader": "g"}] * (2 if item == 1 else 1)
    (accuracy,) = (
        measure
        for name, measure in named(Study(make_run(traces, verdicts=verdicts), QUICK)).items()
        if name.startswith("accuracy")
    )
    assert accuracy.name == "accuracy, sums"
    assert (len(accuracy.prompts), accuracy.n_missing) == (3, 1)
    assert quality(accuracy) == pytest.approx({"max-prob": 200 / 3, "max-prob+top=2": 200 / 3})


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("bits per byte", "bits/byte"),
        ("external NLL (hf:openai-community/gpt2-large)", "nats/token"),
        ("accuracy, cmath", "%"),
        ("EOS share, texts", "%"),
    ],
)
def test_units(name, unit):
    assert unit_of(name) == unit


@pytest.mark.parametrize(
    ("values", "by_ratio"),
    [
        ([1.0, 3.0], False),
        ([1.0, 3.01], True),
        ([0.0, -5.0, 2.0, 6.0], False),
        ([math.inf, 2.0, 7.0, math.nan], True),
        ([], False),
        ([4.0], False),
    ],
)
def test_passes_are_drawn_by_ratio_where_they_span_more_than_a_factor_of_three(values, by_ratio):
    assert log_axis(values) is by_ratio
