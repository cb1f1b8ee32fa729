"""Everything that comes from the stored traces: tables, figures, findings, pages. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.analysis import Options, Study, Table
from orderlens.analysis.setups import RUNS_OF
from orderlens.claims.decoding import decoding_findings
from orderlens.claims.fixed import fixed_findings
from orderlens.claims.judge import RULES, Finding, Reading, judge
from orderlens.claims.sweep import sweep_findings
from orderlens.common.templating import write_page
from orderlens.figures.catalogue import Drawn, draw_figures, figure_names
from orderlens.metrics.external import CausalEvaluator
from orderlens.show.report.build import SAMPLES, first_screen
from orderlens.show.report.content import markdown_tables, picture, writing_results
from orderlens.show.report.page import Page, run_details, write_report
from orderlens.show.report.samples import pack_samples
from orderlens.studies.replicate.plan import Plan

TABLES_OF = {
    "score": ("fixed-sequence", "coherence", "theory"),
    "generate": ("generation", "reveal-order"),
    "sweep": ("temperature",),
}
"""Which tables each kind of traces fills."""


@dataclass(frozen=True, slots=True)
class Results:
    """What was made of the traces.

    Attributes:
        facts: what was computed, and what a reader should know besides; a sentence each.
    """

    folder: Path
    model: str
    facts: tuple[str, ...]
    tables: tuple[Table, ...]
    reading: Reading
    figures: tuple[Drawn, ...]

    @property
    def page(self) -> Path:
        """The self-contained HTML page."""
        return self.folder / "index.html"


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
    results = Results(folder, plan.model, (plan.facts(), *notes), tables, reading, drawn)
    with writing_results(folder, tables, reading, "findings"):
        _write_markdown(results)
        _write_html(results, whole)
    return results


def _write_html(results: Results, study: Study) -> None:
    page = Page(
        f"What the reveal order does to {results.model}",
        results.facts,
        first_screen(study, results.tables, results.reading),
        results.reading,
        RULES,
        [picture(item) for item in results.figures],
        results.tables,
        run_details(study.run),
        pack_samples(study, SAMPLES),
        linked=True,
    )
    write_report(results.page, page)


def _write_markdown(results: Results) -> None:
    """Write the same for a repository or a wiki; pictures are linked, not embedded."""
    write_page(
        results.folder / "results.md",
        "replication.md.j2",
        facts=results.facts,
        reading=results.reading,
        rules=RULES,
        pictures=[picture(item) for item in results.figures],
        tables=markdown_tables(results.tables),
    )


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
