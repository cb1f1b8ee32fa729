"""Positions: things that are moved, things that are carried, and places on a map."""

from __future__ import annotations

from random import Random

from bundled_tasks.problem import Fact, Problem, build, four_options
from bundled_tasks.words import NAMES, pool

_ITEMS = pool(
    """ball book cup hat key lamp letter map pen phone plate ring rope spoon toy coin bell brush candle
    clock comb drum flute ladder mirror pillow ribbon ticket towel whistle"""
)
_SPOTS = pool(
    """box basket drawer bag chest cupboard jar bucket closet suitcase shed cabinet crate barrel trunk"""
)
_ROOMS = pool(
    """kitchen garden garage office bedroom hall cellar attic library bathroom hallway classroom barn
    yard workshop studio"""
)
_SITES = pool(
    """bank park school church station museum bakery library hotel theater market hospital tower bridge
    lake farm mill harbor"""
)
_PUT = (
    "The {item} is in the {spot}.",
    "At first the {item} is in the {spot}.",
    "{who} keeps the {item} in the {spot}.",
)
_MOVE = (
    "{who} moves the {item} to the {spot}.",
    "{who} puts the {item} into the {spot}.",
    "{who} takes the {item} and puts it in the {spot}.",
    "Then {who} moves the {item} to the {spot}.",
)
_WHERE = ("Where is the {item} now?", "Where is the {item} at the end?", "In which place is the {item} now?")


def moves(rng: Random, level: int) -> Problem:
    """Two things are put somewhere and moved; where is one of them at the end?

    Facts, in time: ("at", item, place). Level n: the asked thing is moved n times, another one
    at most n - 1 times.
    """
    item, other = rng.sample(_ITEMS, 2)
    spots, people = rng.sample(_SPOTS, 5), rng.sample(NAMES, 3)
    events = [item] * level + [other] * rng.randint(0, level - 1)
    rng.shuffle(events)
    facts: list[Fact] = []
    for thing in [*rng.sample((item, other), 2), *events]:
        last = next((place for _, name, place in reversed(facts) if name == thing), None)
        facts.append(("at", thing, rng.choice([spot for spot in spots if spot != last])))
    texts = [
        rng.choice(_PUT if i < 2 else _MOVE).format(who=rng.choice(people), item=thing, spot=place)
        for i, (_, thing, place) in enumerate(facts)
    ]
    path = [str(place) for _, thing, place in facts if thing == item]
    texts.append(rng.choice(_WHERE).format(item=item))
    steps = "".join(f", then in the {place}" for place in path[1:])
    solution = f"The {item} is first in the {path[0]}{steps}. So at the end it is in the {path[-1]}."
    options = four_options(rng, path[-1], path + [str(fact[2]) for fact in facts], spots)
    return build(level, facts, ("where", item), texts, solution, path[-1], options, ordered=True)


def carrying(rng: Random, level: int) -> Problem:
    """People pick things up, walk through rooms and put things down; where is the thing?

    Facts, in time: ("go", who, room), ("take", who, item), ("drop", who, item). The thing was carried through
    ``level`` rooms, and for levels above 1 it may be put down before the carrier walks on.
    """
    who, other = rng.sample(NAMES, 2)
    item, rooms = rng.choice(_ITEMS), rng.sample(_ROOMS, 5)
    facts: list[Fact] = [("go", who, rooms[0]), ("take", who, item)]
    facts += [("go", who, room) for room in rooms[1 : level + 1]]
    answer = rooms[level]
    if level > 1 and rng.random() < 0.5:
        facts += [("drop", who, item), ("go", who, rooms[4])]
    # Only before a person walks, so that "there" always means the room named just before it.
    gaps = [i for i, fact in enumerate(facts) if fact[0] == "go"]
    facts.insert(rng.choice([*gaps, len(facts)]), ("go", other, rng.choice(rooms)))
    texts = [_carry_text(rng, fact) for fact in facts]
    texts.append(rng.choice(_WHERE).format(item=item))
    solution = _carry_solution(who, item, rooms[: level + 1], left=("drop", who, item) in facts)
    options = four_options(rng, answer, rooms)
    return build(level, facts, ("where", item), texts, solution, answer, options, ordered=True)


def _carry_text(rng: Random, fact: Fact) -> str:
    wordings = {
        "go": ("{} goes to the {}.", "{} walks to the {}.", "{} enters the {}."),
        "take": ("{} picks up the {} there.", "{} takes the {} there.", "There {} picks up the {}."),
        "drop": ("{} puts down the {}.", "{} leaves the {} there.", "{} drops the {}."),
    }
    return rng.choice(wordings[str(fact[0])]).format(*fact[1:])


def _carry_solution(who: str, item: str, rooms: list[str], *, left: bool) -> str:
    way = " and then to the ".join(rooms[1:])
    end = f"{who} leaves it there" if left else f"{who} still has it there"
    taken = f"{who} takes the {item} in the {rooms[0]} and carries it to the {way}."
    return f"{taken} {end}, so it is in the {rooms[-1]}."


_STEP = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_COMPASS = ("north", "south", "east", "west", "north-east", "north-west", "south-east", "south-west")
_BESIDE = (
    "The {a} is {way} of the {b}.",
    "The {a} stands {way} of the {b}.",
    "You find the {a} {way} of the {b}.",
)


def directions(rng: Random, level: int) -> Problem:
    """Places one step apart on a grid; in which direction is one from another?

    Facts are (direction, a, b): a is one step in that direction from b. The level is the number of facts less
    one; level 1 has two facts.
    """
    while True:
        sites = rng.sample(_SITES, level + 2)
        ways = [rng.choice(tuple(_STEP)) for _ in range(level + 1)]
        x, y = (sum(_STEP[way][axis] for way in ways) for axis in (0, 1))
        if (x, y) != (0, 0):
            break
    answer = _compass(x, y)
    facts: list[Fact] = [(way, sites[i + 1], sites[i]) for i, way in enumerate(ways)]
    texts = [rng.choice(_BESIDE).format(a=a, b=b, way=way) for way, a, b in facts]
    texts.append(f"Each of these is one mile. In which direction is the {sites[-1]} from the {sites[0]}?")
    solution = f"From the {sites[0]} we go {', then '.join(ways)}. In all that is {answer}."
    return build(
        level,
        facts,
        ("direction", sites[-1], sites[0]),
        texts,
        solution,
        answer,
        four_options(rng, answer, _COMPASS),
    )


def _compass(x: int, y: int) -> str:
    vertical = "north" if y > 0 else "south" if y < 0 else ""
    horizontal = "east" if x > 0 else "west" if x < 0 else ""
    return "-".join(part for part in (vertical, horizontal) if part)
