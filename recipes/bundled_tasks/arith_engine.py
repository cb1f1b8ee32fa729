"""Word problems with one to three steps: generates a problem from a story.

Stories are data (arith_stories.py) or composed from events (arith_chain.py). A story's numbers are drawn and
its steps evaluated. Only problems in which every number is an integer of at least two are accepted, so that
plurals are always correct. Does not depend on splits or prompts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from bundled_tasks.problem import Problem
from bundled_tasks.words import (
    CONTAINERS,
    FOOD,
    GOODS,
    PLACES_SELLING,
    PRICED,
    THINGS,
    article,
    capital,
    people,
)

LARGEST_SUM, LARGEST_PRODUCT = 40, 100
"""The largest sum (or number subtracted from) and the largest product (or number divided).

Chosen for the bundled model: within these limits single steps can be learnt, and the difficulty is in reading
the story and in keeping several steps right.
"""
_EQUATION = re.compile(r"\{(\w)=(\w+)([-+*/])(\w+)\}")
_POOLS = {"thing": THINGS, "food": FOOD, "good": GOODS}


class Step(NamedTuple):
    """``result = left op right``; a side is the name of a number or a literal."""

    result: str
    left: str
    op: str
    right: str


def steps_of(solution: str) -> tuple[Step, ...]:
    """Read the inline equations ``{a=x+y}`` of a solution text."""
    return tuple(Step(*match) for match in _EQUATION.findall(solution))


def plain(solution: str) -> str:
    """Turn ``{a=x+y}`` into ``{x} + {y} = {a}`` so that ``str.format`` can fill it."""

    def side(name: str) -> str:
        return name if name.isdigit() else f"{{{name}}}"

    return _EQUATION.sub(lambda m: f"{side(m[2])} {m[3]} {side(m[4])} = {{{m[1]}}}", solution)


def apply(op: str, left: int, right: int) -> int | None:
    """Evaluate one step; None if the result is not an integer of at least 2, or exceeds a limit."""
    if op == "/" and left % right:
        return None
    result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[op]
    limit = LARGEST_SUM if op in "+-" else LARGEST_PRODUCT
    return result if result >= 2 and max(left, result) <= limit else None


def evaluate(steps: tuple[Step, ...], numbers: dict[str, int]) -> dict[str, int] | None:
    """Add each step's result to the numbers; None if a result is not allowed."""
    known = dict(numbers)
    for step in steps:
        left, right = (int(s) if s.isdigit() else known[s] for s in (step.left, step.right))
        result = apply(step.op, left, right)
        if result is None:
            return None
        known[step.result] = result
    return known


@dataclass(frozen=True)
class Story:
    """One scenario with several wordings.

    Attributes:
        key: Short unique name.
        draws: The free numbers, such as ``"x:10-60 y:3-9"``; ``"x=y*q"`` derives one (for exact division).
        texts: Wordings of the facts.
        asks: Wordings of the question.
        solutions: Wordings of the worked solution with inline equations ``{a=x+y}``; all with the same steps.
        pool: Which things {obj} stands for: thing, food or good.
    """

    key: str
    draws: str
    texts: tuple[str, ...]
    asks: tuple[str, ...]
    solutions: tuple[str, ...]
    pool: str = "thing"
    steps: tuple[Step, ...] = field(init=False)
    _plain: tuple[str, ...] = field(init=False)
    _draws: tuple[tuple[str, int, int], ...] = field(init=False)
    _derived: tuple[Step, ...] = field(init=False)

    def __post_init__(self) -> None:
        free = re.findall(r"(\w):(\d+)-(\d+)", self.draws)
        derived = re.findall(r"(\w)=(\w)([-+*/])(\w)", self.draws)
        object.__setattr__(self, "steps", steps_of(self.solutions[0]))
        object.__setattr__(self, "_plain", tuple(plain(s) for s in self.solutions))
        object.__setattr__(self, "_draws", tuple((name, int(low), int(high)) for name, low, high in free))
        object.__setattr__(self, "_derived", tuple(Step(*match) for match in derived))

    @property
    def level(self) -> int:
        """The number of steps."""
        return len(self.steps)

    def draw_numbers(self, rng: Random) -> dict[str, int]:
        """Draw numbers until every step is allowed; contains the step results too."""
        while True:
            numbers = {name: rng.randint(low, high) for name, low, high in self._draws}
            known = evaluate(self._derived + self.steps, numbers)
            if known is not None:
                return known

    def problem(self, rng: Random) -> Problem:
        """Draw one problem of this story."""
        numbers = self.draw_numbers(rng)
        words = draw_words(rng, self.pool) | {name: str(value) for name, value in numbers.items()}
        question = f"{rng.choice(self.texts)} {rng.choice(self.asks)}".format_map(words)
        solution = rng.choice(self._plain).format_map(words)
        given = tuple(numbers[name] for name, _, _ in self._draws)
        return Problem(self.level, (self.key, given), question, solution, str(numbers[self.steps[-1].result]))


def draw_words(rng: Random, pool: str = "thing") -> dict[str, str]:
    """Draw the names and things that the texts may use."""
    first, second, third = people(rng, 3)
    obj, other = rng.sample(_POOLS[pool], 2)
    (one, many), (one2, many2) = rng.sample(PRICED, 2)
    box, boxes = rng.choice(CONTAINERS)
    return {
        "A": first.name, "he": first.he, "him": first.him, "his": first.his, "He": capital(first.he),
        "B": second.name, "bhe": second.he, "C": third.name, "obj": obj, "other": other,
        "one": one, "a_one": f"{article(one)} {one}", "A_one": capital(f"{article(one)} {one}"), "many": many,
        "one2": one2, "a_one2": f"{article(one2)} {one2}", "many2": many2,
        "box": box, "boxes": boxes, "shop": rng.choice(PLACES_SELLING),
    }  # fmt: skip
