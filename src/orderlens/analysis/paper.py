"""The paper's numbers: every value it prints, the orders it compares, and the thresholds it names.

The source is ``analysis/paper.json``: per table a list of [row keys…, column, value] and remarks on
inconsistencies; order lists; benchmarks; numbers from the running text. Computes nothing and imports no other
module of the package, so that every layer may use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

PLAN_FILE = "plan.json"
"""Marks the folder of a replication; its runs are below ``runs``."""


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    text = files("orderlens").joinpath("analysis/paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def tables() -> Mapping[str, Any]:
    """Return the tables by name: where the paper has them, their cells, our remarks."""
    return dict(_content()["tables"])


def printed(table: str) -> dict[tuple[str, ...], float | str]:
    """Return the paper's values of a table by (row keys…, column)."""
    cells = tables().get(table, {}).get("cells", [])
    return {tuple(str(part) for part in cell[:-1]): cell[-1] for cell in cells}


def value(table: str, *key: str) -> float:
    """Return one printed number by its table, row keys and column; KeyError when the paper has none."""
    found = printed(table)[key]
    if isinstance(found, str):
        raise KeyError(f"the paper prints '{found}', not a number, at {key} of table {table}")
    return found


def remarks(table: str) -> list[str]:
    """Return remarks on inconsistencies among the paper's own numbers in a table."""
    return list(tables().get(table, {}).get("remarks", []))


def orders(use: str) -> tuple[str, ...]:
    """Return the orders of ``fixed-sequence``, ``decoding``, ``structured`` or ``confidence-first``."""
    return tuple(_content()["orders"][use])


def number(name: str) -> float:
    """Return a number of the text, e.g. ``high_temperature``, or one that follows from printed ones."""
    found: float = {**_content()["numbers"], **_content()["derived"]}[name]
    return found


def benchmarks() -> Mapping[str, Mapping[str, Any]]:
    """Return the benchmarks by task: printed name, number of items, half-width of an accuracy (points)."""
    return dict(_content()["benchmarks"])
