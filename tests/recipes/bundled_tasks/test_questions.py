"""Answers derived from a question's words alone, as a reader would: text and structured facts must agree.

The solvers here see the question and the options, never ``facts`` or ``query``. Every sentence must be
understood: one that is not fails the test.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from bundled_tasks import generator as bundled

WORD = r"([\w-]+)"


@pytest.fixture(scope="module")
def choices() -> list[dict[str, Any]]:
    return bundled.items("choice", "test", 500, seed=3) + bundled.items("choice", "train", 500, seed=3)


def sentences(question: str) -> tuple[list[str], str]:
    """Return the statements and the question."""
    *statements, last = re.findall(r"[^.?]+[.?]", question)
    return [text.strip() for text in statements], last.strip()


def understood(text: str, *patterns: str) -> tuple[int, tuple[str, ...]]:
    """Return which pattern is the whole sentence, and its words."""
    hits = [(place, re.fullmatch(pattern, text)) for place, pattern in enumerate(patterns)]
    ((place, hit),) = [(place, hit) for place, hit in hits if hit]
    assert hit
    return place, hit.groups()


LESS = {"shorter": "taller", "younger": "older", "slower": "faster", "weaker": "stronger"}
LESS |= {"poorer": "richer", "quieter": "louder", "lighter": "heavier"}
BEST = {"tallest": 1, "oldest": 1, "fastest": 1, "strongest": 1, "richest": 1, "loudest": 1, "heaviest": 1}
WORST = {"shortest", "youngest", "slowest", "weakest", "poorest", "quietest", "lightest"}


def read_ranking(question: str) -> str:
    told, asked = sentences(question)
    above = []
    for text in told:
        _, (one, word, other) = understood(
            text, rf"(?:We know that )?{WORD} is (?:a bit )?{WORD} than {WORD}\."
        )
        above.append((other, one) if word in LESS else (one, other))
    names = sorted({name for pair in above for name in pair})
    (order,) = [
        order
        for order in itertools.permutations(names)
        if all(order.index(a) < order.index(b) for a, b in above)
    ]
    _, (rank, word) = understood(asked, rf".*(?:who|Who|Which of them) (?:is|must be) the (\w+ )?{WORD}\?")
    assert (word in BEST) != (word in WORST)
    place = {None: 0, "second ": 1, "third ": 2}[rank]
    return order[place] if word in BEST else order[-1 - place]


def read_amounts(question: str) -> str:
    told, asked = sentences(question)
    counts: dict[str, int] = {}
    for text in told:
        place, words = understood(
            text,
            rf"{WORD} (?:has|owns) (\d+) {WORD}\.",
            rf"{WORD} has (\d+) (more|fewer) {WORD} than {WORD}\.",
        )
        if place == 0:
            counts[words[0]] = int(words[1])
        else:
            name, number, side, _, than = words
            counts[name] = counts[than] + (int(number) if side == "more" else -int(number))
    _, (word,) = understood(asked, r"(?:Who|Which of them) has the (most|fewest) [\w-]+\?")
    return (max if word == "most" else min)(counts, key=counts.__getitem__)


def read_places(question: str) -> str:
    """Things that are put and moved, or carried by people."""
    told, asked = sentences(question)
    at: dict[str, str] = {}
    room: dict[str, str] = {}
    held: dict[str, str] = {}
    for text in told:
        place, words = understood(
            text,
            rf"(?:At first t|T)he {WORD} is in the {WORD}\.",
            rf"{WORD} keeps the {WORD} in the {WORD}\.",
            rf"(?:Then )?{WORD} (?:moves|puts) the {WORD} (?:to|into) the {WORD}\.",
            rf"{WORD} takes the {WORD} and puts it in the {WORD}\.",
            rf"{WORD} (?:goes to|walks to|enters) the {WORD}\.",
            rf"(?:{WORD} (?:picks up|takes) the {WORD} there|There {WORD} picks up the {WORD})\.",
            rf"{WORD} (?:puts down|leaves|drops) the {WORD}(?: there)?\.",
        )
        words = tuple(word for word in words if word)
        if place == 0:
            at[words[0]] = words[1]
        elif place < 4:
            at[words[1]] = words[2]
        elif place == 4:
            room[words[0]] = words[1]
        elif place == 5:
            held[words[1]] = words[0]
        else:
            at[words[1]] = room[held.pop(words[1])]
    _, (thing,) = understood(asked, rf"(?:Where|In which place) is the {WORD} (?:now|at the end)\?")
    return room[held[thing]] if thing in held else at[thing]


def read_map(question: str) -> str:
    told, asked = sentences(question)
    step = {"north": 1j, "south": -1j, "east": 1, "west": -1}
    assert told[-1] == "Each of these is one mile."
    at: dict[str, complex] = {}
    for text in told[:-1]:
        _, (a, way, b) = understood(
            text, rf"(?:The|You find the) {WORD} (?:is |stands )?(north|south|east|west) of the {WORD}\."
        )
        at.setdefault(b, 0)
        at[a] = at[b] + step[way]
    _, (to, start) = understood(asked, rf"In which direction is the {WORD} from the {WORD}\?")
    gap = at[to] - at[start]
    north = {1: "north", -1: "south", 0: ""}[(gap.imag > 0) - (gap.imag < 0)]
    east = {1: "east", -1: "west", 0: ""}[(gap.real > 0) - (gap.real < 0)]
    return "-".join(word for word in (north, east) if word)


def read_rules(question: str) -> str:
    told, asked = sentences(question)
    follows: dict[str, str] = {}
    for text in told:
        _, words = understood(
            text,
            rf"(?:By trade )?{WORD} (?:is|works as) an? {WORD}\.",
            rf"(?:Every|Each) {WORD} (?:lives|has a house) in {WORD}\.",
            rf"All {WORD}s live in {WORD}\.",
            rf"(?:Everyone in|People in|In) {WORD} (?:goes to work|always travel|all go) by {WORD}\.",
            rf"(?:Every|Any) {WORD} (?:we see|seen here) is {WORD}\.",
            rf"In these cities each {WORD} is {WORD}\.",
        )
        follows[words[0]] = words[1]
    _, (who,) = understood(
        asked,
        rf"(?:In which city|Where|How) does {WORD} (?:live|go to work)\?",
        rf"What does {WORD} travel by\?",
        rf"(?:What color is the one that|In what color does) {WORD} travels? (?:in|to work)\?",
    )
    while who in follows:
        who = follows[who]
    return who


def read_family(question: str) -> str:
    told, asked = sentences(question)
    parents: set[tuple[str, str]] = set()
    sex: dict[str, str] = {}
    kinds = {"father": "m", "mother": "f", "son": "m", "daughter": "f"}
    for text in told:
        place, words = understood(
            text,
            rf"{WORD} is the (father|mother) of {WORD}\.",
            rf"{WORD} is the (son|daughter) of {WORD}\.",
            rf"{WORD} has a (son|daughter) named {WORD}\.",
            rf"{WORD} is {WORD}'s (father|mother)\.",
        )
        if place == 3:
            words = (words[0], words[2], words[1])
        one, kind, other = words
        parents.add((other, one) if place == 1 else (one, other))
        sex[other if place == 2 else one] = kinds[kind]
    place, words = understood(asked, rf"Who is {WORD}'s {WORD}\?", rf"Who is the {WORD} of {WORD}\?")
    who, word = words if place == 0 else words[::-1]
    people = {name for pair in parents for name in pair}

    def up(names: set[str]) -> set[str]:
        return {a for a, b in parents if b in names}

    def down(names: set[str]) -> set[str]:
        return {b for a, b in parents if a in names}

    beside = down(up(up({who}))) - up({who})
    found = {
        "grandfather": up(up({who})),
        "grandmother": up(up({who})),
        "great-grandfather": up(up(up({who}))),
        "great-grandmother": up(up(up({who}))),
        "brother": down(up({who})) - {who},
        "sister": down(up({who})) - {who},
        "uncle": beside,
        "aunt": beside,
        "cousin": down(beside),
    }[word]
    wanted = {"father": "m", "mother": "f", "brother": "m", "sister": "f", "uncle": "m", "aunt": "f"}
    wanted |= {"grandfather": "m", "grandmother": "f", "great-grandfather": "m", "great-grandmother": "f"}
    (answer,) = found & people
    assert sex.get(answer, wanted.get(word)) == wanted.get(word, sex.get(answer))
    return answer


def read_elimination(question: str) -> str:
    told, asked = sentences(question)
    _, (who, things) = understood(told[0], r"(.+) each \w+ a different \w+: (.+)\.")
    names, given = re.split(r", | and ", who), re.split(r", | and ", things)
    verbs = r"(?:picked|owns|plays|wears|learns|orders)"
    has, lacks = [], []
    for text in told[1:]:
        place, words = understood(
            text,
            rf"{WORD} {verbs} (?:the )?{WORD}\.",
            rf"{WORD} (?:did|does) not \w+ (?:the )?{WORD}\.",
        )
        (has if place == 0 else lacks).append(words)
    _, (asked_for,) = understood(asked, rf"(?:What|Which \w+) (?:did|does) {WORD} \w+\?")
    answers = set()
    for order in itertools.permutations(given):
        pairs = set(zip(names, order, strict=True))
        if all(pair in pairs for pair in has) and not any(pair in pairs for pair in lacks):
            answers.add(dict(pairs)[asked_for])
    (answer,) = answers
    return answer


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def read_times(question: str) -> str:
    told, asked = sentences(question)
    slots = DAYS if any(day in question for day in DAYS) else HOURS
    at: dict[str, int] = {}
    gaps = []
    for text in told:
        place, words = understood(
            text,
            rf"The {WORD} (?:is|takes place) (?:on|at) {WORD}\.",
            rf"(?:On|At) {WORD} is the {WORD}\.",
            rf"The {WORD} is (\d+) (?:day|hour)s? (after|before) the {WORD}\.",
            rf"(\d+) (?:day|hour)s? (after|before) the {WORD} is the {WORD}\.",
        )
        if place < 2:
            event, slot = words if place == 0 else words[::-1]
            at[event] = slots.index(slot)
        else:
            event, number, side, other = words if place == 2 else (words[3], *words[:3])
            gaps.append((event, int(number) if side == "after" else -int(number), other))
    for _ in gaps:
        at |= {event: at[other] + gap for event, gap, other in gaps if other in at}
    _, (event,) = understood(asked, rf"When (?:is|does) the {WORD}(?: take place)?\?")
    return slots[at[event]]


READERS: dict[str, Callable[[str], str]] = {
    "rank": read_ranking,
    "amount": read_amounts,
    "where": read_places,
    "direction": read_map,
    "lives": read_rules,
    "rides": read_rules,
    "color": read_rules,
    "kin": read_family,
    "thing of": read_elimination,
    "when": read_times,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_of_the_text_finds_the_answer(kind: str, choices: list[dict[str, Any]]) -> None:
    mine = [item for item in choices if item["query"][0] == kind]
    assert len(mine) > 20
    for item in mine:
        assert READERS[kind](item["question"]) == item["options"][item["answer_index"]], item["question"]


CHANGES = [
    (r"(?:buys|gives \w+|finds|orders|brings \w+|picks out) (\d+) more", "+"),
    (r"gets (\d+) \w+ from|wins (\d+)|borrows (\d+)|parcel with (\d+)", "+"),
    (r"gives (\d+) \w+ to|loses (\d+)|sells (\d+)|takes (\d+) of|throws away (\d+)|uses (\d+) of", "-"),
    (r"lends (\d+)|sends (\d+)|hands (\d+)|(\d+) of the \w+ go missing", "-"),
    (r"grows to (\d+) times|until \w+ has (\d+) times|one with (\d+) times|until there are (\d+) times", "*"),
    (r"into (\d+) equal parts|shared equally by (\d+)|into (\d+) equal piles", "/"),
]


CHAIN = re.compile(
    r"At first there are \d+ [\w-]+\."
    r"(?: (?:After getting|After losing|With|Split into) \d+[^.]+ = \d+\.)+ The answer is \d+\."
)


def read_story(question: str) -> int:
    """Follow the number of things through the sentences of a chain."""
    told, _ = sentences(question)
    (start,) = re.findall(r"\d+", told[0])
    number = int(start)
    for text in told[1:]:
        hits = [(re.search(pattern, text), op) for pattern, op in CHANGES]
        ((hit, op),) = [(hit, op) for hit, op in hits if hit]
        change = int(next(group for group in hit.groups() if group))
        assert re.findall(r"\d+", text) == [str(change)]
        if op == "/":
            assert number % change == 0
        number = {"+": number + change, "-": number - change, "*": number * change, "/": number // change}[op]
    return number


def test_a_reader_of_a_chain_finds_its_number() -> None:
    items = bundled.items("arith", "test", 500, seed=3) + bundled.items("arith", "train", 500, seed=3)
    chains = [item for item in items if CHAIN.fullmatch(item["solution"])]
    assert len(chains) > 200
    for item in chains:
        assert read_story(item["question"]) == int(item["golden"]), item["question"]
