"""CMath's literal rule: the last numeric span, equal as a string after its form is normalised."""

from __future__ import annotations

import pytest

from orderlens import tasks
from orderlens.tasks.evaluation.grading import grade_output
from orderlens.tasks.word_problems import LITERAL, literal_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("先算 12，答案：1,250.50 元", "1250.5"),
        ("007", "7"),
        ("-0.0", "0"),
        ("3 - 5 = -2", "-2"),
        ("40%", "40"),
        ("2/5", "5"),
        ("三", None),
    ],
)
def test_the_last_span_in_its_plain_form(text, found):
    assert literal_number(text) == found


@pytest.mark.parametrize(
    ("golden", "response", "literal", "ours"),
    [
        ("40%", "答案：0.4", False, True),
        ("40%", "答案：40", True, False),
        ("12", "答案：12.0", True, True),
        ("12", "没有", False, False),
    ],
)
def test_it_differs_from_ours_where_numbers_have_several_forms(golden, response, literal, ours):
    doc, task = {"question": "q", "golden": golden}, tasks.get_task("cmath")
    verdict = grade_output(task, doc, LITERAL, {"text": response}, None)
    assert (verdict.correct, verdict.grader) == (literal, LITERAL)
    assert tasks.grade("cmath", doc, response).correct is ours
