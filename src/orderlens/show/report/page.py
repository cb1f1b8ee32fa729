"""The report: one HTML file that needs nothing else, and the pictures, tables and results of other pages.

Findings are plain data already.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orderlens._version import __version__
from orderlens.analysis import beside_paper, render
from orderlens.analysis.rendering import cell_text
from orderlens.analysis.table import Table
from orderlens.claims.judge import Finding, Reading
from orderlens.common.files import write_text
from orderlens.common.templating import Markdown, write_page
from orderlens.errors import StorageError
from orderlens.figures.cards import draw
from orderlens.figures.catalogue import DrawnFigure
from orderlens.figures.save import save_data, save_table, svg_text
from orderlens.show.report.questions import Question

if TYPE_CHECKING:
    from orderlens.store.reader import Run


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


def picture(drawn: DrawnFigure, formats: Sequence[str] = PICTURES) -> Picture:
    """Return a drawn figure for a page that can show ``formats``."""
    has_one = any(path.suffix in formats for path in drawn.paths)
    missing = "" if has_one else "no picture format was asked for"
    return Picture(drawn.name, drawn.title, tuple(drawn.paths), drawn.why or missing)


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table as text: headings, rows of cells, notes; ``csv`` is an address that holds it as a file."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    csv: str


def grid(table: Table) -> PageTable:
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
    return PageTable(table.name, table.title, heads, rows, tuple(table.notes), csv)


def markdown_tables(tables: Sequence[Table]) -> Markdown:
    """Return tables as Markdown, with the paper's values beside ours where there are any."""
    return Markdown(render([beside_paper(table) for table in tables], "markdown"))


@dataclass(frozen=True, slots=True)
class Packed:
    """Samples for the explorer: gzip in base64, and how they were chosen in a sentence."""

    data: str
    note: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a report shows.

    Attributes:
        heading: the title.
        facts: what was run, in sentences.
        questions: of the first screen.
        reading: judged findings; None where there is nothing to judge.
        why_no_findings: in place of findings.
        rules: how the words of findings are chosen.
        headlines: one sentence per task, for graded runs.
        pictures: the figures.
        tables: all of them.
        runs: run name → what ``Run.details`` tells.
        samples: for the explorer; None leaves it out.
        why_no_samples: in place of the explorer.
        linked: whether the figures' files lie in ``figures/`` beside the page.
    """

    heading: str
    facts: Sequence[str]
    questions: Sequence[Question]
    reading: Reading | None
    rules: Sequence[str]
    pictures: Sequence[Picture]
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
    return write_page(
        path,
        "report.html.j2",
        page=page,
        charts={item.id: svg_text(draw(item.chart)) for item in page.questions if item.chart},
        tables=[grid(table) for table in page.tables],
        provenance=[(name, origin(facts), _json(facts)) for name, facts in page.runs.items()],
        style=style,
        script=script,
        version=__version__,
    )


def run_details(run: Run) -> dict[str, dict[str, Any]]:
    """Return the details of every run without its place on the disk, which is nobody's business."""
    return {
        name: {key: value for key, value in facts.items() if key != "run"}
        for name, facts in run.details().items()
    }


def origin(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what made a run as (name, value) pairs."""
    spec, made = facts.get("spec") or {}, facts.get("provenance") or {}
    model, data = spec.get("model"), spec.get("data")
    versions = made.get("versions") or {}
    hardware = made.get("hardware") or {}
    pairs = {
        "kind": spec.get("kind"),
        "model": model.get("name") if isinstance(model, Mapping) else model,
        "data": _data_name(data),
        "orders": ", ".join(map(str, spec.get("orders") or ())),
        "temperatures": ", ".join(f"{value:g}" for value in spec.get("temperatures") or ()),
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
    """A built file of the front end, and the digest under which a page's content policy lets it run."""

    text: str
    digest: str


@cache
def asset(name: str) -> Asset:
    """Return ``report.js``, ``viewer.js`` or ``page.css``."""
    text = files("orderlens.show.report").joinpath("assets", name).read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Asset(text, f"sha256-{digest}")
