"""A table whose first column names policies: a name breaks before ``+`` or ``:`` only, other cells at spaces.

Knows terminals' widths, not runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
"""Columns between two cells, and by how much what continues a name is moved in."""

LEAST = 18
"""Columns for a name on narrow terminals: enough for most of its parts."""


def policy_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return the table; its numbers keep their columns, and the names take what is left.

    Args:
        heads: of the columns; the first is that of the names.
        rows: their cells; a row of one cell is a title, and the names below it are moved in.
        width: columns of the terminal.
    """
    from rich.table import Table

    indent = " " * GAP if any(len(row) == 1 for row in rows) else ""
    numbers = [(head, *(row[at] for row in rows if len(row) > 1)) for at, head in enumerate(heads)][1:]
    room = max(LEAST, width - sum(GAP + max(map(len, cells)) for cells in numbers) - len(indent))
    names = [[row[0]] if len(row) == 1 else [indent + line for line in cut(row[0], room)] for row in rows]
    longest = max((len(line) for lines in names for line in lines), default=0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(heads[0], overflow="fold", min_width=min(longest, width // 2))
    for head, *cells in numbers:
        least = max(len(word) for cell in (head, *cells) for word in cell.split() or [""])
        table.add_column(head, justify="right", overflow="fold", min_width=least)
    for lines, (_, *cells) in zip(names, rows, strict=True):
        table.add_row("\n".join(lines), *cells)
    return table


def cut(name: str, room: int) -> list[str]:
    """Return a policy's name in lines of at most ``room`` characters where its parts are that short.

    It breaks before a ``+``, and before a ``:`` where what lies between two ``+`` is too long.
    """
    parts = re.split(r"(?=\+)", name)
    pieces = [piece for part in parts for piece in (re.split("(?=:)", part) if len(part) > room else [part])]
    lines = [""]
    for piece in pieces:
        if lines[-1].strip() and len(lines[-1]) + len(piece) > room:
            lines.append(" " * GAP)
        lines[-1] += piece
    return lines
