from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens import tasks
from orderlens.errors import DataFileError, UnknownNameError
from orderlens.tasks.graders import Verdict
from orderlens.tasks.protocol import cut_at_stop

GOLD: dict[str, dict[str, Any]] = {
    "hellaswag": {"label": 2, "endings": ["a", "b", "c", "d"]},
    "cmath": {"golden": "18"},
    "mmlu-pro": {"answer": "C", "answer_index": 2, "options": ["w", "x", "y", "z"]},
    "gsm8k": {"answer": "6*3=<<6*3=18>>18\n#### 18"},
    "arith": {"golden": "18"},
    "choice": {"answer": "C", "answer_index": 2, "options": ["w", "x", "y", "z"]},
}
RIGHT = {
    name: "Answer: C" if "options" in doc or "endings" in doc else "so it is 18."
    for name, doc in GOLD.items()
}
WRONG = {
    name: "Answer: D" if "options" in doc or "endings" in doc else "so it is 19."
    for name, doc in GOLD.items()
}


@pytest.mark.parametrize("name", GOLD)
def test_gold_fields_suffice(name: str) -> None:
    assert tasks.grade(name, GOLD[name], RIGHT[name]).correct
    verdict = tasks.grade(name, GOLD[name], WRONG[name])
    assert not verdict.correct
    assert verdict.extracted in ("D", "19")
    assert verdict.reason
    assert verdict.grader


@pytest.mark.parametrize("name", GOLD)
@pytest.mark.parametrize("response", ["", " \n\t", None, 7, b"18", ["C"], "\x00\x01", "؟؟؟", "\u202e"])
def test_nothing_to_grade_is_incorrect_with_a_reason(name: str, response: object) -> None:
    verdict = tasks.grade(name, GOLD[name], response)
    assert not verdict.correct
    assert verdict.reason


@pytest.mark.parametrize("name", GOLD)
@pytest.mark.parametrize("junk", [None, "", [], {}, -1, 3.5, True, "no number", float("nan")])
def test_unusable_documents_are_refused_and_never_graded(name: str, junk: object) -> None:
    with pytest.raises(DataFileError, match=rf"^{name}, the document: has no '"):
        tasks.grade(name, {}, RIGHT[name])
    if not (name in ("cmath", "arith", "gsm8k") and junk in (-1, 3.5)):  # numbers are references there
        with pytest.raises(DataFileError, match=rf"^{name}, document 'x7': |^{name}, the document: "):
            tasks.grade(name, dict.fromkeys(GOLD[name], junk) | {"id": "x7"}, RIGHT[name])


@pytest.mark.parametrize(
    ("name", "doc", "message"),
    [
        ("gsm8k", {"question": "q"}, "has no 'answer'"),
        ("gsm8k", {"answer": "#### many"}, "'answer' holds no reference number"),
        (
            "mmlu-pro",
            {"question_id": 3, "answer": "C", "options": []},
            "document '3': 'options' is not a list",
        ),
        ("mmlu-pro", {"answer": "D", "options": ["a", "b"]}, "'answer' or 'answer_index' names no option"),
        ("hellaswag", {"endings": ["a", "b"], "label": 2}, "'label' names no option"),
        ("choice", {"options": ["a", "b"]}, "has no 'answer' or 'answer_index'"),
    ],
)
def test_the_field_at_fault_is_named(name: str, doc: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        tasks.grade(name, doc, "Answer: C")


def test_letters_past_the_options() -> None:
    past = tasks.grade("mmlu-pro", {"answer": "C", "options": ["a", "b", "c"]}, "Answer: D")
    assert (past.correct, past.extracted) == (False, "D")
    assert "3 options" in past.reason


def test_the_letter_wins_over_a_disagreeing_index() -> None:
    doc = {"question_id": 3983, "answer": "C", "answer_index": 1, "options": ["a", "b", "c"]}
    assert tasks.grade("mmlu-pro", doc, "Answer: C").correct
    assert not tasks.grade("mmlu-pro", doc, "Answer: B").correct
    assert tasks.grade("mmlu-pro", {"answer_index": 1, "options": ["a", "b"]}, "Answer: B").correct


def test_hub_rows_with_text_labels_are_understood() -> None:
    assert tasks.grade("hellaswag", {"label": "3", "endings": list("abcd")}, "The answer is D").correct


@pytest.mark.parametrize(
    ("golden", "response", "correct"),
    [
        ("40%", "便宜了40%", True),
        ("40%", "百分之四十", True),
        ("40%", "0.4", True),
        ("40%", "40", False),
        ("4/10", r"\frac{2}{5}", True),
        ("0.80", "0.8元", True),
        ("80000", "大约8万元", True),
        ("48", "48万元", True),
        ("250/3", "83.33", False),
        ("250/3", r"$\dfrac{250}{3}$", True),
        ("155.004", "155.004", True),
        (18, "18", True),
    ],
)
def test_cmath_references(golden: object, response: str, correct: bool) -> None:
    assert tasks.grade("cmath", {"golden": golden}, response).correct is correct


def test_percent_is_a_unit_in_gsm8k() -> None:
    assert tasks.grade("gsm8k", {"answer": "#### 60"}, "So 60%.").correct
    assert tasks.grade("gsm8k", {"answer": "#### 1,450,000"}, "$1450000.00").correct


def test_graders_can_be_chosen_by_name() -> None:
    doc = GOLD["mmlu-pro"]
    response = "Answer: A\nAnswer: C"
    assert tasks.grade("mmlu-pro", doc, response).correct
    assert not tasks.grade("mmlu-pro", doc, response, grader="first-match").correct
    assert not tasks.grade("mmlu-pro", doc, "answer: c", grader="first-match").correct
    with pytest.raises(UnknownNameError, match="did you mean 'first-match'"):
        tasks.grade("mmlu-pro", doc, response, grader="first_match")


def test_unknown_tasks_are_named_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cmath'"):
        tasks.grade("cmathh", {}, "18")
    assert tasks.get_task("MMLU_Pro").name == "mmlu-pro"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(GOLD)),
    st.text(max_size=200),
    st.dictionaries(
        st.sampled_from(["golden", "answer", "label", "options", "endings", "answer_index"]),
        st.none() | st.text(max_size=5) | st.integers() | st.lists(st.text(max_size=3), max_size=3),
        max_size=4,
    ),
)
def test_a_response_never_fails_and_a_document_only_in_one_way(
    name: str, response: str, extra: dict[str, Any]
) -> None:
    for doc in (GOLD[name], extra, GOLD[name] | extra):
        try:
            assert isinstance(tasks.grade(name, doc, response), Verdict)
        except DataFileError:
            assert doc is not GOLD[name]


@pytest.mark.parametrize("name", GOLD)
def test_long_responses(name: str) -> None:
    assert tasks.grade(name, GOLD[name], "שלום \u202e" * 15_000 + "\n" + RIGHT[name]).correct
    assert not tasks.grade(name, GOLD[name], "z" * 100_000).correct


def test_cut_at_stop() -> None:
    assert cut_at_stop("42\n\nQuestion: next", ("\n\n", "Question:")) == "42"
    assert cut_at_stop("42", ("\n\n",)) == "42"
    assert cut_at_stop("42", ()) == "42"
