"""Results of a study's runs: tables, figures, findings and pages. Needs no model.

``write_docs`` writes a finished replication as a Markdown page, with its figures in a folder next to it.
Everything on it comes from the runs, except for one hand-written section, which is kept when the page is
generated again. The page contains no text of the data set.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orderlens.analysis.identity import RUNS_OF
from orderlens.analysis.study import Options, Study
from orderlens.analysis.table import Table
from orderlens.claims import read
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, Outcome
from orderlens.claims.decoding import decoding_findings
from orderlens.claims.fixed import fixed_findings
from orderlens.claims.judge import RULES, Finding, Reading, judge
from orderlens.claims.sweep import sweep_findings
from orderlens.common.templating import Markdown, write_page
from orderlens.errors import RunError, StorageError
from orderlens.figures.catalogue import PICTURES, DrawnFigure, draw_figures, figure_names
from orderlens.metrics.estimate import Resampling
from orderlens.show.report.build import SAMPLES, first_screen, pack_samples
from orderlens.show.report.page import (
    Page,
    markdown_tables,
    picture,
    run_details,
    write_report,
    writing_results,
)
from orderlens.show.report.questions import Question
from orderlens.store.folder import open_folder
from orderlens.store.records import SPEC
from orderlens.store.specfile import read_spec
from orderlens.studies.external import read_scores
from orderlens.studies.frontier_plan import FrontierPlan
from orderlens.studies.plan import Plan, Stored, stored_plan
from orderlens.studies.replicate_plan import ReplicatePlan
from orderlens.studies.runner import notes_of

TABLES_OF = {
    "score": ("fixed-sequence", "coherence", "theory"),
    "generate": ("generation", "reveal-order"),
    "sweep": ("temperature",),
}
"""Which tables each kind of a replication's traces fills."""
FRONTIER_TABLES = ("frontier", "speed", "policies", "couplings")
FRONTIER_FIGURES = ("frontier", "couplings")


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a study.

    Attributes:
        folder: output folder.
        tables: the tables.
        reading: the findings, judged together.
        figures: the figures.
        plan: what was computed; None for runs without a plan.
        facts: the plan in one sentence.
        notes: further remarks, a sentence each.
        answers: to the questions of the page's first screen.
        n_texts: texts that were scored or decoded.
        seconds: wall time by stage.
    """

    folder: Path
    tables: tuple[Table, ...]
    reading: Reading
    figures: tuple[DrawnFigure, ...]
    plan: Plan | None = None
    facts: str = ""
    notes: tuple[str, ...] = ()
    answers: tuple[Question, ...] = ()
    n_texts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def page(self) -> Path:
        """The self-contained HTML page."""
        return self.folder / "index.html"

    def record(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        from orderlens.analysis.rendering import as_json

        return {
            "folder": str(self.folder),
            "plan": None if self.plan is None else self.plan.record(),
            "notes": list(self.notes),
            "seconds": self.seconds,
            "reading": self.reading.record(),
            "tables": [as_json(table) for table in self.tables],
            "figures": [
                {"name": item.name, "files": [str(path) for path in item.paths], "why": item.why}
                for item in self.figures
            ],
        }


def write_results(
    results: Results,
    name: str = "findings",
    *,
    page: Page | None = None,
    template: str = "",
    content: Mapping[str, Any] | None = None,
) -> Results:
    """Write tables and findings of a study into its folder, and its pages; figures are drawn already.

    Args:
        results: what to write.
        name: of the files with the findings.
        page: content of ``index.html``; None writes no page.
        template: of ``results.md``; empty writes none.
        content: what the template shows besides pictures.
    """
    with writing_results(results.folder, results.tables, results.reading, name):
        if template:
            pictures = [picture(item) for item in results.figures]
            write_page(results.folder / "results.md", template, pictures=pictures, **(content or {}))
        if page is not None:
            write_report(results.page, page)
    return results


def replicate_results(out: str | Path, why_no_scores: str | None = None) -> Results:
    """Write tables, findings, figures and the page of the runs that a replication's folder holds.

    Args:
        out: the folder.
        why_no_scores: why there are no external scores; found out from the folder by default.
    """
    start, folder = time.perf_counter(), Path(out)
    stored = stored_plan(folder, ReplicatePlan)
    plan = stored.plan
    scores = read_scores(folder / "runs", plan.evaluator)
    why = None if scores else why_no_scores or "the generated texts were not scored (stage external)"
    whole = Study.open(folder, Options(evaluator=scores))
    studies = views_of(whole)
    tables = tuple(_explained(table, why) for table in build(studies))
    reading = judge(replication_findings(studies))
    drawn = tuple(draw_figures(whole, folder / "figures", figure_names(RUNS_OF)))
    answers = tuple(first_screen(whole, tables, reading))
    notes, n_texts = tuple(notes_of(stored, why)), int(stored.data["n_samples"])
    results = Results(folder, tables, reading, drawn, plan, plan.facts(), notes, answers, n_texts)
    facts = (results.facts, *results.notes)
    content = {"facts": facts, "reading": reading, "rules": RULES, "tables": markdown_tables(tables)}
    page = Page(
        f"What the reveal order does to {plan.model}",
        facts,
        answers,
        reading,
        RULES,
        [picture(item) for item in drawn],
        tables,
        run_details(whole.run),
        pack_samples(whole, SAMPLES),
        linked=True,
    )
    write_results(results, page=page, template="replication.md.j2", content=content)
    return replace(results, seconds={"results": time.perf_counter() - start})


def views_of(whole: Study) -> dict[str, Study]:
    """Return one study per kind of traces of a replication; ``sweep`` holds the greedy texts as well."""
    return {kind: whole.view(kind) for kind in RUNS_OF if whole.has_view(kind)}


def build(studies: Mapping[str, Study]) -> list[Table]:
    """Return the tables of all studies, the same that ``orderlens analyze`` prints for those runs."""
    return [
        table for kind, names in TABLES_OF.items() if kind in studies for table in studies[kind].tables(names)
    ]


def replication_findings(studies: Mapping[str, Study]) -> list[Finding]:
    """Return the findings in the paper's order."""
    out = fixed_findings(studies["score"]) if "score" in studies else []
    out += decoding_findings(studies["generate"], studies["ending"]) if "generate" in studies else []
    return out + (sweep_findings(studies["sweep"]) if "sweep" in studies else [])


