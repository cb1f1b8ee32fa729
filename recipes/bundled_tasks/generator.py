"""The bundled tasks: `arith` and `choice`, made by seeded code; no test item is ever trained on.

A problem's key (its structure and its numbers or facts, free of wording) is hashed, and the hash alone
decides the split: an eighth of all keys are test keys for good, whatever the seed. The training stream
rejects them and the test set takes nothing else. Knows nothing about models or grading (graders.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, Literal

from bundled_tasks import arith_chain, arith_stories
from bundled_tasks.choice_chain import kinship, rules, schedule
from bundled_tasks.choice_exclude import elimination
from bundled_tasks.choice_order import amounts, ordering
from bundled_tasks.choice_place import carrying, directions, moves
from bundled_tasks.problem import Problem
from orderlens.errors import UnknownNameError, UserInputError

Split = Literal["test", "train"]
Item = dict[str, Any]
Maker = Callable[[Random, int], Problem]
"""Draws one problem of a level."""

CHAIN_SHARE = 0.4
"""Share of chains among word problems; the rest are written stories, which have more kinds of structure."""

FAMILIES: dict[str, Maker] = {
    "ordering": ordering,
    "amounts": amounts,
    "moves": moves,
    "carrying": carrying,
    "directions": directions,
    "rules": rules,
    "kinship": kinship,
    "elimination": elimination,
    "schedule": schedule,
}
"""Four-way questions that need a small inference over facts stated in the item."""


def _word_problem(rng: Random, level: int) -> Problem:
    """Return a word problem; the level is its number of steps."""
    if rng.random() < CHAIN_SHARE:
        return arith_chain.problem(rng, level)
    return rng.choice(arith_stories.BY_LEVEL[level]).problem(rng)


def _question(rng: Random, level: int) -> Problem:
    return FAMILIES[rng.choice(tuple(FAMILIES))](rng, level)


TASKS: dict[str, Maker] = {"arith": _word_problem, "choice": _question}
LEVELS = (1, 2, 3)
LETTERS = "ABCD"
_TEST_SHARE = 8  # one key in eight belongs to the test split
DRILL_SHARE = 0.3
"""Training documents of `choice` that only practise naming options by their letters."""


def training_documents(task: str, seed: int, start: int = 0) -> Iterator[str]:
    """Yield training documents without end: the test-time prompt followed by the worked solution, or a drill.

    Document i depends only on (task, seed, i), so a resumed run passes ``start`` and goes on exactly.
    """
    make, index = _maker(task), start
    while True:
        rng = _stream(task, "document", seed, index)
        problem = _draw(make, rng, "train", rng.choice(LEVELS))
        yield _drill(problem, rng) if _drilled(problem, rng) else document(_item(task, problem))
        index += 1


def items(task: str, split: Split, n: int, seed: int = 0, level: int | None = None) -> list[Item]:
    """Return ``n`` different items of one split; a longer list begins with the shorter one.

    Args:
        task: ``arith`` or ``choice``.
        split: ``test`` (never trained on) or ``train``.
        n: How many.
        seed: Which items; the split does not depend on it.
        level: 1 to 3, or None for the three levels in turn.

    Returns:
        Rows with ``id, prompt, question, solution, level`` and ``golden`` (arith), or ``options, answer,
        answer_index, facts, query`` (choice). The id is a digest of the prompt.
    """
    make = _maker(task)
    _check(split, level)
    found: dict[str, Item] = {}
    index = 0
    while len(found) < n:
        rng = _stream(task, split, seed, index)
        item = _item(task, _draw(make, rng, split, level or LEVELS[len(found) % len(LEVELS)]))
        found.setdefault(item["id"], item)
        index += 1
    return list(found.values())


def document(item: Item) -> str:
    """Return the item as a training document: its prompt, one space, its solution."""
    return f"{item['prompt']} {item['solution']}"


def split_of(key: tuple[object, ...]) -> Split:
    """Return the split to which a problem's key belongs, for every seed."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "little") % _TEST_SHARE == 0 else "train"


def _maker(task: str) -> Maker:
    if task not in TASKS:
        raise UnknownNameError(f"unknown bundled task {task!r}; choose one of {', '.join(sorted(TASKS))}")
    return TASKS[task]


def _check(split: str, level: int | None) -> None:
    if split not in ("test", "train"):
        raise UserInputError(f"unknown split {split!r}; choose test or train")
    if level is not None and level not in LEVELS:
        raise UserInputError(f"unknown level {level!r}; choose 1, 2 or 3")


def _stream(task: str, purpose: str, seed: int, index: int) -> Random:
    # The standard generator, not NumPy's: drawing words one by one is several times faster with it.
    return Random(f"orderlens/{task}/{purpose}/{seed}/{index}")


def _draw(make: Maker, rng: Random, split: Split, level: int) -> Problem:
    while True:
        problem = make(rng, level)
        if split_of(problem.key) == split:
            return problem


def _item(task: str, problem: Problem) -> Item:
    prompt = _prompt(problem)
    digest = hashlib.blake2b(prompt.encode(), digest_size=6).hexdigest()
    row = {"id": f"{task}-{problem.level}-{digest}", "prompt": prompt, "question": problem.question}
    if not problem.options:
        closing = f" The answer is {problem.answer}."
        return row | {
            "golden": problem.answer,
            "solution": problem.solution + closing,
            "level": problem.level,
        }
    index = problem.options.index(problem.answer)
    return row | {
        "options": list(problem.options),
        "answer": LETTERS[index],
        "answer_index": index,
        "solution": f"{problem.solution} {_named(problem, index)}\nAnswer: {LETTERS[index]}",
        "level": problem.level,
        "facts": problem.facts,
        "query": problem.query,
    }


def _prompt(problem: Problem) -> str:
    # The letter directly follows its option, here as in the solution: a small model repeats what followed a
    # word long before it can look across anything between the two (docs/bundled-models.md).
    lettered = ", ".join(_lettered(problem, index) for index in range(len(problem.options)))
    options = [f"Options: {lettered}"] if lettered else []
    return "\n".join([f"Question: {problem.question}", *options, "Solution:"])


def _lettered(problem: Problem, index: int) -> str:
    return f"{problem.options[index]} {LETTERS[index]}"


def _named(problem: Problem, index: int) -> str:
    return f"The option is {_lettered(problem, index)}."


def _drilled(problem: Problem, rng: Random) -> bool:
    return bool(problem.options) and rng.random() < DRILL_SHARE


def _drill(problem: Problem, rng: Random) -> str:
    """Return a document that names every option of the problem by its letter; its question is left out."""
    prompt = _prompt(replace(problem, question="Which letter does each option have?"))
    places = rng.sample(range(len(problem.options)), len(problem.options))
    return " ".join([prompt, *(_named(problem, place) for place in places)])
