"""What pages show, as plain data: pictures and tables of a study. Findings are plain data already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.analysis import beside_paper, render
from orderlens.analysis.rendering import cell_text
from orderlens.analysis.table import Table
from orderlens.figures.catalogue import Drawn
from orderlens.templating import Markdown

PICTURES = (".svg", ".png")


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure on a page.

    Attributes:
        name: its id.
        title: the caption, which is also the text alternative.
        files: everything that was written for it, data included.
        why: why there is no picture; empty where there is one.
    """

    name: str
    title: str
    files: tuple[Path, ...]
    why: str = ""

    def best(self, first: str) -> Path:
        """Return the picture in the format ``first`` (``.svg`` or ``.png``), or in the other one."""
        shown = [path for path in self.files if path.suffix in PICTURES]
        return max(shown, key=lambda path: path.suffix == first)


def picture(drawn: Drawn, formats: Sequence[str] = PICTURES) -> Picture:
    """Return a drawn figure for a page that can show ``formats``."""
    has_one = any(path.suffix in formats for path in drawn.paths)
    missing = "" if has_one else "no picture format was asked for"
    return Picture(drawn.name, drawn.title, tuple(drawn.paths), drawn.why or missing)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text: headings, rows of cells, notes."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def grid(table: Table) -> Grid:
    """Return a table's cells as they are shown."""
    rows = tuple(
        (
            *(str(row[key]) for key in table.keys),
            *(cell_text(row[column.name], column.digits) for column in table.columns),
        )
        for row in table.rows
    )
    heads = (*table.keys, *(column.heading for column in table.columns))
    return Grid(table.name, table.title, heads, rows, tuple(table.notes))


def markdown_tables(tables: Sequence[Table]) -> Markdown:
    """Return tables as Markdown, with the paper's values beside ours where there are any."""
    return Markdown(render([beside_paper(table) for table in tables], "markdown"))
