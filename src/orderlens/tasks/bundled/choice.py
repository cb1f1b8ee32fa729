"""`choice`: four-way questions that need a small inference over facts stated in the item.

Every family is a function (rng, level) -> Problem; the families live in choice_order.py (comparisons),
choice_place.py (positions and moves) and choice_chain.py (rules, kinship, times) and choice_exclude.py.
Knows nothing about splits, prompts or grading.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from orderlens.tasks.bundled.choice_chain import kinship, rules, schedule
from orderlens.tasks.bundled.choice_exclude import elimination
from orderlens.tasks.bundled.choice_order import amounts, ordering
from orderlens.tasks.bundled.choice_place import carrying, directions, moves
from orderlens.tasks.bundled.problem import Problem

FAMILIES: dict[str, Callable[[Random, int], Problem]] = {
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


def problem(rng: Random, level: int) -> Problem:
    """Draw one problem of ``level`` from a family drawn at random."""
    return FAMILIES[rng.choice(tuple(FAMILIES))](rng, level)
