"""A few rows as text and as HTML, for people at a prompt or in a notebook. Knows only Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from orderlens.common.templating import fill
from orderlens.errors import counted

WIDTH = 100
"""Characters of a line of text; columns that do not fit are named below."""
_CELL = 24
_FIRST = 5
_SHOWN = (
    "run",
    "sample_id",
    "order",
    "seed",
    "temperature",
    "n",
    "n_passes",
    "mean",
    "var",
    "log_prob",
    "likelihood",
)
"""Rows and columns of a run's traces that a notebook shows unasked."""


def as_text(table: pa.Table, n_rows: int) -> str:
    """Return the rows of ``table`` as aligned text, under how many there are in all (``n_rows``).

    Columns that are empty in these rows, or that do not fit, are only named.
    """
    filled = [name for name in table.column_names if table[name].null_count < len(table) or not len(table)]
    columns = _columns(table.select(filled))
    widths = [max(map(len, column)) for column in columns]
    kept = list(_fitting(widths))
    lines = [
        " ".join(columns[i][row].rjust(widths[i]) for i in kept)
        for row in range(table.num_rows + 1 if kept else 0)
    ]
    shown = {filled[i] for i in kept}
    left = [_safe(name) for name in table.column_names if name not in shown]
    more = [f"… and {len(left)} more columns: {', '.join(left)}"] if left else []
    return "\n".join([_size(table, n_rows), *lines, *more])


def as_html(table: pa.Table, n_rows: int) -> str:
    """Return the rows of ``table`` as an HTML table, with all its columns."""
    return fill("rows.html.j2", **_cells(table), size=_size(table, n_rows))


def run_html(facts: Mapping[str, str], first: pa.Table) -> str:
    """Return what runs are, line by line, over a few of their traces (``first``) as an HTML table."""
    rows = first.slice(0, _FIRST).select([name for name in _SHOWN if name in first.column_names])
    columns = [name for name in rows.column_names if rows[name].null_count < len(rows)]
    told = [(_safe(name), _safe(value)) for name, value in facts.items()]
    return fill("run.html.j2", facts=told, **_cells(rows.select(columns)))


def _cells(table: pa.Table) -> dict[str, Any]:
    heads, *rows = zip(*_columns(table), strict=True) if table.column_names else [()]
    return {"heads": heads, "rows": rows}


def _size(table: pa.Table, n_rows: int) -> str:
    first = f"; the first {table.num_rows}" if table.num_rows < n_rows else ""
    return f"{counted(n_rows, 'row')} × {counted(table.num_columns, 'column')}{first}"


def _columns(table: pa.Table) -> list[list[str]]:
    """Return per column its name and its cells as text."""
    return [[_safe(name), *map(_cell, table[name].to_pylist())] for name in table.column_names]


def _fitting(widths: Sequence[int]) -> Iterator[int]:
    used = 0
    for place, width in enumerate(widths):
        used += width + 1
        if place and used > WIDTH + 1:
            return
        yield place


def _cell(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.6g}" if isinstance(value, float) else _safe(str(value))
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _safe(text: str) -> str:
    """Return ``text`` in one line, with controls as escapes: data must not steer a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )
