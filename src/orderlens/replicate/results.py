"""Everything that comes from the stored traces: tables, figures, findings, the page. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.analysis import Options, Study, Table
from orderlens.analysis.judge import Finding, Reading, judge
from orderlens.analysis.tables import TABLES
from orderlens.errors import StorageError
from orderlens.figures.catalogue import FIGURES, Drawn, draw_figures
from orderlens.figures.save import save_data, save_table
from orderlens.findings.decoding import decoding_findings
from orderlens.findings.fixed import fixed_findings
from orderlens.findings.sweep import sweep_findings
from orderlens.metrics.external import CausalEvaluator
from orderlens.replicate.markdown import write_markdown
from orderlens.replicate.page import write_page
from orderlens.replicate.plan import Plan
from orderlens.replicate.text import render_text
from orderlens.store.reader import open_run

TABLES_OF = {
    "score": ("fixed-sequence", "coherence", "theory"),
    "generate": ("generation", "reveal-order"),
    "sweep": ("temperature",),
}
"""Which tables each kind of traces fills."""
RUNS_OF = {
    "score": ("score", "measure"),
    "generate": ("generate", "tokens"),
    "ending": ("generate", "questions", "tokens"),
    "sweep": ("generate", "sweep"),
}
"""Which run folders are read together; ``ending`` is for EOS: it includes the demo's questions."""


@dataclass(frozen=True, slots=True)
class Results:
    """What was made of the traces."""

    folder: Path
    tables: tuple[Table, ...]
    reading: Reading
    figures: tuple[Drawn, ...]
    page: Path


def open_studies(runs: Path, evaluator: CausalEvaluator | None) -> dict[str, Study]:
    """Return one study per kind of traces; ``sweep`` holds the greedy texts as well."""
    found = {}
    for kind, names in RUNS_OF.items():
        places = [runs / name for name in names if (runs / name).is_dir()]
        if (runs / ("generate" if kind == "ending" else kind)).is_dir():
            found[kind] = Study(open_run(places), Options(evaluator=evaluator))
    return found


def write_results(
    folder: Path, plan: Plan, evaluator: CausalEvaluator | None, why_none: str | None, notes: Sequence[str]
) -> Results:
    """Make tables, findings, figures and the page from the runs in ``folder``."""
    studies = open_studies(folder / "runs", evaluator)
    tables = tuple(_explained(table, why_none) for table in build(studies))
    reading = judge(find_all(studies, tables))
    names = [name for name, recipe in FIGURES.items() if recipe.traces in RUNS_OF]
    drawn = tuple(draw_figures(studies, folder / "figures", names))
    try:
        for table in tables:
            save_table(folder / "tables", table)
        save_data(reading.record(), folder / "findings.json")
        (folder / "findings.txt").write_text(render_text(reading), encoding="utf-8")
        write_markdown(folder / "results.md", plan, tables, reading, drawn, notes)
        page = write_page(folder / "index.html", plan, tables, reading, drawn, notes)
    except OSError as error:
        raise StorageError(f"cannot write the results to {folder}: {error.strerror or error}") from error
    return Results(folder, tables, reading, drawn, page)


def build(studies: dict[str, Study]) -> list[Table]:
    """Return the tables of all studies, the same that ``orderlens analyze`` prints for those runs."""
    return [
        table
        for kind, names in TABLES_OF.items()
        if kind in studies
        for name in names
        for table in TABLES[name].build(studies[kind])
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
