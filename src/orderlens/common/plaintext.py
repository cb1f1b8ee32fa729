"""Plain text for terminals, pages and notebooks: unsafe characters as escapes, tables as aligned lines.

Texts, ids and file names come from outside. A control character in them could move the terminal's cursor,
hide or recolour text, or set a title or a link; a bidirectional control could reorder text, also on a page.
Letters of every script, combining marks and emoji stay. ``plain`` converts values for JSON.
Of a table the caller formats the cells; ``shown`` formats any value as one short line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orderlens.errors import counted

WIDTH = 100
"""Default number of characters per line."""
_LONGEST = 24

Lines = Sequence[str]
"""The lines of one cell."""
UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1 (CSI, OSC, …)
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides, isolates
    "\u2028\u2029\ufff9-\ufffb"  # line separators, interlinear anchors
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff"  # lone surrogates
    "]"
)


def printable(text: str) -> str:
    r"""Return ``text`` with every unsafe character as ``\x1b``, ``\u202e`` or ``\U000e0041``."""
    return UNSAFE.sub(lambda found: escape(ord(found[0])), text)


def escape(code: int) -> str:
    """Return the escape of a code point."""
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: Any) -> Any:
    """Return ``value`` with arrays as lists, numpy scalars as Python's, and non-finite floats as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def lay_out(rows: Sequence[Sequence[Lines]], *, keys: int = 0, width: int | None = None) -> list[str]:
    """Return a table as lines: headings, a rule, rows.

    Args:
        rows: the headings, then the rows, each with the lines of its cells.
        keys: number of first columns that are repeated where a table is continued below.
        width: maximum number of characters per line; None for no maximum. A wider table is continued below
            after an empty line; a column is never split.
    """
    widths = [max(len(line) for row in rows for line in row[place]) for place in range(len(rows[0]))]
    lines: list[str] = []
    for places in _panels(widths, keys, width):
        chosen = [widths[place] for place in places]
        body = [line for row in rows[1:] for line in _lines([row[place] for place in places], chosen)]
        head = _lines([rows[0][place] for place in places], chosen)
        lines += [*head, "  ".join("─" * size for size in chosen), *body, ""]
    return lines


def _panels(widths: Sequence[int], keys: int, width: int | None) -> list[list[int]]:
    """Return the columns of each part of a table; every part has the key columns."""
    first = list(range(keys))
    panels = [first.copy()]
    used = start = sum(widths[place] + 2 for place in first) - 2
    for place in range(keys, len(widths)):
        if width is not None and used + 2 + widths[place] > width and len(panels[-1]) > keys:
            panels.append(first.copy())
            used = start
        panels[-1].append(place)
        used += 2 + widths[place]
    return panels


def _lines(cells: Sequence[Lines], widths: Sequence[int]) -> Iterator[str]:
    for place in range(max(len(cell) for cell in cells)):
        parts = [cell[place] if place < len(cell) else "" for cell in cells]
        yield "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def first_rows(columns: Mapping[str, Sequence[object]], n_rows: int) -> str:
    """Return the size of a table and its first rows as aligned text.

    Columns that are empty in these rows, or that do not fit, are only listed by name.

    Args:
        columns: name → values of the first rows.
        n_rows: number of rows of the table.
    """
    cells = {
        name: [one_line(name), *map(shown, values)]
        for name, values in columns.items()
        if not values or any(value is not None for value in values)
    }
    widths = {name: max(map(len, column)) for name, column in cells.items()}
    kept = list(_fitting(widths))
    rows = zip(*(cells[name] for name in kept), strict=True)
    lines = [" ".join(cell.rjust(widths[name]) for name, cell in zip(kept, row, strict=True)) for row in rows]
    left = [one_line(name) for name in columns if name not in kept]
    more = [f"… and {len(left)} more columns: {', '.join(left)}"] if left else []
    return "\n".join([size_of(columns, n_rows), *lines, *more])


def _fitting(widths: Mapping[str, int]) -> Iterator[str]:
    used = 0
    for name, width in widths.items():
        used += width + 1
        if used > width + 1 and used > WIDTH + 1:
            return
        yield name


def size_of(columns: Mapping[str, Sequence[object]], n_rows: int) -> str:
    """Return the numbers of rows and columns in words; ``columns`` hold the first rows."""
    here = len(next(iter(columns.values()), ()))
    first = f"; the first {here}" if here < n_rows else ""
    return f"{counted(n_rows, 'row')} × {counted(len(columns), 'column')}{first}"


def shown(value: object) -> str:
    """Return any value in one short line."""
    if value is None:
        return "–"
    text = f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def one_line(text: str) -> str:
    """Return ``text`` in one line, with control characters escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )
