"""Conditions on the numbers of the viewer's list: ``var > 0.5, mean < -1``.

The report reads the same text in the browser (``frontend/src/ranges.ts``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orderlens.errors import UserInputError

COLUMNS = {"var": "var", "mean": "mean", "gap": "gap", "passes": "passes", "eos": "cascade", "n": "n"}
"""What may be named → the column of the list."""
_WAYS = {"≤": "<=", "≥": ">="}
_BETWEEN = re.compile(r"[,;&]|\band\b", re.IGNORECASE)
_ONE = re.compile(
    r"\s*([a-z]+)\s*(<=|>=|<|>|=|≤|≥)\s*([-−+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Range:
    """One condition: a column of the list, ``<``, ``<=``, ``>``, ``>=`` or ``=``, and a number."""

    column: str
    way: str
    value: float


def parse_ranges(text: str) -> tuple[Range, ...]:
    """Return the conditions of a text, all of which must hold.

    Raises:
        UserInputError: a part of it is no condition.
    """
    return tuple(_parsed(part) for part in _BETWEEN.split(text) if part.strip())


def _parsed(part: str) -> Range:
    found = _ONE.fullmatch(part)
    column = COLUMNS.get(found[1].lower()) if found else None
    if found is None or column is None:
        known = ", ".join(COLUMNS)
        raise UserInputError(
            f"'{part.strip()[:40]}' is no condition; write for example: var > 0.5, mean < -1 ({known})"
        )
    return Range(column, _WAYS.get(found[2], found[2]), float(found[3].replace("−", "-")))
