"""Determinism, the split, ids, the format that both tasks share, and the items that the package holds."""

import hashlib
import itertools
import json
import re
import subprocess
import sys

import pytest
from bundled_tasks import generator as bundled
from bundled_tasks.freeze import as_lines, frozen

from orderlens.errors import UnknownNameError, UserInputError
from orderlens.tasks.bundled import DIGESTS, frozen_items

TASKS = sorted(bundled.TASKS)


def first(task, n, seed=0, start=0):
    return list(itertools.islice(bundled.training_documents(task, seed, start), n))


def bare(text):
    """The text without wording-free noise: lower case, no spaces."""
    return re.sub(r"\W+", " ", text.lower()).strip()


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_same_items_and_another_seed_others(task):
    assert bundled.items(task, "test", 60, seed=4) == bundled.items(task, "test", 60, seed=4)
    assert bundled.items(task, "test", 60, seed=4) != bundled.items(task, "test", 60, seed=5)
    assert first(task, 40, seed=1) == first(task, 40, seed=1)
    assert first(task, 40, seed=1) != first(task, 40, seed=2)


@pytest.mark.parametrize("task", TASKS)
def test_prefixes_and_resumes_agree(task):
    assert bundled.items(task, "test", 200)[:50] == bundled.items(task, "test", 50)
    assert first(task, 30, start=20) == first(task, 50)[20:]


@pytest.mark.parametrize("task", TASKS)
def test_no_test_item_occurs_among_thousands_of_training_documents(task):
    trained = {bare(doc.split("\nSolution:")[0]) for seed in (0, 1, 7) for doc in first(task, 1000, seed)}
    tested = {bare(item["prompt"].split("\nSolution:")[0]) for item in bundled.items(task, "test", 800)}
    assert len(tested) == 800
    assert not trained & tested


@pytest.mark.parametrize("task", TASKS)
def test_the_key_decides_the_split_whatever_the_seed(task):
    make = bundled.TASKS[task]
    keys = {"test": set(), "train": set()}
    for split, seed, index in itertools.product(keys, (0, 3), range(500)):
        rng = bundled._stream(task, split, seed, index)
        keys[split].add(bundled._draw(make, rng, split, 1 + index % 3).key)
    assert not keys["test"] & keys["train"]
    assert {bundled.split_of(key) for key in keys["test"]} == {"test"}


def test_about_an_eighth_of_the_keys_are_test_keys():
    share = sum(bundled.split_of(("k", i)) == "test" for i in range(8000)) / 8000
    assert 0.11 < share < 0.14


def test_the_key_of_a_story_leaves_out_names_things_and_wording():
    """So that a test item with another name or wording cannot be a training item."""
    one, two = (bundled._stream("arith", "x", 0, i) for i in (0, 1))
    from bundled_tasks import arith_stories

    story = arith_stories.BY_LEVEL[1][0]
    problems = [story.problem(rng) for rng in (one, two) for _ in range(1000)]
    by_key = {}
    for problem in problems:
        by_key.setdefault(problem.key, set()).add(problem.question)
    assert max(len(questions) for questions in by_key.values()) > 1


@pytest.mark.parametrize("task", TASKS)
def test_ids_are_unique_and_stable(task):
    items = bundled.items(task, "test", 600) + bundled.items(task, "train", 600)
    assert len({item["id"] for item in items}) == 1200
    assert all(re.fullmatch(rf"{task}-[123]-[0-9a-f]{{12}}", item["id"]) for item in items)


def test_items_do_not_depend_on_the_hash_seed_of_the_process():
    ids = "[i['id'] for t in bundled.TASKS for i in bundled.items(t, 'test', 20)]"
    code = f"from bundled_tasks import generator as bundled; print({ids})"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] == f"{[i['id'] for t in bundled.TASKS for i in bundled.items(t, 'test', 20)]}\n"


@pytest.mark.parametrize("task", TASKS)
def test_documents_have_the_prompt_format_of_the_items(task):
    for doc in first(task, 200):
        prompt, solution = doc.split("\nSolution: ")
        assert prompt.startswith("Question: ")
        assert solution
        assert "{" not in doc
        assert "  " not in doc
        assert doc.isascii()
    item = bundled.items(task, "train", 1)[0]
    assert bundled.document(item) == f"{item['prompt']} {item['solution']}"
    assert item["prompt"].endswith("\nSolution:")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("level", bundled.LEVELS)
def test_one_level_can_be_asked_for(task, level):
    assert {item["level"] for item in bundled.items(task, "test", 30, level=level)} == {level}


@pytest.mark.parametrize("task", TASKS)
def test_levels_take_turns_by_default(task):
    assert [item["level"] for item in bundled.items(task, "test", 9)] == [1, 2, 3] * 3


def test_bad_arguments_are_named():
    with pytest.raises(UserInputError, match=r"'sums'.*arith, choice"):
        bundled.items("sums", "test", 1)
    with pytest.raises(UserInputError, match="'sums'"):
        next(bundled.training_documents("sums", 0))
    with pytest.raises(UserInputError, match="'dev'"):
        bundled.items("arith", "dev", 1)
    with pytest.raises(UserInputError, match="9"):
        bundled.items("arith", "test", 1, level=9)


@pytest.mark.parametrize("task", TASKS)
def test_the_worked_solution_is_graded_correct_and_a_wrong_ending_is_not(task):
    from orderlens.tasks import grade

    for item in bundled.items(task, "test", 300):
        assert grade(task, item, item["solution"]).correct
        wrong = "The answer is 7777." if task == "arith" else f"\nAnswer: {'BCDA'[item['answer_index']]}"
        assert not grade(task, item, f"{item['solution']} {wrong}").correct


def test_splits_levels_and_tasks_that_do_not_exist_are_named():
    with pytest.raises(UserInputError, match="unknown split 'dev'; choose test or train"):
        bundled.items("arith", "dev", 1)
    with pytest.raises(UserInputError, match="unknown level 4; choose 1, 2 or 3"):
        bundled.items("arith", "test", 1, level=4)
    with pytest.raises(UnknownNameError, match="unknown bundled task 'sums'; choose one of arith, choice"):
        bundled.items("sums", "test", 1)


@pytest.mark.parametrize(("task", "digest"), [("arith", "073f8392c41903d5"), ("choice", "5975b2d52fb2d601")])
def test_training_documents_are_those_the_weights_were_trained_on(task, digest):
    documents = itertools.islice(bundled.training_documents(task, 0), 6000)
    assert hashlib.sha256("\0".join(documents).encode()).hexdigest()[:16] == digest


def test_the_package_holds_what_the_generator_makes():
    for name, rows in frozen().items():
        assert list(frozen_items(name)) == json.loads(json.dumps(rows))
        assert hashlib.sha256(as_lines(rows)).hexdigest() == DIGESTS[name]
