"""What each measure of quality is made of: its rows, weights, direction and unit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.frontier import log_axis, measures, unit_of
from orderlens.analysis.stored_scores import pair_key
from orderlens.testing import make_run, make_trace

QUICK = Options(resampling=Resampling(reps=20))
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
