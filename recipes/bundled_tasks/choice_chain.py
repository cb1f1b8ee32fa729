"""Chains of facts: rules about groups, families, and relative times."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from bundled_tasks.problem import Fact, Problem, build, four_options
from bundled_tasks.words import DAYS, NAMES, Person, article, capital, people, pool

_JOBS = pool("baker farmer teacher painter doctor driver singer tailor gardener plumber writer artist")
_CITIES = pool("London Paris Rome Berlin Boston Chicago Sydney Moscow Washington Toronto York")
_RIDES = pool("bicycle boat truck car bus train tram scooter van canoe taxi sled")
_TINTS = pool("red blue green yellow black white brown gray pink purple orange silver")
_KINDS = (_JOBS, _CITIES, _RIDES, _TINTS)
_HEADS = ("job", "lives", "rides", "color")
_RULES = {
    "job": ("{a} is {an} {b}.", "{a} works as {an} {b}.", "By trade {a} is {an} {b}."),
    "lives": ("Every {a} lives in {b}.", "All {a}s live in {b}.", "Each {a} has a house in {b}."),
    "rides": (
        "Everyone in {a} goes to work by {b}.",
        "People in {a} always travel by {b}.",
        "In {a} all go by {b}.",
    ),
    "color": (
        "Every {a} we see is {b}.",
        "In these cities each {a} is {b}.",
        "Any {a} seen here is {b}.",
    ),
}
_RULE_ASKS = (
    ("In which city does {} live?", "Where does {} live?"),
    ("How does {} go to work?", "What does {} travel by?"),
    ("What color is the one that {} travels in?", "In what color does {} travel to work?"),
)


def rules(rng: Random, level: int) -> Problem:
    """Every member of a group has a property: apply one to three rules; a parallel chain is a distractor.

    Facts are ("job", who, job), ("lives", job, city), ("rides", city, ride), ("color", ride, color).
    """
    draws = [rng.sample(pool, 2) for pool in (NAMES, *_KINDS[: level + 1])]
    chain, trail = ([pair[side] for pair in draws] for side in (0, 1))
    facts: list[Fact] = [(_HEADS[i], way[i], way[i + 1]) for way in (chain, trail) for i in range(level + 1)]
    rng.shuffle(facts)
    texts = [rng.choice(_RULES[str(head)]).format(a=a, b=b, an=article(str(b))) for head, a, b in facts]
    texts.append(rng.choice(_RULE_ASKS[level - 1]).format(chain[0]))
    options = four_options(rng, chain[-1], (trail[-1],), _KINDS[level])
    return build(level, facts, (_HEADS[level], chain[0]), texts, _rule_solution(chain), chain[-1], options)


def _rule_solution(chain: list[str]) -> str:
    said = [f"{chain[0]} is {article(chain[1])} {chain[1]}.", f"Every {chain[1]} lives in {chain[2]}."]
    if len(chain) > 3:
        said.append(f"In {chain[2]} all go by {chain[3]}.")
    if len(chain) > 4:
        said.append(f"Every {chain[3]} is {chain[4]}.")
    return f"{' '.join(said)} So for {chain[0]} it is {chain[-1]}."


# relation -> (word for a man, word for a woman)
_KIN = {
    "grandparent": ("grandfather", "grandmother"),
    "sibling": ("brother", "sister"),
    "uncle": ("uncle", "aunt"),
    "cousin": ("cousin", "cousin"),
    "great-grandparent": ("great-grandfather", "great-grandmother"),
}
_KIN_BY_LEVEL = {
    1: ("grandparent", "sibling"),
    2: ("uncle", "cousin"),
    3: ("great-grandparent", "cousin", "uncle"),
}


def kinship(rng: Random, level: int) -> Problem:
    """A small family, described by its parents; who is a person's aunt, cousin or grandfather?

    Facts are ("parent", a, b). One grandparent has two children, each with one child (level 1: only one);
    level 3 adds the grandparent's parent.
    """
    elder, parent, aunt, child, cousin = family = people(rng, 5)
    links = [(elder, parent), (elder, aunt), (parent, child)] + ([(aunt, cousin)] if level > 1 else [])
    top = people(rng, 1)[0]
    if level == 3:
        while top in family:
            top = people(rng, 1)[0]
        links.append((top, elder))
    rng.shuffle(links)
    relation = rng.choice(_KIN_BY_LEVEL[level])
    who = parent if relation == "sibling" else child
    found, solution = _kin_answer(relation, elder, parent, aunt, child, cousin, top)
    word = _kin_word(relation, found)
    texts = [_parent_text(rng, a, b) for a, b in links]
    texts.append(rng.choice((f"Who is {who.name}'s {word}?", f"Who is the {word} of {who.name}?")))
    facts: list[Fact] = [("parent", a.name, b.name) for a, b in links]
    names = list(dict.fromkeys(person.name for link in links for person in link))
    options = four_options(rng, found.name, [name for name in names if name != who.name], NAMES)
    solution = f"{solution} So {found.name} is the {word} of {who.name}."
    return build(level, facts, ("kin", relation, who.name), texts, solution, found.name, options)


def _kin_word(relation: str, person: Person) -> str:
    return _KIN[relation][0 if person.he == "he" else 1]


def _kin_answer(
    relation: str, elder: Person, parent: Person, aunt: Person, child: Person, cousin: Person, top: Person
) -> tuple[Person, str]:
    up = f"{child.name} is the child of {parent.name}, and {parent.name} is the child of {elder.name}."
    siblings = f"{parent.name} and {aunt.name} are both children of {elder.name}."
    down = f"{child.name} is the child of {parent.name}."
    if relation == "grandparent":
        return elder, up
    if relation == "great-grandparent":
        return top, f"{up} The parent of {elder.name} is {top.name}."
    if relation == "sibling":
        return aunt, siblings
    if relation == "uncle":
        return aunt, f"{down} {siblings}"
    return cousin, f"{down} {siblings} {cousin.name} is the child of {aunt.name}."


def _parent_text(rng: Random, a: Person, b: Person) -> str:
    parent = "father" if a.he == "he" else "mother"
    child = "son" if b.he == "he" else "daughter"
    wordings = (
        f"{a.name} is the {parent} of {b.name}.",
        f"{b.name} is the {child} of {a.name}.",
        f"{a.name} has a {child} named {b.name}.",
        f"{a.name} is {b.name}'s {parent}.",
    )
    return rng.choice(wordings)


_EVENTS = pool(
    """concert lecture meeting exam party race play dinner match parade workshop picnic lesson dance
    rehearsal exhibition auction tour interview wedding"""
)
_HOURS = pool("one two three four five six seven eight nine ten eleven twelve")


def schedule(rng: Random, level: int) -> Problem:
    """Events with times relative to each other in days or hours; when is one of them?

    Facts are ("on", event, place in the week or day) and ("after", e, f, d): e is d places after f (before,
    where d is negative). The asked event is ``level`` relative facts away from the known one.
    """
    slots, unit, prep = (DAYS, "day", "on") if rng.random() < 0.5 else (_HOURS, "hour", "at")
    events, at = _timetable(rng, level, len(slots))
    side = rng.randrange(len(slots))
    gaps = [after - before for before, after in pairwise(at)]
    facts: list[Fact] = [("on", events[0], at[0]), ("on", events[-1], side)]
    facts += [("after", events[i + 1], events[i], gap) for i, gap in enumerate(gaps)]
    if level > 1:
        rng.shuffle(facts)
    texts = [_event_text(rng, fact, slots, unit, prep) for fact in facts]
    asked, answer = events[level], slots[at[level]]
    texts.append(rng.choice((f"When is the {asked}?", f"When does the {asked} take place?")))
    worked = [f"The {events[0]} is {prep} {slots[at[0]]}."]
    for event, gap, slot in zip(events[1:], gaps, at[1:], strict=False):
        worked.append(f"The {event} is {_distance(gap, unit)}, {prep} {slots[slot]}.")
    options = four_options(rng, answer, [slots[slot] for slot in (*at, side)], slots)
    return build(level, facts, ("when", asked), texts, " ".join(worked), answer, options)


def _timetable(rng: Random, level: int, n_slots: int) -> tuple[list[str], list[int]]:
    """Draw level + 2 events and the slots of the first level + 1; the last event is a distractor."""
    while True:
        events, at = rng.sample(_EVENTS, level + 2), [rng.randrange(n_slots)]
        for _ in range(level):
            at.append(at[-1] + rng.choice((-1, 1)) * rng.randint(1, 3))
        if all(0 <= slot < n_slots for slot in at):
            return events, at


def _distance(places: int, unit: str) -> str:
    return f"{abs(places)} {unit}{'s' if abs(places) > 1 else ''} {'later' if places > 0 else 'earlier'}"


def _event_text(rng: Random, fact: Fact, slots: tuple[str, ...], unit: str, prep: str) -> str:
    if fact[0] == "on":
        when = f"{prep} {slots[int(fact[2])]}"
        return rng.choice(
            (
                f"The {fact[1]} is {when}.",
                f"The {fact[1]} takes place {when}.",
                f"{capital(when)} is the {fact[1]}.",
            )
        )
    places = int(fact[3])
    apart = f"{abs(places)} {unit}{'s' if abs(places) > 1 else ''}"
    side = "after" if places > 0 else "before"
    return rng.choice(
        (f"The {fact[1]} is {apart} {side} the {fact[2]}.", f"{apart} {side} the {fact[2]} is the {fact[1]}.")
    )
