"""The paper's printed values, and what of them does not hold, beside our tables.

Values are in ``data/paper_tables.json``: per table a list of [row keys…, column, value], and remarks that a
careful reader of the paper's own numbers arrives at. Does not compute anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from orderlens.analysis.table import Printed, Table

PAPER_ORDERS = ("forced-ar", "reverse-ar", "random", "oracle-max-q", "oracle-margin", "oracle-min-q")
"""The orders of the paper's fixed-sequence figure."""


@lru_cache(maxsize=1)
def paper_tables() -> Mapping[str, Any]:
    """Return the content of the data file."""
    text = files("orderlens").joinpath("data/paper_tables.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["tables"])


def printed_values(name: str) -> dict[tuple[str, ...], float | str]:
    """Return the paper's values of a table by (row keys…, column)."""
    cells = paper_tables().get(name, {}).get("cells", [])
    return {tuple(str(part) for part in cell[:-1]): cell[-1] for cell in cells}


def beside_paper(table: Table) -> Table:
    """Return the table with the paper's value in every cell that the paper prints, and with our remarks."""
    values = printed_values(table.name)
    printed: dict[tuple[int, str], Printed] = {}
    for place, row in enumerate(table.rows):
        key = tuple(str(row[name]) for name in table.keys if name != "model")
        for column in table.columns:
            if (*key, column.name) in values:
                printed[place, column.name] = Printed(values[(*key, column.name)])
    remarks = paper_tables().get(table.name, {}).get("remarks", [])
    notes = tuple(f"Paper: {remark}" for remark in remarks)
    if values and not printed:
        notes = (*notes, "Paper: it prints no cell of this table for these tasks and orders.")
    return replace(table, printed=printed, notes=(*table.notes, *notes))
