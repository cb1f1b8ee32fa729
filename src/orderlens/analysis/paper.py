"""The paper's printed values, and what of them does not hold, beside our tables. Computes nothing."""

from __future__ import annotations

from dataclasses import replace

from orderlens import paper
from orderlens.analysis.table import Printed, Table


def beside_paper(table: Table) -> Table:
    """Return the table with the paper's value in every cell that the paper prints, and with our remarks."""
    values = paper.printed(table.name)
    printed: dict[tuple[int, str], Printed] = {}
    for place, row in enumerate(table.rows):
        key = tuple(str(row[name]) for name in table.keys if name != "model")
        for column in table.columns:
            if (*key, column.name) in values:
                printed[place, column.name] = Printed(values[(*key, column.name)])
    notes = tuple(f"Paper: {remark}" for remark in paper.remarks(table.name))
    if values and not printed:
        notes = (*notes, "Paper: it prints no cell of this table for these tasks and orders.")
    return replace(table, printed=printed, notes=(*table.notes, *notes))
