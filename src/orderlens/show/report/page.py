"""The report: one HTML file that needs nothing else. Collects what it shows and writes it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens._version import __version__
from orderlens.analysis.table import Table
from orderlens.claims.judge import Finding, Reading
from orderlens.common.templating import write_page
from orderlens.show.report.content import Picture, grid
from orderlens.show.report.questions import Question
from orderlens.show.report.samples import Packed

if TYPE_CHECKING:
    from orderlens.store.reader import Run


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
