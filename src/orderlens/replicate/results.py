"""Everything that comes from the stored traces: tables, figures, findings, the page. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.analysis import Options, Study, Table
from orderlens.analysis.judge import Finding, Reading, judge
from orderlens.analysis.replication import RUNS_OF
from orderlens.errors import StorageError
from orderlens.figures.catalogue import Drawn, draw_figures, figure_names
from orderlens.figures.save import save_data, save_table
from orderlens.files import write_text
from orderlens.findings.decoding import decoding_findings
from orderlens.findings.fixed import fixed_findings
from orderlens.findings.sweep import sweep_findings
from orderlens.metrics.external import CausalEvaluator
from orderlens.replicate.pages import write_html, write_markdown
from orderlens.replicate.plan import Plan
from orderlens.replicate.text import render_text

TABLES_OF = {
    "score": ("fixed-sequence", "coherence", "theory"),
    "generate": ("generation", "reveal-order"),
    "sweep": ("temperature",),
}
"""Which tables each kind of traces fills."""


@dataclass(frozen=True, slots=True)
class Results:
    """What was made of the traces."""

    folder: Path
    tables: tuple[Table, ...]
    reading: Reading
    figures: tuple[Drawn, ...]
    page: Path


def views_of(whole: Study) -> dict[str, Study]:
    """Return one study per kind of traces of a replication; ``sweep`` holds the greedy texts as well."""
    return {kind: whole.view(kind) for kind in RUNS_OF if whole.has_view(kind)}


def write_results(
    folder: Path, plan: Plan, evaluator: CausalEvaluator | None, why_none: str | None, notes: Sequence[str]
) -> Results:
    """Make tables, findings, figures and the page from the runs in ``folder``."""
    whole = Study.open(folder, Options(evaluator=evaluator))
    studies = views_of(whole)
    tables = tuple(_explained(table, why_none) for table in build(studies))
    reading = judge(find_all(studies, tables))
    drawn = tuple(draw_figures(whole, folder / "figures", figure_names(RUNS_OF)))
    try:
        for table in tables:
            save_table(folder / "tables", table)
        save_data(reading.record(), folder / "findings.json")
        write_text(folder / "findings.txt", render_text(reading))
        write_markdown(folder / "results.md", plan, tables, reading, drawn, notes)
        page = write_html(folder / "index.html", plan, whole, tables, reading, drawn, notes)
    except OSError as error:
        raise StorageError(f"cannot write the results to {folder}: {error.strerror or error}") from error
    return Results(folder, tables, reading, drawn, page)


def build(studies: dict[str, Study]) -> list[Table]:
    """Return the tables of all studies, the same that ``orderlens analyze`` prints for those runs."""
    return [
        table for kind, names in TABLES_OF.items() if kind in studies for table in studies[kind].tables(names)
    ]


def find_all(studies: dict[str, Study], tables: Sequence[Table]) -> list[Finding]:
    """Return the findings in the paper's order."""
    named = {table.name: table for table in tables}
    out = fixed_findings(studies["score"], named) if "score" in studies else []
    out += decoding_findings(studies["generate"], studies["ending"]) if "generate" in studies else []
    return out + (sweep_findings(studies["sweep"]) if "sweep" in studies else [])


def _explained(table: Table, why_none: str | None) -> Table:
    if why_none and table.name in ("generation", "temperature"):
        return table.with_notes([f"External perplexity is missing: {why_none}."])
    return table
