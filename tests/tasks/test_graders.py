"""The shared graders and what makes a document ungradable, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from orderlens import tasks
from orderlens.errors import DataFileError, UnknownNameError, UserInputError
from orderlens.tasks.graders import (
    Verdict,
    as_index,
    count_options,
    gold_letter,
    grade_letter,
    grade_number,
    instruction_flaw,
    letter_flaw,
    number_flaw,
    require_gradable,
)
from orderlens.tasks.protocol import choose_grader, cut_at_stop, likelihood_rules, pick_grader


@pytest.mark.parametrize(
    ("golden", "response", "correct", "extracted", "reason"),
    [
        ("18", "it is 18", True, "18", "last number 18 equals 18"),
        ("18", "18 of 20", False, "20", "last number 20 differs from 18"),
        (18.0, "18", True, "18", "last number 18 equals 18.0"),
        (-3, "so -3", True, "-3", "last number -3 equals -3"),
        ("none", "18", False, None, "the document has no usable reference number (got 'none')"),
        (True, "1", False, None, "the document has no usable reference number (got True)"),
        (["18"], "18", False, None, "the document has no usable reference number (got ['18'])"),
        ("18", "", False, None, "empty response"),
        ("18", " \n", False, None, "empty response"),
        ("18", None, False, None, "empty response"),
        ("18", 18, False, None, "the response is not text"),
        ("18", "many", False, None, "no readable number in the response"),
    ],
)
def test_numbers(golden: object, response: object, correct: bool, extracted: str, reason: str) -> None:
    assert grade_number(golden, response) == Verdict(correct, extracted, reason, "last-number")


@pytest.mark.parametrize(
    ("gold", "n_options", "response", "correct", "extracted", "reason"),
    [
        ("B", 4, "Answer: B", True, "B", "letter B equals B"),
        ("B", 4, "Answer: C", False, "C", "letter C differs from B"),
        ("B", 2, "Answer: C", False, "C", "letter C is not among the 2 options"),
        ("B", None, "Answer: P", False, "P", "letter P differs from B"),
        ("B", 4, "no idea", False, None, "no answer letter in the response"),
        ("B", 0, "Answer: B", False, None, "the document has no options"),
        (None, 4, "Answer: B", False, None, "the document has no usable answer field"),
        ("B", 4, "", False, None, "empty response"),
        ("B", 4, b"B", False, None, "the response is not text"),
    ],
)
def test_letters(
    gold: str | None, n_options: int | None, response: object, correct: bool, extracted: str, reason: str
) -> None:
    found = grade_letter(gold, n_options, response, "last-line")
    assert found == Verdict(correct, extracted, reason, "last-line")


def test_opencompass_compares_case_by_case() -> None:
    assert not grade_letter("B", 4, "answer: b", "first-match").correct
    assert grade_letter("B", 4, "answer: b", "first-match").extracted == "b"
    assert grade_letter("B", 4, "answer: b", "last-line").correct


@pytest.mark.parametrize(
    ("letter", "index", "gold"),
    [
        ("c", 0, "C"),
        (" C ", None, "C"),
        ("CC", 1, "B"),
        ("Q", 1, "B"),
        ("", "2", "C"),
        (None, 15, "P"),
        (None, 16, None),
        (None, -1, None),
        (None, True, None),
        (3, None, None),
    ],
)
def test_reference_letters(letter: object, index: object, gold: str | None) -> None:
    assert gold_letter(letter, index) == gold


@pytest.mark.parametrize(
    ("value", "index"),
    [(0, 0), ("7", 7), (" 7 ", 7), ("٧", 7), ("-1", None), ("1.0", None), ("9" * 10, None), (False, None)],
)
def test_indices(value: object, index: int | None) -> None:
    assert as_index(value) == index


@pytest.mark.parametrize(("options", "n"), [(None, None), ([], 0), ("abcd", 0), (7, 0), (("a", "b"), 2)])
def test_numbers_of_options(options: object, n: int | None) -> None:
    assert count_options(options) == n


NUMBER, MARKED = number_flaw("golden"), number_flaw("answer", "####")
LETTER, INDEX = letter_flaw("options", "answer", "at"), letter_flaw("options", None, "at")


@pytest.mark.parametrize(
    ("flaw", "doc", "message"),
    [
        (NUMBER, {"golden": "about 3"}, None),
        (NUMBER, {"golden": 0}, None),
        (NUMBER, {}, "has no 'golden'"),
        (NUMBER, {"golden": "many"}, "'golden' holds no reference number (it is 'many')"),
        (MARKED, {"answer": "5 is no reference #### 7"}, None),
        (MARKED, {"answer": "5 #### none"}, "'answer' holds no reference number (it is '5 #### none')"),
        (MARKED, {"answer": 7}, None),
        (LETTER, {"answer": "B"}, None),
        (LETTER, {"options": ["a", "b"], "answer": "B"}, None),
        (LETTER, {"options": ["a", "b"], "at": 1}, None),
        (LETTER, {"options": ["a", "b"], "answer": "C"}, "'answer' or 'at' names no option (it is 'C')"),
        (LETTER, {"options": ["a", "b"], "at": 2}, "'answer' or 'at' names no option (it is 2)"),
        (LETTER, {"options": "ab", "answer": "A"}, "'options' is not a list of options (it is 'ab')"),
        (LETTER, {"options": [], "answer": "A"}, "'options' is not a list of options (it is [])"),
        (LETTER, {"options": ["a"]}, "has no 'answer' or 'at'"),
        (INDEX, {"options": ["a"]}, "has no 'at'"),
        (INDEX, {"options": ["a"], "at": "x"}, "'at' names no option (it is 'x')"),
        (instruction_flaw, {"instruction_id_list": ["a"], "kwargs": [{}]}, None),
        (instruction_flaw, {"kwargs": []}, "has no 'instruction_id_list'"),
        (instruction_flaw, {"instruction_id_list": ["a"]}, "has no 'kwargs'"),
        (
            instruction_flaw,
            {"instruction_id_list": "a", "kwargs": []},
            "'instruction_id_list' is not a list (it is 'a')",
        ),
        (instruction_flaw, {"instruction_id_list": [], "kwargs": []}, "'instruction_id_list' is empty"),
        (
            instruction_flaw,
            {"instruction_id_list": [3], "kwargs": [{}]},
            "'instruction_id_list' holds an entry that is not text",
        ),
        (
            instruction_flaw,
            {"instruction_id_list": ["a", "b"], "kwargs": [{}]},
            "'kwargs' has 1 entries for 2 instructions",
        ),
    ],
)
def test_flaws(flaw: Any, doc: dict[str, Any], message: str | None) -> None:
    assert flaw(doc) == message


def test_long_values_are_cut_in_messages() -> None:
    message = number_flaw("golden")({"golden": "x" * 500})
    assert message is not None
    assert len(message) < 120


def test_a_flaw_names_task_and_row() -> None:
    require_gradable("cmath", None, "row 3")
    with pytest.raises(DataFileError, match=r"^cmath, row 3: has no 'golden'$"):
        require_gradable("cmath", "has no 'golden'", "row 3")


def test_graders_are_chosen_by_name_likelihood_first() -> None:
    hellaswag, cmath = tasks.get_task("hellaswag"), tasks.get_task("cmath")
    assert choose_grader(hellaswag, None) == "likelihood-token"
    assert choose_grader(hellaswag, "likelihood-byte") == "likelihood-byte"
    assert choose_grader(hellaswag, "first-match") == "first-match"
    assert choose_grader(cmath, None) == "last-number"
    assert likelihood_rules(cmath) == {}
    assert pick_grader(cmath, None) is cmath.graders["last-number"]
    with pytest.raises(UnknownNameError, match=r"grader 'likelihood-bytes' of hellaswag.*did you mean"):
        choose_grader(hellaswag, "likelihood-bytes")
    with pytest.raises(UnknownNameError, match=r"\(known: last-number, literal-number\)"):
        choose_grader(cmath, "x")


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("a\nQuestion: b", ("\nQuestion:",), "a"),
        ("aXbYc", ("Y", "X"), "a"),
        ("Xa", ("X",), ""),
        ("abc", ("",), "abc"),
        ("abc", ("", "c"), "ab"),
    ],
)
def test_the_first_of_the_stop_strings_cuts(text: str, stop: tuple[str, ...], left: str) -> None:
    assert cut_at_stop(text, stop) == left


def test_a_task_without_data_asks_for_a_source() -> None:
    from dataclasses import replace

    bare = replace(tasks.get_task("cmath"), name="mine", hub=None)  # type: ignore[type-var]
    with pytest.raises(UserInputError, match="task 'mine' comes without data; add --source mine=FILE"):
        bare.load()


@pytest.mark.parametrize(
    ("name", "doc", "parts"),
    [
        ("cmath", {"question": "有几个？"}, ["题目：有几个？", "答案："]),
        ("gsm8k", {"question": "How many?"}, ["Problem: How many?", "'Answer:'"]),
        (
            "mmlu-pro",
            {"question": "Which?", "options": [" one", "two ", "three"]},
            ["Question:\nWhich?", "\nA. one\nB. two\nC. three", "X is one of ABC."],
        ),
        ("ifeval", {"prompt": "Write, no commas."}, ["Write, no commas."]),
    ],
)
def test_prompts_show_everything_once(name: str, doc: dict[str, Any], parts: list[str]) -> None:
    prompt = tasks.get_task(name).prompt(doc)
    assert [prompt.count(part) for part in parts] == [1] * len(parts)
    if name == "ifeval":
        assert prompt == doc["prompt"]


def test_per_instruction_outcomes_are_stored_as_one_text() -> None:
    assert Verdict(True, None, "").instructions_json() is None
    stored = Verdict(False, "1/2", "", "strict", [True, False], False, [True, True]).instructions_json()
    assert stored == '{"strict": [true, false], "loose": [true, true]}'