def _explained(table: Table, why_none: str | None) -> Table:
    if why_none and table.name in ("generation", "temperature"):
        return table.with_notes([f"External perplexity is missing: {why_none}."])
    return table


def frontier_results(
    out: str | Path, resampling: Resampling | None = None, formats: Sequence[str] | None = None
) -> Results:
    """Write tables, figures and findings of the runs that a frontier's folder holds."""
    start, folder = time.perf_counter(), Path(out)
    stored = stored_plan(folder, FrontierPlan)
    if not (folder / "runs").is_dir():
        raise RunError(f"{folder} holds no runs yet: run the other parts first")
    scores = read_scores(folder / "runs", stored.plan.evaluator)
    options = Options(resampling or Resampling(), evaluator=scores)
    study = Study.open(folder / "runs", options).one_setup()
    names = [name for name in FRONTIER_TABLES if name != "couplings" or "couplings" in study.run.tables]
    tables, reading = tuple(study.tables(names)), read(study, ["parallel"])
    drawn = tuple(draw_figures(study, folder / "figures", FRONTIER_FIGURES, formats))
    results = Results(folder, tables, reading, drawn, stored.plan, notes=tuple(notes_of(stored, None)))
    write_results(results)
    return replace(results, seconds={"results": time.perf_counter() - start})


BY_HAND = "## Our reading"
_GROUPS: tuple[tuple[Outcome, str], ...] = (
    (SUPPORTED, "Agrees with the paper"),
    (NOT_SUPPORTED, "Does not agree"),
    (OPEN, "Left open by this run"),
)


def write_docs(results: Results, page: Path) -> Path:
    """Write the page and copy the pictures to ``figures/NAME/`` next to it, NAME being the page's.

    Args:
        results: of a replication.
        page: the Markdown file; it is overwritten, except for a section called "Our reading".
    """
    stored = stored_plan(results.folder, ReplicatePlan)
    try:
        pictures = page.parent / "figures" / page.stem
        pictures.mkdir(parents=True, exist_ok=True)
        for item in results.figures:
            for path in item.paths:
                if path.suffix in PICTURES:
                    shutil.copyfile(path, pictures / path.name)
        by_hand = _written_by_hand(page)
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{page} exists and is not UTF-8 text; choose another name for the page"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {page}: {error.strerror or error}") from error
    return write_page(
        page,
        "replication-docs.md.j2",
        model=stored.model["name"],
        facts=list(_facts(results.folder, stored, results.notes)),
        reading=results.reading,
        groups=_GROUPS,
        by_hand=Markdown(by_hand),
        folder=f"figures/{page.stem}",
        pictures=[picture(item, (".png",)) for item in results.figures],
        rules=RULES,
        tables=markdown_tables(results.tables),
    )


def _written_by_hand(page: Path) -> str:
    """Return the hand-written section of an earlier page; empty if there is none."""
    if not page.exists():
        return ""
    found = re.search(
        rf"^{BY_HAND}\n.*?(?=^## |\Z)", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return found[0].strip() if found else ""


def _facts(folder: Path, stored: Stored[ReplicatePlan], notes: Sequence[str]) -> Iterable[str]:
    data = stored.data
    yield stored.plan.facts()
    yield f"{data['n_samples']} texts; digest of their tokens `{data['digest']}`."
    yield f"Weights: digest `{stored.model['digest']}`. External perplexity: {stored.plan.evaluator}."
    for machine in sorted({_machine(path.parent) for path in (folder / "runs").glob(f"*/{SPEC}")}):
        yield f"Computed on {machine}."
    yield from notes


def _machine(run: Path) -> str:
    """Return the hardware and versions that a run was started with, as far as recorded."""
    found = read_spec(open_folder(run)).provenance
    hardware, versions = found.get("hardware") or {}, found.get("versions") or {}
    device = ", ".join(dict.fromkeys(hardware.get("accelerators") or ())) or hardware.get("processor")
    return f"{device or 'an unknown machine'} with torch {versions.get('torch') or 'absent'}"
