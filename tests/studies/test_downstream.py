"""Findings in plain language: counts in the headline, places that share a reason, groups by outcome."""

from __future__ import annotations

import pytest

from orderlens.claims.checks import NOT_SUPPORTED, OPEN, OUTCOMES, SUPPORTED, Check
from orderlens.claims.correctness import ALL_ORDERS
from orderlens.claims.judge import Finding, judge
from orderlens.metrics.estimate import Estimate
from orderlens.studies.downstream import HEADINGS, DownstreamReading

YES, NO, UNSURE = Estimate(1.0, 0.98, 1.02, 500), Estimate(-1.0, -1.02, -0.98, 500), Estimate(0.0, -9, 9, 500)
SILENT = Estimate.undefined("fewer than 20 correct")
NAMES = ("lower-when-correct", "survives-controls", "better-than-mean")


def reading(by_finding: dict[str, dict[str, Estimate]], task: str = "t") -> DownstreamReading:
    findings = [
        Finding(
            name,
            f"Claim {name}.",
            tuple(Check("number", cell, margin=0.1, where=where) for where, cell in cells.items()),
            task=task,
        )
        for name, cells in by_finding.items()
    ]
    return DownstreamReading(judge(findings).findings)


ALL_YES = {"a": YES, "b": YES}


def alike(cells: dict[str, Estimate]) -> dict[str, dict[str, Estimate]]:
    return dict.fromkeys(NAMES, cells)


def test_the_cells_mean_what_the_test_says() -> None:
    found = reading(alike({"a": YES, "b": NO, "c": UNSURE, "d": SILENT}))
    words = [part.outcome for part in found.findings[0].parts()]
    assert words == [SUPPORTED, NOT_SUPPORTED, OPEN, OPEN]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (ALL_YES, "lower Var in 2 of 2 orders;"),
        ({"a": YES, "b": NO}, "lower Var in 1 of 2 orders (1 not);"),
        ({"a": YES, "b": UNSURE, "c": SILENT}, "lower Var in 1 of 3 orders (2 open);"),
        ({"a": NO, "b": UNSURE}, "lower Var in 0 of 2 orders (1 not, 1 open);"),
    ],
)
def test_the_headline_counts_orders_by_outcome(cells: dict[str, Estimate], said: str) -> None:
    (line,) = reading({NAMES[0]: cells, NAMES[1]: ALL_YES, NAMES[2]: ALL_YES}).headlines()
    assert line.startswith("t: correct answers have ")
    assert said in line
    assert line.endswith("Var predicts better than mean log q in 2 of 2 orders.")


def test_the_check_over_all_orders_is_no_order() -> None:
    (line,) = reading(
        {NAMES[0]: ALL_YES, NAMES[1]: {"a": YES, "b": YES, ALL_ORDERS: YES}, NAMES[2]: ALL_YES}
    ).headlines()
    assert "length in 2 of 2 orders" in line


def test_a_task_without_numbers_says_so_and_one_at_chance_warns() -> None:
    silent = alike({"a": SILENT})
    assert reading(silent).headlines() == [
        "t: too few correct or incorrect answers under every order to say anything about Var."
    ]
    guessing = {"beats-guessing": {"a": UNSURE, "b": NO}} | alike(ALL_YES)
    assert "no order is shown to answer better than guessing" in reading(guessing).headlines()[0]
    better = {"beats-guessing": {"a": YES, "b": NO}} | alike(ALL_YES)
    assert "guesses" not in reading(better).headlines()[0]


def test_groups_hold_each_place_once_under_its_outcome() -> None:
    found = reading({NAMES[0]: {"a": YES, "b": NO, "c": UNSURE}, NAMES[1]: ALL_YES, NAMES[2]: ALL_YES})
    groups = dict(found.groups())
    assert list(groups) == [HEADINGS[word] for word in OUTCOMES]
    lines = {
        heading: [(finding.id, text) for finding, texts in members for text in texts]
        for heading, members in groups.items()
    }
    supported, refused, left = (lines[HEADINGS[word]] for word in (SUPPORTED, NOT_SUPPORTED, OPEN))
    assert [name for name, _ in supported] == [NAMES[0], NAMES[1], NAMES[1], NAMES[2], NAMES[2]]
    assert [(name, text.partition(":")[0]) for name, text in refused] == [(NAMES[0], "b")]
    assert [(name, text.partition(":")[0]) for name, text in left] == [(NAMES[0], "c")]


def test_places_that_are_silent_for_one_reason_share_a_line() -> None:
    other = Estimate.undefined("no such trace")
    found = reading(
        {NAMES[0]: {"a": SILENT, "b": YES, "c": SILENT, "d": other}, NAMES[1]: ALL_YES, NAMES[2]: ALL_YES}
    )
    ((_, texts),) = dict(found.groups())[HEADINGS[OPEN]]
    assert len(texts) == 2
    assert texts[0].startswith("a, c: ")
    assert "fewer than 20 correct" in texts[0]
    assert texts[1].startswith("d: ")


def test_text_and_record_hold_facts_headlines_and_the_number_of_checks() -> None:
    found = reading(alike(ALL_YES))
    told = DownstreamReading(found.findings, ("Model m.", "t: 9 items."))
    text = told.text()
    assert text.index("Model m.") < text.index("t: 9 items.") < text.index(told.headlines()[0])
    assert "6 checks were made" in text
    assert text.count("  Nothing.") == 2, "nothing refused and nothing left open"
    record = told.record()
    assert record["facts"] == ["Model m.", "t: 9 items."]
    assert record["headlines"] == told.headlines()
    assert record["n_checks"] == 6
    assert [item["id"] for item in record["findings"]] == list(NAMES)


def test_tasks_have_a_headline_each_in_their_sequence() -> None:
    parts = [reading(alike(ALL_YES), task).findings for task in ("z", "a")]
    both = DownstreamReading((*parts[0], *parts[1]))
    assert [line.partition(":")[0] for line in both.headlines()] == ["z", "a"]
