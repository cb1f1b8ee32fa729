"""Rows of verdicts and endings: what is kept of an output, and which rule reads what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orderlens.errors import UnknownNameError
from orderlens.tasks.evaluation.grading import (
    ending_rows,
    grade_output,
    response_of,
    ungraded_row,
    verdict_row,
    verdict_table,
)
from orderlens.tasks.graders import Verdict
from orderlens.tasks.protocol import Benchmark, LikelihoodRule

KEY = {"sample_id": "7", "task": "own", "order": "random", "seed": 3, "temperature": 0.5, "sample_seed": 1}
OUTPUT = KEY | {"text": "yes STOP no END maybe", "token_ids": [1, 2]}


def by_text(doc: Mapping[str, Any], response: object) -> Verdict:
    return Verdict(response == doc["answer"], str(response), "compared", "exact")


def by_score(doc: Mapping[str, Any], scores: Sequence[Sequence[float]]) -> Verdict:
    best = max(range(len(scores)), key=lambda place: sum(scores[place]))
    known = all(math.isfinite(value) for values in scores for value in values)
    return Verdict(known and best == doc["label"], str(best), "scored" if known else "no scores", "score")


RULE = LikelihoodRule(lambda doc: doc["choices"], lambda _, prompt, response: prompt + response, by_score)
TASK = Benchmark(
    "own",
    "a task of a test",
    None,
    "id",
    ("id",),
    lambda doc: str(doc["question"]),
    {"exact": by_text},
    lambda _: None,
    16,
    stop=("END", "STOP", ""),
    likelihood={"score": RULE},
)
DOC = {"id": 7, "question": "?", "answer": "yes ", "choices": ["ä", "long one"], "label": 1}


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("yes STOP no END", "yes "),
        ("END", ""),
        ("no mark", "no mark"),
        ("", ""),
        (None, ""),
        ("aENDbSTOP", "a"),
    ],
)
def test_a_response_ends_before_the_first_stop_string(text: str | None, response: str) -> None:
    assert response_of(TASK, {"text": text}) == response


@pytest.mark.parametrize(
    ("grader", "scores", "correct", "extracted", "reason"),
    [
        ("exact", None, True, "yes ", "compared"),
        ("exact", [[0.0], [0.0]], True, "yes ", "compared"),
        ("score", [[-3.0], [-1.0, -1.0]], True, "1", "scored"),
        ("score", [[-1.0], [-1.0, -1.0]], False, "0", "scored"),
        ("score", None, False, "0", "no scores"),
    ],
)
def test_each_rule_reads_the_response_or_the_scores(
    grader: str, scores: Any, correct: bool, extracted: str, reason: str
) -> None:
    found = grade_output(TASK, DOC, grader, OUTPUT, scores)
    assert (found.correct, found.extracted, found.reason) == (correct, extracted, reason)


def test_an_unknown_rule_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown grader 'exakt' of own.*'exact'.*score, exact"):
        grade_output(TASK, DOC, "exakt", OUTPUT, None)


def test_rows_carry_the_whole_key_and_fit_the_table() -> None:
    graded = verdict_row(OUTPUT, Verdict(True, "4", "why", "exact"), 2)
    empty = ungraded_row(OUTPUT, "exact", "not graded: no package")
    assert {name: graded[name] for name in KEY} == {name: empty[name] for name in KEY} == KEY
    assert "text" not in graded
    table = verdict_table([graded, empty]).to_pylist()
    assert [row["correct"] for row in table] == [True, None]
    assert [row["generation"] for row in table] == [2, 0]
    assert [row["extracted"] for row in table] == ["4", None]
    assert [row["grader"] for row in table] == ["exact", "exact"]
    assert table[1]["reason"] == "not graded: no package"
    assert verdict_table([]).num_rows == 0


def test_half_characters_in_an_answer_can_be_stored() -> None:
    row = verdict_row(OUTPUT, Verdict(False, "a\ud800b", "\udfff", "exact"), 0)
    (stored,) = verdict_table([row]).to_pylist()
    assert stored["extracted"].startswith("a")
    assert stored["extracted"].endswith("b")
    stored["reason"].encode("utf-8")


def test_endings_are_numbered_with_their_bytes_and_scores() -> None:
    rows = ending_rows(OUTPUT, DOC, RULE, [[-1.0], [-2.0, -3.0]])
    assert [(row["ending"], row["n_bytes"], row["token_logprobs"]) for row in rows] == [
        (0, 2, [-1.0]),
        (1, 8, [-2.0, -3.0]),
    ]
    assert all(row["sample_id"] == "7" and row["seed"] == 3 for row in rows)
    with pytest.raises(ValueError, match="shorter"):
        ending_rows(OUTPUT, DOC, RULE, [[-1.0]])
