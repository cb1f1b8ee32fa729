"""Composed stories of `arith`: a person has some things, and one to three events change their number.

Every event has several wordings, and people, things and events are drawn independently, so there are far more
texts than written stories. Does not depend on splits or prompts.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from bundled_tasks.arith_engine import apply, draw_words
from bundled_tasks.problem import Problem

_STARTS = (
    "{A} has {n} {obj}.",
    "{A} starts the day with {n} {obj}.",
    "There are {n} {obj} in {A}'s {box}.",
    "{A} owns {n} {obj}.",
    "In the morning {A} had {n} {obj}.",
    "{A} keeps {n} {obj} at home.",
    "At first {A} had {n} {obj}.",
    "{A} counted {n} {obj} in {his} {box}.",
)
_ASKS = (
    "How many {obj} does {A} have now?",
    "How many {obj} does {A} have at the end?",
    "How many {obj} are there in the end?",
    "What is the number of {obj} now?",
    "How many {obj} is that in the end?",
)
_LINKS = ("", "Then ", "Later ", "After that ", "Next ", "The next day ", "In the evening ")


class Event(NamedTuple):
    """A change: its operator, the range of its number, its wordings, and the start of its worked step."""

    op: str
    low: int
    high: int
    texts: tuple[str, ...]
    step: str


GAIN = Event(
    "+",
    3,
    20,
    (
        "{A} buys {n} more {obj}",
        "{B} gives {A} {n} more {obj}",
        "{A} finds {n} more {obj}",
        "{A} gets {n} {obj} from {B}",
        "{A} wins {n} {obj} at the fair",
        "{A} borrows {n} {obj} from {C}",
        "a parcel with {n} {obj} arrives for {A}",
        "{A} orders {n} more {obj}",
        "{C} brings {A} {n} more {obj}",
        "{A} picks out {n} more {obj} at the {shop}",
    ),
    "After getting {n} more, {A} has",
)
LOSS = Event(
    "-",
    3,
    20,
    (
        "{A} gives {n} {obj} to {B}",
        "{A} loses {n} {obj}",
        "{A} sells {n} {obj} at the {shop}",
        "{B} takes {n} of the {obj}",
        "{A} throws away {n} {obj}",
        "{A} uses {n} of the {obj}",
        "{A} lends {n} {obj} to {C}",
        "{A} sends {n} {obj} to {B}",
        "{A} hands {n} {obj} to {his} sister",
        "{n} of the {obj} go missing",
    ),
    "After losing {n}, {A} has",
)
TIMES = Event(
    "*",
    2,
    6,
    (
        "the number of {obj} grows to {n} times as many",
        "{A} works until {he} has {n} times as many {obj}",
        "the {box} of {obj} is traded for one with {n} times as many",
        "{A} collects until there are {n} times as many {obj} as before",
    ),
    "With {n} times as many, {A} has",
)
SPLIT = Event(
    "/",
    2,
    6,
    (
        "{A} divides the {obj} into {n} equal parts and keeps one part",
        "the {obj} are shared equally by {n} people, one of them {A}",
        "{A} sorts the {obj} into {n} equal piles and keeps only one pile",
    ),
    "Split into {n} equal parts, {A} has",
)
_EVENTS = (GAIN, GAIN, GAIN, LOSS, LOSS, LOSS, TIMES, SPLIT)


class _Draw(NamedTuple):
    start: int
    events: tuple[Event, ...]
    numbers: tuple[int, ...]
    results: tuple[int, ...]


def _draw(rng: Random, level: int) -> _Draw:
    """Draw a start, ``level`` events and their numbers so that every result is allowed."""
    while True:
        start = rng.randint(4, 40)
        events = tuple(rng.choice(_EVENTS) for _ in range(level))
        numbers = tuple(rng.randint(event.low, event.high) for event in events)
        results: list[int] = []
        for event, number in zip(events, numbers, strict=True):
            result = apply(event.op, results[-1] if results else start, number)
            if result is None:
                break
            results.append(result)
        else:
            return _Draw(start, events, numbers, tuple(results))


def problem(rng: Random, level: int) -> Problem:
    """Draw one chain with ``level`` events."""
    draw, words = _draw(rng, level), draw_words(rng)
    facts = [rng.choice(_STARTS).format_map(words | {"n": str(draw.start)})]
    worked = [f"At first there are {draw.start} {words['obj']}."]
    before = draw.start
    for event, number, result in zip(draw.events, draw.numbers, draw.results, strict=True):
        fill = words | {"n": str(number)}
        text = rng.choice(_LINKS[: 1 if len(facts) == 1 else None]) + rng.choice(event.texts).format_map(fill)
        facts.append(text[0].upper() + text[1:] + ".")
        worked.append(f"{event.step.format_map(fill)} {before} {event.op} {number} = {result}.")
        before = result
    question = " ".join([*facts, rng.choice(_ASKS).format_map(words)])
    key = ("chain", draw.start, "".join(event.op for event in draw.events), draw.numbers)
    return Problem(level, key, question, " ".join(worked), str(before))
