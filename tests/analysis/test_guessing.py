"""How often guessing is right, from the documents."""

from __future__ import annotations

import json
import math

import pytest

from orderlens.analysis import Study
from orderlens.analysis.tables_downstream import guessing_level, guessing_levels
from orderlens.tasks.graders import NAMED_GRADER


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([{"options": list("ABCD")}], 25.0),
        ([{"options": list("AB")}, {"options": list("ABCDEFGHIJ")}], 100 * (1 / 2 + 1 / 10) / 2),
        ([{"endings": ["x", "y", "z", "w"]}, {"answer": "7"}], 25.0),
        ([{"options": [], "endings": ["x", "y"]}], 50.0),
        ([{"options": ["only"]}], math.nan),
        ([{"answer": "7"}], math.nan),
        ([], math.nan),
    ],
)
def test_one_over_the_number_of_options_on_average(documents, expected):
    assert guessing_level(documents) == pytest.approx(expected, nan_ok=True)


def test_levels_are_per_task_and_left_out_where_options_are_named(builders):
    keys = [{"sample_id": task, "order": "max-prob", "task": task, "temperature": 0.0} for task in "abc"]
    traces = [
        builders.trace(k["sample_id"], "max-prob", [-1.0], task=k["task"], temperature=0.0) for k in keys
    ]
    graders = ["letter", NAMED_GRADER, "number"]
    verdicts = [k | {"correct": True, "grader": g} for k, g in zip(keys, graders, strict=True)]
    given = [{"options": list("ABCDE")}, {"options": list("AB")}, {"answer": 3}]
    documents = [
        {"task": task, "sample_id": task, "document": json.dumps(d)}
        for task, d in zip("abc", given, strict=True)
    ]
    run = builders.make_run(traces, verdicts=verdicts, documents=documents)
    levels = guessing_levels(Study(run, builders.QUICK))
    assert levels == pytest.approx({"a": 20.0, "c": math.nan}, nan_ok=True)
    assert guessing_levels(Study(builders.make_run(traces, verdicts=verdicts), builders.QUICK)) == {}
