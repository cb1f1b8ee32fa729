"""Word pools and small English helpers for the generated tasks.

Has only words, articles and functions that draw them; does not depend on problems or splits.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple


def pool(text: str) -> tuple[str, ...]:
    """Return the words of ``text``, so that pools can be written as running text."""
    return tuple(text.split())


_HE = pool(
    """Adam Aaron Alan Ben Bill Brian Carl Charles Chris Dan David Dean Eric Evan Frank Fred Gary George
    Grant Greg Harry Henry Hugh Ian Ivan Jack Jake James Jason Joe John Josh Karl Keith Ken Kevin
    Larry Leo Liam Luke Mark Martin Matt Max Mike Nathan Neil Nick Noah Oliver Oscar Owen Paul Peter
    Ralph Ray Rob Roger Ryan Sam Scott Sean Simon Steve Ted Tim Toby Tom Tony Victor Walter Will Zach"""
)
_SHE = pool(
    """Alice Amy Anna Ava Beth Bella Carol Clara Cora Daisy Dora Dana Diana Donna Ella Ellen Emily Emma
    Erin Eva Fiona Flora Gina Gloria Grace Hannah Hazel Helen Holly Ida Iris Ivy Jane Jean Jenny Jill
    Joan Julia Karen Kate Kathy Laura Leah Lily Linda Lisa Lucy Maria Mary Mia Molly Nancy Nina Nora
    Olive Olivia Paula Penny Rachel Rita Rose Ruth Sally Sandra Sarah Sofia Stella Susan Tara Tessa
    Tina Vera Wendy Zoe"""
)


class Person(NamedTuple):
    """A name with its pronouns: subject, object and possessive."""

    name: str
    he: str
    him: str
    his: str


PEOPLE: tuple[Person, ...] = tuple(
    [Person(name, "he", "him", "his") for name in _HE] + [Person(name, "she", "her", "her") for name in _SHE]
)
NAMES: tuple[str, ...] = tuple(person.name for person in PEOPLE)

# One plural per countable thing, grouped by the actions that make sense for it.
FOOD = pool(
    """apples pears plums peaches oranges lemons bananas cherries figs grapes melons cookies muffins buns
    rolls pies cakes pancakes eggs carrots onions potatoes tomatoes peppers nuts olives beans radishes
    beets waffles donuts biscuits sandwiches bagels candies mints"""
)
GOODS = pool(
    """books pens pencils notebooks stamps cards coins marbles shells buttons beads stickers ribbons
    postcards magnets badges puzzles balloons crayons erasers folders envelopes candles cups plates
    bowls spoons towels socks hats scarves toys dolls blocks kites balls ropes keys lamps bricks"""
)
THINGS: tuple[str, ...] = FOOD + GOODS
# Things with a singular, for prices ("an apple costs 3 dollars").
PRICED: tuple[tuple[str, str], ...] = (
    ("scarf", "scarves"),
    ("sandwich", "sandwiches"),
    ("brush", "brushes"),
    ("atlas", "atlases"),
    *(
        (noun, f"{noun}s")
        for noun in pool(
            """apple melon cake pie book pen notebook cup plate bowl hat toy doll kite ball lamp candle
            towel puzzle ticket shirt orange onion umbrella apron album easel armchair"""
        )
    ),
)
PLACES_SELLING = ("shop", "store", "market", "fair", "stall", "school fair", "street market", "corner shop")
CONTAINERS: tuple[tuple[str, str], ...] = (
    ("box", "boxes"),
    ("bag", "bags"),
    ("basket", "baskets"),
    ("jar", "jars"),
    ("tray", "trays"),
    ("crate", "crates"),
    ("tin", "tins"),
    ("bin", "bins"),
    ("case", "cases"),
    ("sack", "sacks"),
    ("packet", "packets"),
    ("drawer", "drawers"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def article(noun: str) -> str:
    """Return "a" or "an"; correct for every noun of these pools (none starts with a silent h or /juː/)."""
    return "an" if noun[0] in "aeiou" else "a"


def capital(text: str) -> str:
    """Upper-case the first letter and leave the rest."""
    return text[:1].upper() + text[1:]


def listed(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """Join words as English does: "a", "a and b", "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def people(rng: Random, count: int) -> list[Person]:
    """Draw ``count`` different people."""
    return rng.sample(PEOPLE, count)
