"""Which of several verdicts about one response counts."""

from __future__ import annotations

from typing import Any

import pytest

from orderlens.errors import UserInputError
from orderlens.store.verdicts import latest_verdicts
from orderlens.testing import make_table


def verdict(sample: str, correct: bool | None, generation: int | None = 0, **more: Any) -> dict[str, Any]:
    key = {"sample_id": sample, "order": "max-prob", "task": "t", "temperature": 0.0}
    return key | {"correct": correct, "extracted": "x", "grader": "g", "generation": generation} | more


def kept(rows: list[dict[str, Any]], grader: str | None = None) -> list[tuple[Any, ...]]:
    found = latest_verdicts(make_table("verdicts", rows), grader).to_pylist()
    return [(row["sample_id"], row["grader"], row["correct"]) for row in found]


@pytest.mark.parametrize(
    ("generations", "place"),
    [([0, 1, 2], 2), ([2, 0, 1], 0), ([0, 0], 1), ([None, 0], 1), ([1, None], 0), ([3], 0)],
)
def test_the_newest_generation_counts_and_among_equals_the_last(
    generations: list[int | None], place: int
) -> None:
    rows = [verdict("a", True, g, reason=str(i)) for i, g in enumerate(generations)]
    found = latest_verdicts(make_table("verdicts", rows)).to_pylist()
    assert [row["reason"] for row in found] == [str(place)]


@pytest.mark.parametrize(
    "other",
    [
        {"order": "random"},
        {"seed": 1},
        {"temperature": 0.5},
        {"sample_seed": 3},
        {"task": "u"},
        {"task": None},
    ],
)
def test_responses_that_differ_anywhere_in_their_key_have_their_own_verdicts(other: dict[str, Any]) -> None:
    table = make_table("verdicts", [verdict("a", True, 1), verdict("a", False, 0, **other)])
    assert latest_verdicts(table).num_rows == 2
    assert [row["correct"] for row in latest_verdicts(table).to_pylist()] == [True, False]


def test_no_verdicts_are_an_empty_table() -> None:
    assert latest_verdicts(make_table("verdicts", [])).num_rows == 0


def test_runs_read_together_keep_their_own_verdicts() -> None:
    rows = [verdict("a", True, run="one"), verdict("a", False, 1, run="two")]
    assert kept(rows) == [("a", "g", True), ("a", "g", False)]


def test_the_first_grader_by_name_counts_unless_another_is_asked_for() -> None:
    rows = [
        verdict("a", False, None, grader="strict"),
        verdict("a", True, None, grader="loose"),
        verdict("b", True, None, grader="strict", task="u"),
    ]
    assert kept(rows) == [("a", "loose", True), ("b", "strict", True)]
    with pytest.raises(UserInputError, match=r"no verdicts of grader 'loose' \(present: strict\)"):
        kept(rows, "loose")
    assert kept(rows, "strict") == [("a", "strict", False), ("b", "strict", True)]


def test_verdicts_without_the_name_of_a_rule_count_where_no_rule_is_named() -> None:
    assert kept([verdict("a", True, grader=None), verdict("b", False, 1, grader=None)]) == [
        ("a", None, True),
        ("b", None, False),
    ]
    assert kept([verdict("a", True, grader=None), verdict("b", False)]) == [("b", "g", False)]


def test_one_rule_per_task_and_no_text_lost() -> None:
    rows = [verdict("a", False, 0), verdict("a", True, 1, grader="h"), verdict("b", True, 0)]
    more = [verdict("c", True), verdict("c", False, 1, grader="h")]  # h spoke last of most, g of all
    for part in (rows, [*rows, *more]):
        assert {(row[0], row[1]) for row in kept(part)} == {(row["sample_id"], "g") for row in part}
    later = [*rows, verdict("b", False, 1, grader="h")]
    assert kept(later) == [("a", "h", True), ("b", "h", False)]
    assert kept(later, "g") == [("a", "g", False), ("b", "g", True)], "asked by name: its newest"
