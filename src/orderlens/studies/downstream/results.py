"""A graded run made into a folder of results: reading, tables, figures, a page. Needs no model.

Holds no text of prompts, responses or documents, so that it can be published where the data cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.analysis import Study, Table
from orderlens.analysis.tables_downstream import guessing_levels
from orderlens.claims.correctness import read_correctness
from orderlens.common.templating import write_page
from orderlens.errors import RunError, counted
from orderlens.figures.catalogue import Drawn, draw_figures, figure_names
from orderlens.show.report.build import first_screen
from orderlens.show.report.content import markdown_tables, picture, writing_results
from orderlens.show.report.page import Page, run_details, write_report
from orderlens.studies.downstream.reading import NOTES, Downstream

TABLE_NAMES = ("downstream", "within-cell", "quadrants", "content", "controls", "null")
"""Tables 2 (with min-V and max-V), 3 and S2, 4, S1, and the controls."""
_IN_FILE_ONLY = ("downstream-paired", "controls-rivals", "null")
"""Tables too long for the page."""


@dataclass(frozen=True, slots=True)
class DownstreamResults:
    """What was made of a graded run."""

    reading: Downstream
    tables: tuple[Table, ...]
    figures: tuple[Drawn, ...]
    page: Path


def graded_study(study: Study) -> Study:
    """Return the study of graded runs; refuses runs without verdicts and runs of several models."""
    study.one_setup()
    if not len(study.graded):
        raise RunError("these runs hold no verdicts: make some with 'orderlens evaluate', or --regrade")
    return study


def read(study: Study) -> Downstream:
    """Return the plain-language reading of a graded study."""
    options = study.options
    reading = read_correctness(study.graded, options.resampling, guessing_levels(study))
    return Downstream(reading, tuple(facts(study)))


def facts(study: Study) -> list[str]:
    """Return what was decoded and graded, in sentences."""
    specs = [spec for spec in study.run.specs.values() if spec.get("kind") == "evaluate"]
    models = dict.fromkeys(str(spec["model"]["name"]) for spec in specs)
    lengths = sorted({int(spec["max_new_tokens"]) for spec in specs})
    graded = study.graded
    orders = ", ".join(dict.fromkeys(str(name) for name in graded["order"]))
    length = " or ".join(map(str, lengths)) or "an unknown number of"
    name = ", ".join(models) or "unknown"
    out = [f"Model {name}; orders {orders}; temperature {study.temperature:g}; at most {length} new tokens."]
    for task, rows in graded.groupby("task", sort=False):
        lost = int(rows["correct"].isna().sum())
        out.append(
            f"{task}: {counted(rows['item_id'].nunique(), 'item')}, {counted(len(rows), 'response')}"
            + (f", {lost} of them not graded" if lost else "")
            + f"{_task_facts(str(task), specs, study)}."
        )
    return out


def _task_facts(task: str, specs: Sequence[Mapping[str, Any]], study: Study) -> str:
    verdicts = study.verdicts
    rules = sorted({str(name) for name in verdicts[verdicts["task"] == task]["grader"].dropna()})
    records = [spec["data"]["tasks"][task] for spec in specs if task in spec["data"]["tasks"]]
    skipped = sum(len(record["skipped_too_long"]) for record in records)
    text = f", grader {', '.join(rules)}" if rules else ""
    return text + (f"; {skipped} items left out because their prompt is too long" if skipped else "")


def write_results(study: Study, folder: Path, formats: Sequence[str] | None = None) -> DownstreamResults:
    """Write reading, tables and figures of a graded study into ``folder``."""
    reading = read(study)
    tables = tuple(study.tables(TABLE_NAMES))
    figures = tuple(draw_figures(study, folder / "figures", figure_names(["evaluate"]), formats))
    with writing_results(folder, tables, reading, "summary"):
        write_page(
            folder / "results.md",
            "downstream.md.j2",
            groups=reading.groups(),
            tables=[_markdown_table(table) for table in tables],
            **_page_data(reading, figures),
        )
        page = write_report(folder / "index.html", _report(study, reading, tables, figures))
    return DownstreamResults(reading, tables, figures, page)


def _report(study: Study, reading: Downstream, tables: Sequence[Table], figures: Sequence[Drawn]) -> Page:
    return Page(
        "Does the shape of the trace predict correctness?",
        reading.facts,
        first_screen(study, tables, reading.reading),
        reading.reading,
        NOTES,
        [picture(item) for item in figures],
        [table for table in tables if table.name not in _IN_FILE_ONLY],
        run_details(study.run),
        headlines=reading.headlines(),
        why_no_samples="This folder holds no text of prompts, responses or documents.",
        linked=True,
    )


def _page_data(reading: Downstream, figures: Sequence[Drawn]) -> dict[str, Any]:
    return {"downstream": reading, "rules": NOTES, "pictures": [picture(item) for item in figures]}


def _markdown_table(table: Table) -> dict[str, Any]:
    """Return a table as Markdown, or where to find one that is too long for the page."""
    elsewhere = table.name in _IN_FILE_ONLY
    text = "" if elsewhere else markdown_tables([table])
    return {
        "name": table.name,
        "title": table.title,
        "notes": table.notes,
        "elsewhere": elsewhere,
        "text": text,
    }
