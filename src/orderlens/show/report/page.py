"""The report as one self-contained HTML file; pictures, tables and results for other pages."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens._version import __version__
from orderlens.analysis import glossary, render, with_paper_values
from orderlens.analysis.glossary import Entry
from orderlens.analysis.rendering import cell_text
from orderlens.analysis.table import Table
from orderlens.claims.judge import Finding, Reading
from orderlens.common.files import write_text
from orderlens.common.templating import Markdown, write_page
from orderlens.errors import StorageError
from orderlens.figures.cards import draw
from orderlens.figures.catalogue import PICTURES, DrawnFigure, save_data, save_table, svg_text
from orderlens.show.report.questions import Question

if TYPE_CHECKING:
    from orderlens.store.reader import Run


@contextmanager
def writing_results(folder: Path, tables: Iterable[Table], reading: Reading, name: str) -> Iterator[None]:
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


def picture(drawn: DrawnFigure, formats: Sequence[str] = PICTURES) -> DrawnFigure:
    """Return a figure for a page that can show ``formats``; ``why`` is set where there is no such picture."""
    has_one = any(path.suffix in formats for path in drawn.paths)
    return replace(drawn, why=drawn.why or (None if has_one else "no picture format was requested"))


LONGEST_UNIT = 17
"""Characters of a unit that fits below a column head."""


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """A column head, or a name in the first column of a row; ``entry`` explains it, None where none does."""

    text: str
    entry: Entry | None = None

    @property
    def unit(self) -> str:
        """The unit, where it is short and the same for all columns of the entry."""
        unit = "" if self.entry is None else self.entry.unit
        return unit if len(unit) <= LONGEST_UNIT and not {";", ","} & set(unit) else ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table as text: heads, rows of cells, notes; ``csv`` is an address that holds it as a file.

    ``rows`` are pairs: the first cell, and the other ones.
    """

    name: str
    title: str
    heads: tuple[ColumnHead, ...]
    rows: tuple[tuple[ColumnHead, tuple[str, ...]], ...]
    notes: tuple[str, ...]
    csv: str


def grid(table: Table) -> PageTable:
    """Return a table's cells as they are shown."""
    rows = [
        (
            *(str(row[key]) for key in table.keys),
            *(cell_text(row[column.name], column.digits) for column in table.columns),
        )
        for row in table.rows
    ]
    named = [*((key, key) for key in table.keys), *((item.name, item.heading) for item in table.columns)]
    heads = tuple(ColumnHead(text, glossary.explain(name, table.name)) for name, text in named)
    packed = base64.b64encode(render([table], "csv").encode("utf-8", "backslashreplace")).decode()
    csv = f"data:text/csv;charset=utf-8;base64,{packed}"
    split = tuple((_row_head(table, row[0]), row[1:]) for row in rows)
    return PageTable(table.name, table.title, heads, split, tuple(table.notes), csv)


def _row_head(table: Table, text: str) -> ColumnHead:
    """Return the first cell of a row; where rows are statistics, it is explained."""
    is_statistic = table.keys[0] in ("metric", "statistic")
    return ColumnHead(text, glossary.explain(text, table.name) if is_statistic else None)


def terms_of(tables: Sequence[PageTable]) -> list[Entry]:
    """Return the entries of all heads, each once, in the order in which they appear."""
    heads = (head for table in tables for head in (*table.heads, *(first for first, _ in table.rows)))
    return list({head.entry.term: head.entry for head in heads if head.entry is not None}.values())


def markdown_tables(tables: Sequence[Table]) -> Markdown:
    """Return tables as Markdown; cells also show the paper's value, where it prints one."""
    return Markdown(render([with_paper_values(table) for table in tables], "markdown"))


@dataclass(frozen=True, slots=True)
class Packed:
    """Samples for the explorer: gzip in base64, and how they were chosen in a sentence."""

    data: str
    note: str


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a report.

    Attributes:
        heading: the title.
        facts: sentences that describe the runs.
        questions: of the first screen.
        reading: judged findings; None where there is nothing to judge.
        why_no_findings: in place of findings.
        rules: how the outcomes of findings are decided.
        headlines: one sentence per task, for graded runs.
        pictures: the figures.
        tables: all of them.
        runs: run name → ``Run.details``.
        samples: for the explorer; None leaves it out.
        why_no_samples: in place of the explorer.
        linked: whether the folder of the page holds the figures' files in ``figures/``.
    """

    heading: str
    facts: Sequence[str]
    questions: Sequence[Question]
    reading: Reading | None
    rules: Sequence[str]
    pictures: Sequence[DrawnFigure]
    tables: Sequence[Table]
    runs: Mapping[str, Mapping[str, Any]]
    samples: Packed | None = None
    headlines: Sequence[str] = ()
    why_no_samples: str = ""
    why_no_findings: str = ""
    linked: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, none where nothing was judged."""
        return () if self.reading is None else self.reading.findings


def write_report(path: Path, page: Page) -> Path:
    """Write the page whole to ``path``."""
    style, script = asset("page.css"), asset("report.js")
    tables = [grid(table) for table in page.tables]
    return write_page(
        path,
        "report.html.j2",
        page=page,
        charts={item.id: svg_text(draw(item.chart)) for item in page.questions if item.chart},
        tables=tables,
        terms=terms_of(tables),
        provenance=[(name, origin(facts), _json(facts)) for name, facts in page.runs.items()],
        style=style,
        script=script,
        version=__version__,
    )


def run_details(run: Run) -> dict[str, dict[str, Any]]:
    """Return the details of every run without its folder: a page may be published."""
    return {
        name: {key: value for key, value in facts.items() if key != "run"}
        for name, facts in run.details().items()
    }


def origin(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the origin of a run (model, data, versions, …) as (name, value) pairs."""
    spec, made = facts.get("spec") or {}, facts.get("provenance") or {}
    model, data = spec.get("model"), spec.get("data")
    versions = made.get("versions") or {}
    hardware = made.get("hardware") or {}
    pairs = {
        "kind": spec.get("kind"),
        "model": model.get("name") if isinstance(model, Mapping) else model,
        "data": _data_name(data),
        "orders": ", ".join(map(str, spec.get("orders") or ())),
        "temperatures": ", ".join(_number(value) for value in spec.get("temperatures") or ()),
        "seed": spec.get("seed"),
        "state": facts.get("state"),
        "reveals": f"{facts['rows'].get('reveals', 0):,}" if facts.get("rows") else None,
        "spec digest": str(facts.get("spec_digest") or "")[:16],
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items() if value),
        "computed on": ", ".join(
            str(value) for value in (hardware.get("processor"), hardware.get("accelerators")) if value
        ),
        "started": made.get("time"),
    }
    return [(name, str(value)) for name, value in pairs.items() if value not in (None, "")]


def _number(value: object) -> str:
    """Return a temperature as text; a schedule is text already."""
    return value if isinstance(value, str) else f"{value:g}"


def _data_name(data: object) -> str | None:
    if not isinstance(data, Mapping):
        return None if data is None else str(data)
    name = data.get("name") or data.get("source") or ", ".join(map(str, data.get("tasks") or ()))
    count = data.get("n_samples")
    return f"{name}, {count} samples" if count else str(name)


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, ensure_ascii=False, default=str, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Asset:
    """A built file of the front end, and its digest for the page's content security policy."""

    text: str
    digest: str


@cache
def asset(name: str) -> Asset:
    """Return ``report.js``, ``viewer.js`` or ``page.css``."""
    text = files("orderlens.show.report").joinpath("assets", name).read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Asset(text, f"sha256-{digest}")
