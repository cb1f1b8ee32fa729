"""Comparisons: who is the tallest, the second oldest; who has the most."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from bundled_tasks.problem import Problem, build, four_options
from bundled_tasks.words import NAMES, THINGS

# more, most, less, least
_SCALES = (
    ("taller", "tallest", "shorter", "shortest"),
    ("older", "oldest", "younger", "youngest"),
    ("faster", "fastest", "slower", "slowest"),
    ("stronger", "strongest", "weaker", "weakest"),
    ("richer", "richest", "poorer", "poorest"),
    ("louder", "loudest", "quieter", "quietest"),
    ("heavier", "heaviest", "lighter", "lightest"),
)
_RANKS = ("", "second ", "third ")
_ASKS = (
    "Who is the {what}?",
    "Which of them is the {what}?",
    "Of these people, who is the {what}?",
    "Who must be the {what}?",
)
_MORE = ("{a} is {more} than {b}.", "{a} is a bit {more} than {b}.", "We know that {a} is {more} than {b}.")
_LESS = ("{b} is {less} than {a}.", "{b} is a bit {less} than {a}.", "We know that {b} is {less} than {a}.")


def ordering(rng: Random, level: int) -> Problem:
    """Compare neighbours of a hidden ranking; the question is about one place of the ranking.

    Facts are (more, a, b): a is above b. Level 1: four people, from the top; level 2: four, shuffled and in
    both directions; level 3: five, and the question may be about the second or third place.
    """
    more, most, less, least = rng.choice(_SCALES)
    names = rng.sample(NAMES, 5 if level == 3 else 4)
    pairs = list(pairwise(names))
    if level > 1:
        rng.shuffle(pairs)
    texts = [_compare(rng, a, b, more, less, both=level > 1) for a, b in pairs]
    rank = rng.randrange(3 if level == 3 else 1)
    top = rng.random() < 0.5
    what = _RANKS[rank] + (most if top else least)
    answer = (names if top else names[::-1])[rank]
    texts.append(rng.choice(_ASKS).format(what=what))
    shown = names if top else names[::-1]
    ends = (most, least) if top else (least, most)
    solution = f"From {ends[0]} to {ends[1]}: {', '.join(shown)}. The {what} is {answer}."
    facts = [(more, a, b) for a, b in pairs]
    query = ("rank", more, rank if top else len(names) - 1 - rank)
    return build(level, facts, query, texts, solution, answer, four_options(rng, answer, names))


def _compare(rng: Random, a: str, b: str, more: str, less: str, *, both: bool) -> str:
    wording = rng.choice(_LESS if both and rng.random() < 0.5 else _MORE)
    return wording.format(a=a, b=b, more=more, less=less)


def amounts(rng: Random, level: int) -> Problem:
    """Numbers relative to each other; who has the most or the fewest?

    Facts are ("has", a, n) and ("differs", a, b, d): a has d more than b. The level adds relative facts.
    """
    while True:
        names = rng.sample(NAMES, 4)
        counts = [rng.randint(3, 30)]
        facts: list[tuple[str | int, ...]] = [("has", names[0], counts[0])]
        for i in range(1, 4):
            relative = i <= level
            counts.append(
                counts[i - 1] + rng.choice((-1, 1)) * rng.randint(2, 12) if relative else rng.randint(3, 40)
            )
            if relative:
                facts.append(("differs", names[i], names[i - 1], counts[i] - counts[i - 1]))
            else:
                facts.append(("has", names[i], counts[i]))
        if min(counts) >= 2 and len(set(counts)) == 4:
            return _amounts_problem(rng, level, names, counts, facts)


def _amounts_problem(
    rng: Random, level: int, names: list[str], counts: list[int], facts: list[tuple[str | int, ...]]
) -> Problem:
    obj, most = rng.choice(THINGS), rng.random() < 0.5
    best = (max if most else min)(range(4), key=counts.__getitem__)
    texts = [_amount_text(rng, fact, obj) for fact in facts]
    worked = [
        _amount_step(fact, count, before)
        for fact, count, before in zip(facts, counts, [0, *counts], strict=False)
    ]
    word, size = ("most", "largest") if most else ("fewest", "smallest")
    texts.append(rng.choice((f"Who has the {word} {obj}?", f"Which of them has the {word} {obj}?")))
    solution = f"{' '.join(worked)} The {size} number is {counts[best]}, so it is {names[best]}."
    options = four_options(rng, names[best], names)
    return build(level, facts, ("amount", word), texts, solution, names[best], options)


def _amount_text(rng: Random, fact: tuple[str | int, ...], obj: str) -> str:
    if fact[0] == "has":
        return rng.choice(("{} has {} {}.", "{} owns {} {}.")).format(fact[1], fact[2], obj)
    difference = int(fact[3])
    return f"{fact[1]} has {abs(difference)} {'more' if difference > 0 else 'fewer'} {obj} than {fact[2]}."


def _amount_step(fact: tuple[str | int, ...], count: int, before: int) -> str:
    if fact[0] == "has":
        return f"{fact[1]} has {count}."
    difference = int(fact[3])
    return f"{fact[1]} has {before} {'+' if difference > 0 else '-'} {abs(difference)} = {count}."
