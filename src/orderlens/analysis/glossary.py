"""Meanings of terms and columns, read from ``glossary.toml``; as Markdown page and as plain text.

``docs/glossary.md``, ``orderlens analyze --explain``, the report and the viewer use these entries. Does not
depend on runs, tables or studies.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from orderlens.common.templating import fill
from orderlens.registry import refuse_unknown

PAGE = "docs/glossary.md"


@dataclass(frozen=True, slots=True)
class Entry:
    """One term; fields that do not apply are empty.

    Attributes:
        term: its name in print.
        section: heading of the page under which it is listed.
        meaning: one or two sentences.
        columns: columns (and row names) that it explains; ``table:column`` counts in that table only, and the
            table ``viewer`` is the list of samples in report and viewer.
        formula: in plain characters.
        unit: of the numbers.
        direction: whether more is better.
        paper: its name in the paper.
        others: its names in other tools.
    """

    term: str
    section: str
    meaning: str
    columns: tuple[str, ...] = ()
    formula: str = ""
    unit: str = ""
    direction: str = ""
    paper: str = ""
    others: str = ""

    @property
    def anchor(self) -> str:
        """The heading's address on the page, as GitHub and the site write it."""
        return re.sub(r"[^\w\- ]", "", self.term.lower()).replace(" ", "-")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of tables and files, without the table that some belong to."""
        named = (column.rpartition(":") for column in self.columns)
        return tuple(dict.fromkeys(column for table, _, column in named if table != "viewer"))

    @property
    def facts(self) -> dict[str, str]:
        """The fields after the meaning that apply, by their label in print."""
        labelled = {
            "formula": self.formula,
            "unit": self.unit,
            "direction": self.direction,
            "in the paper": self.paper,
            "elsewhere": self.others,
        }
        return {label: text for label, text in labelled.items() if text}


@cache
def _content() -> Mapping[str, object]:
    return tomllib.loads(files("orderlens").joinpath("analysis/glossary.toml").read_text(encoding="utf-8"))


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries in the order of the page."""
    found = _content()["entry"]
    assert isinstance(found, list)
    return tuple(Entry(**{**item, "columns": tuple(item.get("columns", ()))}) for item in found)


def columns_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the columns of the tables that ``analyze --table name`` prints, by table.

    Raises:
        UserInputError: the glossary does not list this table.
    """
    tables = _content()["tables"]
    assert isinstance(tables, dict)
    refuse_unknown("table", name, tables)
    return {table: tuple(columns) for table, columns in tables[name].items()}


def explain(column: str, table: str = "") -> Entry | None:
    """Return the entry of a table's column; None for a column that the glossary does not list."""
    index = _by_column()
    return index.get(f"{table}:{column}") or index.get(column)


@cache
def _by_column() -> dict[str, Entry]:
    return {column: entry for entry in entries() for column in entry.columns}


def of_columns(columns: Iterable[str], table: str = "") -> list[Entry]:
    """Return the entries of some columns of a table, each once, in the order of the columns."""
    found = (explain(column, table) for column in columns)
    return list({entry.term: entry for entry in found if entry is not None}.values())


def of_tables(names: Iterable[str]) -> list[Entry]:
    """Return the entries of all columns of named tables, each once."""
    found = (
        entry
        for name in names
        for table, columns in columns_of(name).items()
        for entry in of_columns(columns, table)
    )
    return list({entry.term: entry for entry in found}.values())


def as_text(chosen: Iterable[Entry], width: int = 100) -> str:
    """Return entries as plain text, lines of at most ``width`` characters."""
    return "\n\n".join(_paragraph(entry, width) for entry in chosen) + "\n"


def _paragraph(entry: Entry, width: int) -> str:
    head = entry.term + (f"  ({', '.join(entry.column_names)})" if entry.column_names else "")
    lines = textwrap.wrap(head, width, subsequent_indent="    ")
    lines += textwrap.wrap(entry.meaning, width, initial_indent="  ", subsequent_indent="  ")
    for label, text in entry.facts.items():
        first = f"  {label}: "
        lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent="    ")
    return "\n".join(lines)


def as_markdown() -> str:
    """Return the whole glossary as the page ``docs/glossary.md``."""
    sections: dict[str, list[Entry]] = {}
    for entry in entries():
        sections.setdefault(entry.section, []).append(entry)
    return fill("glossary.md.j2", sections=sections)
