from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlens.tasks import graders
from orderlens.tasks.graders import RULES, first_match, last_line_only, last_stated

STATED = [
    ("The answer is (D).", "D"),
    ("The answer is D. Robbery, because", "D"),
    ("answer is **(B) Yes, since a**", "B"),
    (r"The answer is \( I \).", "I"),
    ("The correct answer is:\nA. (2uv, 1, 1)", "A"),
    ("Answer: C", "C"),
    ("ANSWER: C", "C"),
    ("**Answer:** C", "C"),
    ("**Answer: C**", "C"),
    ("answer: c", "C"),
    ("Answer: (c)", "C"),
    (r"\boxed{E}", "E"),
    (r"$\boxed{\text{E}}$", "E"),
    (r"The final answer is $\boxed{\text{(E)}}$.", "E"),
    ("so the answer is option F", "F"),
    ("Option (G) is correct.", "G"),
    ("So, (C) is the answer.", "C"),
    ("Hence D is the final answer", "D"),
    ("(B) is the correct answer", "B"),
    ("the best choice is H", "H"),
    ("The correct option is **E**.", "E"),
    ("B", "B"),
    ("reasons\n(B)", "B"),
    ("reasons\n**B.**", "B"),
    ("B. Larceny, because", "B"),
    ("(B) Larceny", "B"),
    ("答案是C", "C"),
    ("答案：C。", "C"),
    ("故选：B。", "B"),
    ("Answer:\n\nC", "C"),
    ("Ａｎｓｗｅｒ：Ｃ", "C"),
    ("the answer would be 'C'", "C"),
    ("Answer - C", "C"),
    ("Answer: [C]", "C"),
    ("The answer to the question is D", "D"),
    ("Answer: A\nAnswer: B", "B"),
    ("Answer: A\n\nI hope that helps!", "A"),
    ("The answer is C, not B.", "C"),
    ("\u200fAnswer: C\u200e", "C"),
    (r"\text{Answer: } B", "B"),
    ("### Answer\nB", "B"),
    ("The answer is (D) 37.99 Btu/hr", "D"),
    ("### Final Answer\n\nC. because", "C"),
    ("<answer>C</answer>", "C"),
    ("Ans: B", "B"),
    ("Final Answer: **C. Text**", "C"),
    ("答案选C", "C"),
]
SILENT = [
    "",
    " \n",
    "I don't know",
    "A man walks in.",
    "The answer is a matter of taste",
    "The answer is I think B",
    "The answer is not B",
    "Answer: Apple",
    "The answer is Cs",
    "the answer is A's",
    "A is correct that x holds",
    "Options:\nA. one\nB. two",
    "answer",
    "answer is",
    "A is the answer to life",
    "C is the answer that nobody gave",
    "The answer is C-reactive protein",
    "The answer is E = mc^2",
    r"\boxed{C = 5}",
    "This is my answer\nA man walks in",
    "选项A错误，选项B也不对",
]


@pytest.mark.parametrize(("response", "letter"), STATED)
def test_statements(response: str, letter: str) -> None:
    assert last_stated(response) == letter


@pytest.mark.parametrize("response", SILENT)
def test_no_statement(response: str) -> None:
    assert last_stated(response) is None


def test_the_rules_differ_where_they_should() -> None:
    response = "Answer: A\nno wait\nANSWER: b\nAnswer: C\nThat is all."
    assert last_stated(response) == "C"
    assert last_line_only(response) is None
    assert first_match(response) == "A"
    assert last_line_only("Answer: A\nAnswer: C\n\n") == "C"
    for ending in ("The answer is C.", "Answer: (C)", "C"):  # the paper's pattern is "Answer: X"
        assert (last_stated(ending), last_line_only(ending)) == ("C", None)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ANSWERanswer: \n*bBcC(p", max_size=60))
def test_last_line_only_is_the_same_pattern_in_the_last_line(response: str) -> None:
    lines = [line for line in response.split("\n") if line.strip()]
    hit = re.search(r"(?i)ANSWER\s*:\s*([A-P])", lines[-1]) if lines else None
    assert last_line_only(response) == (hit.group(1) if hit else None)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ANSWERanswer: \n*bBcC(p", max_size=60))
def test_first_match_is_opencompass(response: str) -> None:
    hit = re.search(r"(?i)ANSWER\s*:\s*([A-P])", response)
    assert first_match(response) == (hit.group(1) if hit else None)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.sampled_from("ABCDEFGHIJ"))
def test_an_obedient_last_line_always_wins(before: str, letter: str) -> None:
    assert last_stated(f"{before}\nANSWER: {letter}") == letter
    assert last_line_only(f"{before}\nANSWER: {letter}") == letter


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_every_rule_is_total(response: str) -> None:
    for rule in RULES.values():
        assert rule(response) is None or len(rule(response) or "") == 1


HOSTILE = [
    "answer is ",
    "answer",
    "(",
    "*",
    " ",
    "\\boxed{",
    "answer:(",
    "A",
    "A ",
    "A is the ",
    "\n",
    "ANSWER ",
    "答案是",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_texts_end(piece: str) -> None:
    text = (piece * 100_000)[:100_000]
    assert {rule(text) for rule in RULES.values()} <= {None, *graders.LETTERS}


def test_no_pattern_can_backtrack_without_bound(endless_patterns) -> None:  # type: ignore[no-untyped-def]
    assert endless_patterns(graders) == {"_OPENCOMPASS"}  # to the letter; its spaces follow a whole word


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("不选A，选B", "B"),
        ("应选：D", "D"),
        ("故答案为：B．", "B"),
        ("正确答案是 B", "B"),
        ("答案为（B）", "B"),
        ("So A is wrong. B is right.", "B"),
        ("B is the right answer, so A isn't", "B"),
        ("E is the only correct option", "E"),
        (r"\boxed{B} or \boxed{C}", "C"),
        (r"$$\boxed{\textbf{B}}$$", "B"),
        ("final answer: **d**", "D"),
        ("I think the answer is probably B.", "B"),
        ("The answer is B.\n\nLet me double-check: Actually the answer is C.", "C"),
        ("Answer: A\n\nQuestion: next\nAnswer: B", "B"),
        ("Answer: P", "P"),
        ("Answer: `B`", "B"),
        ("A\nB\nC", "C"),
        ("[b]", "B"),
    ],
)
def test_more_statements(response: str, letter: str) -> None:
    assert last_stated(response) == letter


@pytest.mark.parametrize(
    "response",
    [
        "不选B",
        "不应选B",
        "不应该选B",
        "不能选B",
        "别选B",
        "The answer is not A but B",
        "The answer isn't A",
        "The correct answer is not C",
        "The answer is either A or B.",
        "A is not correct",
        "A is incorrect",
        "Answer: None of the above",
        "Answer: Q",
        "Answer: а",  # Cyrillic
        r"\boxed{AB}",
        r"\boxed{2}",
        "none of A, B, C, D",
        "1. A",
    ],
)
def test_denials_and_other_letters_are_no_statement(response: str) -> None:
    assert last_stated(response) is None
