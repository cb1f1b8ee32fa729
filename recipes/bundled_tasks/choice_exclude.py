"""Elimination: each person has a different thing, and the facts leave one possibility."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from bundled_tasks.problem import Fact, Problem, build, four_options
from bundled_tasks.words import NAMES, listed, pool


class _Theme(NamedTuple):
    things: tuple[str, ...]
    intro: str
    is_: str
    not_: str
    ask: str


_THEMES = (
    _Theme(
        pool("apple pear plum fig lemon orange peach banana melon cherry"),
        "{who} each picked a different fruit: {what}.",
        "{a} picked the {b}.",
        "{a} did not pick the {b}.",
        "What did {a} pick?",
    ),
    _Theme(
        pool("dog cat rabbit parrot turtle pony goat hamster duck mouse"),
        "{who} each own a different pet: {what}.",
        "{a} owns the {b}.",
        "{a} does not own the {b}.",
        "Which pet does {a} own?",
    ),
    _Theme(
        pool("chess tennis soccer golf hockey rugby darts cricket"),
        "{who} each play a different game: {what}.",
        "{a} plays {b}.",
        "{a} does not play {b}.",
        "What does {a} play?",
    ),
    _Theme(
        pool("red blue green yellow black white brown gray pink purple"),
        "{who} each wear a different color: {what}.",
        "{a} wears {b}.",
        "{a} does not wear {b}.",
        "Which color does {a} wear?",
    ),
    _Theme(
        pool("piano violin flute drum guitar trumpet harp cello"),
        "{who} each learn a different instrument: {what}.",
        "{a} learns the {b}.",
        "{a} does not learn the {b}.",
        "Which instrument does {a} learn?",
    ),
    _Theme(
        pool("soup salad pizza pasta rice fish chicken bread"),
        "{who} each order a different dish: {what}.",
        "{a} orders the {b}.",
        "{a} does not order the {b}.",
        "What does {a} order?",
    ),
)


def elimination(rng: Random, level: int) -> Problem:
    """Four people, four things. Level 1 states three, level 2 two and a denial, level 3 one and denials.

    Facts are ("people", who...), ("things", thing...), ("is", who, thing) and ("not", who, thing).
    """
    theme, names = rng.choice(_THEMES), rng.sample(NAMES, 4)
    things = rng.sample(theme.things, 4)
    known = 4 - level
    facts: list[Fact] = [("is", names[i], things[i]) for i in range(known)]
    facts += [("not", names[i], things[j]) for i in range(known, 3) for j in range(i + 1, 4)]
    asked = 3 if level == 1 else rng.randrange(known, 4)
    rng.shuffle(facts)
    shown = sorted(range(4), key=lambda _: rng.random())
    intro = theme.intro.format(who=listed([names[i] for i in shown]), what=listed(sorted(things)))
    texts = [intro, *(_said(theme, fact) for fact in facts), theme.ask.format(a=names[asked])]
    worked = [_said(theme, ("is", names[i], things[i])) for i in range(known)]
    for i in range(known, asked + 1):
        left = listed(things[i:], "or") if i < 3 else things[3]
        only = f"Left for {names[i]} is {left}"
        worked.append(f"{only}, and it must be {things[i]}." if i < 3 else f"{only}.")
    facts += [("people", *names), ("things", *sorted(things))]
    options = four_options(rng, things[asked], things)
    return build(level, facts, ("thing of", names[asked]), texts, " ".join(worked), things[asked], options)


def _said(theme: _Theme, fact: Fact) -> str:
    return (theme.is_ if fact[0] == "is" else theme.not_).format(a=fact[1], b=fact[2])
