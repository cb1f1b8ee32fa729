"""The option named last: worked examples, adversarial texts, and agreement with the golden solutions."""

from __future__ import annotations

import pytest

from orderlens.tasks.bundled import frozen_items
from orderlens.tasks.catalogue import get_task
from orderlens.tasks.graders import NAMED_GRADER, grade_named

DOC = {"options": ["north", "north-east", "3 o'clock", "13 o'clock"], "answer": "B", "answer_index": 1}


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("We go north, then east: north-east.\nAnswer: A", "B"),
        ("north-east at first, but in the end north.", "A"),
        ("It starts at 13 o'clock.", "D"),
        ("It starts at 3 o'clock, not at 13 o'clock, so 3 o'clock.", "C"),
        ("north\nAnswer: north-east", "A"),
        ("northern lights", None),
        ("", None),
        ("x" * 100_000 + " north", "A"),
        ("\u202enorth\u202c\x00", "A"),
    ],
)
def test_reads_the_option_named_last_before_the_answer_line(response, letter):
    verdict = grade_named(DOC, response)
    assert verdict.extracted == letter
    assert verdict.correct is (letter == "B")
    assert verdict.grader == NAMED_GRADER


@pytest.mark.parametrize(
    "doc", [{}, {"options": []}, {"options": ["a", "b"], "answer": "D"}, {"options": "ab"}]
)
def test_a_document_without_options_or_answer_is_a_verdict(doc):
    verdict = grade_named(doc, "a")
    assert not verdict.correct
    assert verdict.reason.startswith("the document has no ")


def test_golden_solutions_are_right_whatever_letter_follows():
    task = get_task("choice")
    assert NAMED_GRADER in task.graders
    for item in frozen_items("choice")[:300]:
        solution = item["solution"].rsplit("\nAnswer:", 1)[0]
        assert task.graders[NAMED_GRADER](item, f"{solution}\nAnswer: Z").correct


def test_a_solution_that_ends_on_another_option_is_wrong():
    for item in frozen_items("choice")[:100]:
        solution = item["solution"].rsplit("\nAnswer:", 1)[0]
        wrong = next(text for text in item["options"] if text != item["options"][item["answer_index"]])
        assert not grade_named(item, f"{solution} No, it is {wrong}.\nAnswer: {item['answer']}").correct
