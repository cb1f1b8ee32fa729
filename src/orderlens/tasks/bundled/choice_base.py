"""How the families of `choice` put a problem together: options, key, shuffled facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from orderlens.tasks.bundled.problem import Atom, Problem

Fact = tuple[Atom, ...]


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
