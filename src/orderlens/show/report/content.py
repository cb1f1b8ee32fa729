"""What pages show, as plain data: pictures and tables of a study. Findings are plain data already."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orderlens.analysis import beside_paper, render
from orderlens.analysis.rendering import cell_text
from orderlens.analysis.table import Table
from orderlens.common.files import write_text
from orderlens.common.templating import Markdown
from orderlens.errors import StorageError
from orderlens.figures.catalogue import Drawn
from orderlens.figures.save import save_data, save_table

PICTURES = (".svg", ".png")


class Readable(Protocol):
    """Findings, judged: as plain data and in words."""

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        ...

    def text(self) -> str:
        """Return the words."""
        ...


@contextmanager
def writing_results(folder: Path, tables: Iterable[Table], reading: Readable, name: str) -> Iterator[None]:
    """Write tables and reading (``name.json``, ``name.txt``) into ``folder``; pages are written in the block.

    Raises:
        StorageError: the folder, or a page, cannot be written.
    """
    try:
        for table in tables:
            save_table(folder / "tables", table)
        save_data(reading.record(), folder / f"{name}.json")
        write_text(folder / f"{name}.txt", reading.text())
        yield
    except OSError as error:
        raise StorageError(f"cannot write the results to {folder}: {error.strerror or error}") from error


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
    """A table as text: headings, rows of cells, notes; ``csv`` is an address that holds it as a file."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    csv: str


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
    packed = base64.b64encode(render([table], "csv").encode("utf-8", "backslashreplace")).decode()
    csv = f"data:text/csv;charset=utf-8;base64,{packed}"
    return Grid(table.name, table.title, heads, rows, tuple(table.notes), csv)


def markdown_tables(tables: Sequence[Table]) -> Markdown:
    """Return tables as Markdown, with the paper's values beside ours where there are any."""
    return Markdown(render([beside_paper(table) for table in tables], "markdown"))
