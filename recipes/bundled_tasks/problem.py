"""The result of a generator: one problem, before it is assigned to a split; and how `choice` builds it.

Does not depend on prompts, ids or splits (see generator.py) or on grading (graders.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

Atom = str | int
Fact = tuple[Atom, ...]


@dataclass(frozen=True)
class Problem:
    """One generated problem.

    Attributes:
        level: Difficulty, 1 to 3.
        key: Identity of the problem without its wording; determines the split.
        question: The text shown to the model, without options.
        solution: Worked solution in words, without the closing answer line.
        answer: The gold number, or the text of the correct option.
        options: The four option texts in the order shown; empty if there are none.
        facts: The structured facts of the question, for checking.
        query: The structured question about the facts.
    """

    level: int
    key: tuple[object, ...]
    question: str
    solution: str
    answer: str
    options: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    query: Fact = ()


def four_options(rng: Random, answer: str, near: Sequence[str], pool: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the answer and three others in random order: from ``near`` first, then from ``pool``."""
    wrong = [word for word in dict.fromkeys(near) if word != answer]
    chosen = rng.sample(wrong, min(3, len(wrong)))
    spare = [word for word in dict.fromkeys(pool) if word != answer and word not in chosen]
    options = [answer, *chosen, *rng.sample(spare, 3 - len(chosen))]
    rng.shuffle(options)
    return tuple(options)


def build(
    level: int,
    facts: Iterable[Fact],
    query: Fact,
    texts: Sequence[str],
    solution: str,
    answer: str,
    options: tuple[str, ...],
    *,
    ordered: bool = False,
) -> Problem:
    """Build the problem; if the order of the facts does not matter, the key does not depend on it."""
    facts = tuple(facts)
    key = (query, facts if ordered else tuple(sorted(facts, key=repr)))
    return Problem(level, key, " ".join(texts), solution, answer, options, facts, query)
