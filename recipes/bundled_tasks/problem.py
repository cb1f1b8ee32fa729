"""What a generator hands over: one problem, before it is given to a split, and how `choice` puts it together.

Knows nothing about prompts, ids or splits (see generator.py) nor about how an answer is graded (graders.py).
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
        key: What makes the problem this problem, free of wording: decides the split.
        question: The text shown to the model, without options.
        solution: Worked solution in words, without the closing answer line.
        answer: The golden number, or the text of the right option.
        options: The four option texts in their shown sequence; empty where there are none.
        facts: The structured facts behind the question, for checking.
        query: What is asked of the facts.
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
    """Return the answer and three others in random sequence: from ``near`` first, then from ``pool``."""
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
    """Make the problem; where the sequence of the facts does not matter, the key does not depend on it."""
    facts = tuple(facts)
    key = (query, facts if ordered else tuple(sorted(facts, key=repr)))
    return Problem(level, key, " ".join(texts), solution, answer, options, facts, query)
