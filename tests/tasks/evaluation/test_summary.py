"""Accuracies counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from statsmodels.stats.proportion import proportion_confint

from orderlens.store.reader import Run, open_run
from orderlens.tasks.evaluation import accuracies, ungraded
from orderlens.testing import make_run, make_trace


def verdict(sample: str, correct: bool | None, generation: int | None = 0, **more: Any) -> dict[str, Any]:
    key = {"sample_id": sample, "order": "max-prob", "task": "t", "temperature": 0.0}
    return key | {"correct": correct, "extracted": "x", "grader": "g", "generation": generation} | more


def run_of(rows: list[dict[str, Any]], spec: dict[str, Any] | None = None) -> Run:
    return make_run([make_trace("a", "max-prob", [-1.0], temperature=0.0)], spec=spec, verdicts=rows)


def test_no_verdicts_no_cells() -> None:
    assert accuracies(run_of([])) == []
    assert ungraded(run_of([])) == {}


def test_runs_read_together_keep_their_own_verdicts(tmp_path: Any) -> None:
    for name, correct in (("one", True), ("two", False)):
        run_of([verdict("a", correct)], {"name": name}).save(tmp_path / name)
    both = open_run([tmp_path / "one", tmp_path / "two"])
    (cell,) = accuracies(both)
    assert (cell["n"], cell["n_correct"]) == (2, 1)


def test_cells_count_right_wrong_unanswered_and_ungraded() -> None:
    rows = [
        verdict("a", True),
        verdict("b", False),
        verdict("c", False, extracted=None),
        verdict("d", None, extracted=None, reason="not graded: nltk is missing"),
        verdict("a", False, order="random", seed=1),
        verdict("a", True, order="random", seed=2),
        verdict("b", True, 1),  # graded again: right
    ]
    found = {(cell["order"], cell["seed"]): cell for cell in accuracies(run_of(rows))}
    assert list(found) == [("max-prob", None), ("random", 1), ("random", 2)]
    cell = found["max-prob", None]
    counts = {name: cell[name] for name in ("n", "n_correct", "n_without_answer", "n_ungraded")}
    assert counts == {"n": 3, "n_correct": 2, "n_without_answer": 1, "n_ungraded": 1}
    assert cell["accuracy"] == pytest.approx(2 / 3)
    assert (cell["low"], cell["high"]) == pytest.approx(proportion_confint(2, 3, method="wilson"))
    assert (cell["task"], cell["grader"], cell["temperature"]) == ("t", "g", 0.0)
    assert [found["random", seed]["accuracy"] for seed in (1, 2)] == [0.0, 1.0]


def test_a_cell_without_a_verdict_has_no_accuracy() -> None:
    (cell,) = accuracies(run_of([verdict("a", None)]))
    assert cell["accuracy"] != cell["accuracy"]
    assert (cell["n"], cell["n_correct"], cell["n_ungraded"]) == (0, 0, 1)


def test_ungraded_responses_are_counted_per_task_with_a_reason() -> None:
    rows = [
        verdict("a", None, reason="not graded: nltk is missing"),
        verdict("b", None, reason="not graded: nltk is missing"),
        verdict("c", True),
        verdict("d", None, task="u"),
        verdict("e", None, task="v"),
        verdict("e", True, 1, task="v"),
    ]
    assert ungraded(run_of(rows)) == {
        "t": "2 responses not graded: nltk is missing",
        "u": "1 response not graded",
    }


def test_levels_of_instructions_are_shares_of_prompts_and_of_instructions() -> None:
    levels = [
        {"strict": [True, False], "loose": [True, True]},
        {"strict": [False], "loose": [False]},
        {"strict": [True, True, True], "loose": [True, True, True]},
    ]
    rows = [
        verdict(str(place), all(level["strict"]), per_instruction=json.dumps(level))
        for place, level in enumerate(levels)
    ]
    rows.append(verdict("x", None, per_instruction=None))
    (cell,) = accuracies(run_of(rows))
    assert cell["accuracy"] == pytest.approx(1 / 3)
    assert cell["prompt_loose"] == pytest.approx(2 / 3)
    assert cell["instruction_strict"] == pytest.approx(4 / 6)
    assert cell["instruction_loose"] == pytest.approx(5 / 6)
    (plain,) = accuracies(run_of([verdict("a", True)]))
    assert "instruction_strict" not in plain
