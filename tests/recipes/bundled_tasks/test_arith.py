"""Every worked solution is parsed and recomputed from its text alone, without our own evaluator."""

import re

import pytest
from bundled_tasks import arith_stories
from bundled_tasks import generator as bundled

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
WORD_NUMBERS = {"twice", "double", "two times", "half"}


@pytest.fixture(scope="module")
def items():
    return bundled.items("arith", "test", 700) + bundled.items("arith", "train", 700)


def recomputed(left: int, op: str, right: int) -> float:
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[op]


def equations(item):
    return [(int(a), op, int(b), int(c)) for a, op, b, c in EQUATION.findall(item["solution"])]


def test_every_step_is_right_and_the_last_result_is_the_answer(items):
    for item in items:
        steps = equations(item)
        assert steps, item
        for left, op, right, result in steps:
            assert recomputed(left, op, right) == result, item["solution"]
        assert steps[-1][3] == int(item["golden"]) >= 0


def test_solution_ends_with_the_answer_sentence_and_its_last_number_is_golden(items):
    for item in items:
        assert item["solution"].endswith(f"The answer is {item['golden']}.")
        assert re.findall(r"\d+", item["solution"])[-1] == item["golden"]


def test_operands_come_from_the_question_or_an_earlier_step_and_every_given_number_is_used(items):
    for item in items:
        given = {int(n) for n in re.findall(r"\d+", item["question"])}
        known, used = set(given), set()
        if any(word in item["question"] for word in WORD_NUMBERS):
            known.add(2)
        for left, _, right, result in equations(item):
            assert {left, right} <= known, item
            used |= {left, right}
            known.add(result)
        assert given <= used, item


def test_number_of_steps_is_the_level(items):
    for item in items:
        assert len(equations(item)) == item["level"]


def test_numbers_stay_small_and_plurals_are_right(items):
    for item in items:
        numbers = [int(n) for n in re.findall(r"\d+", item["prompt"] + item["solution"])]
        assert min(numbers) >= 2  # so that "2 apples" is never "1 apples"
        assert max(numbers) <= 100
        for left, op, _, result in equations(item):
            assert op in "*/" or max(left, result) <= 40


@pytest.mark.parametrize("level", bundled.LEVELS)
def test_story_wordings_agree_on_their_steps(level):
    for story in arith_stories.BY_LEVEL[level]:
        assert story.level == level
        shown = {tuple(re.findall(r"\{\w=\w+[-+*/]\w+\}", text)) for text in story.solutions}
        assert len(shown) == 1, story.key


def test_story_keys_are_unique():
    keys = [story.key for stories in arith_stories.BY_LEVEL.values() for story in stories]
    assert len(keys) == len(set(keys)) >= 39


def test_wording_varies(items):
    # With numbers, names and things taken out, what is left is the wording.
    people = re.compile(r"\b[A-Z][a-z]+\b")
    skeletons = {people.sub("N", re.sub(r"\d+", "0", item["question"])) for item in items}
    openings = {" ".join(item["question"].split()[:6]) for item in items}
    assert len(skeletons) > 700
    assert len(openings) > 560


def test_articles_agree_with_the_next_word(items):
    for item in items:
        text = item["question"] + " " + item["solution"]
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text), text


def test_solutions_are_short(items):
    words = [len(item["solution"].split()) for item in items]
    assert max(words) <= 60
    assert min(words) >= 12
