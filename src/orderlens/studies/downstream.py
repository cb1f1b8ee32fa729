"""The downstream study: findings on traces and correctness of graded runs, and a folder of results.

The folder holds no text of prompts, responses or documents, so that it can be published even if the data
cannot. Needs no model.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orderlens.analysis.study import Study
from orderlens.analysis.table import Table
from orderlens.analysis.tables_downstream import guessing_levels
from orderlens.claims.checks import NOT_SUPPORTED, OPEN, OUTCOMES, SUPPORTED, Outcome
from orderlens.claims.correctness import ALL_ORDERS, read_correctness
from orderlens.claims.judge import RULES, Finding, FindingPart, Reading
from orderlens.errors import RunError, counted
from orderlens.figures.catalogue import draw_figures, figure_names
from orderlens.show.report.build import first_screen
from orderlens.show.report.page import Page, markdown_tables, picture, run_details
from orderlens.studies.downstream_plan import DownstreamPlan
from orderlens.studies.plan import RESULTS, stored_plan
from orderlens.studies.results import Results, write_results

TITLE = "Does the shape of the trace predict correctness?"
TABLE_NAMES = ("downstream", "votes", "within-cell", "quadrants", "content", "controls", "null")
"""Tables 2 (with min-V and max-V), 3 and S2, 4, S1, votes over the orders, and the controls."""
_IN_FILE_ONLY = ("downstream-paired", "controls-rivals", "controls-held-out", "null")
"""Tables too long for the page."""
HEADINGS: Mapping[Outcome, str] = {
    SUPPORTED: "What these data support",
    NOT_SUPPORTED: "What these data do not support",
    OPEN: "What these data leave open",
}
NOTES = (
    *RULES,
    (
        "Intervals are bootstrap intervals over items, with four exceptions. Differences of Var: smoothed "
        "bootstrap-t per mean. Log-odds: Wald, clustered by item. Advantage beyond the mean: Student's t, "
        "clustered by item. min-V − best order: Student's t, corrected for the choice of the order. "
        "Groups of fewer than 8 items have none. Seeds of one order are pooled. Var, mean log q and length "
        "refer to content tokens."
    ),
    "Association inside a cell is not causation: lowering Var need not make an answer correct.",
)


@dataclass(frozen=True, slots=True)
class DownstreamReading(Reading):
    """A reading of graded runs: all claims of all tasks, judged together.

    Attributes:
        facts: sentences about the run (model, orders, temperature, graders, what was left out).
    """

    facts: tuple[str, ...] = ()

    def headlines(self) -> list[str]:
        """Return one sentence per task on the main question."""
        tasks = dict.fromkeys(item.task for item in self.findings)
        return [
            _headline(task, {item.id: item for item in self.findings if item.task == task}) for task in tasks
        ]

    def text(self) -> str:
        """Return the reading for a terminal."""
        lines = [TITLE, ""]
        lines += [*self.facts, "", *(f"- {line}" for line in self.headlines()), ""]
        lines += [self.sentence(), ""]
        for heading, members in self.groups():
            lines += [heading, ""]
            for finding, texts in members:
                lines += [f"  {finding.task}: {finding.claim}", *(f"    - {text}" for text in texts)]
            lines += [*([] if members else ["  Nothing."]), ""]
        return "\n".join([*lines, *NOTES, ""])

    def groups(self) -> list[tuple[str, list[tuple[Finding, list[str]]]]]:
        """Return, under a heading per outcome, the findings with their texts at the places that have it."""
        return [
            (
                HEADINGS[outcome],
                [(item, _texts(item.at(outcome))) for item in self.findings if item.at(outcome)],
            )
            for outcome in OUTCOMES
        ]

    def record(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        own = {"facts": list(self.facts), "headlines": self.headlines()}
        return {**own, **Reading.record(self), "rules": list(NOTES)}


def _texts(parts: Iterable[FindingPart]) -> list[str]:
    """Return one text per order or part; parts without numbers for the same reason share one."""
    out: list[str] = []
    silent: dict[str, list[str]] = {}
    for part in parts:
        if _has_numbers(part) or not part.where:
            out.append(part.text())
        else:
            silent.setdefault(part.text().removeprefix(f"{part.where}: "), []).append(part.where)
    return [*out, *(f"{', '.join(places)}: {why}" for why, places in silent.items())]


def _has_numbers(part: FindingPart) -> bool:
    return any(check.estimate.is_defined for check in part.checks)


def _headline(task: str, found: Mapping[str, Finding]) -> str:
    if not any(_has_numbers(part) for part in found["lower-when-correct"].parts()):
        return f"{task}: too few correct or incorrect answers under every order to say anything about Var."
    parts = []
    if (guess := found.get("beats-guessing")) and not guess.at(SUPPORTED):
        parts.append("no order is shown to answer better than guessing, so little can be learned here")
    parts.append(f"correct answers have lower Var in {_count(found['lower-when-correct'])}")
    parts.append(f"this holds at equal mean log q and length in {_count(found['survives-controls'])}")
    parts.append(f"Var predicts better than mean log q in {_count(found['better-than-mean'])}")
    return f"{task}: {'; '.join(parts)}."


def _count(finding: Finding) -> str:
    """Return ``3 of 5 orders (1 not, 1 open)``."""
    parts = [part for part in finding.parts() if part.where != ALL_ORDERS]
    yes, no, open_ = (sum(part.outcome == outcome for part in parts) for outcome in OUTCOMES)
    rest = ", ".join(f"{n} {what}" for n, what in ((no, "not"), (open_, "open")) if n)
    return f"{yes} of {len(parts)} orders" + (f" ({rest})" if rest else "")


def graded_study(study: Study) -> Study:
    """Return the study of graded runs; refuses runs without verdicts and runs of several models."""
    study.one_setup()
    if not len(study.graded):
        raise RunError(
            "these runs contain no graded answers; 'orderlens evaluate' writes them, and with --regrade it "
            "grades the answers of a run again"
        )
    return study


def read_downstream(study: Study) -> DownstreamReading:
    """Return the judged findings of a graded study, with facts about its runs."""
    reading = read_correctness(study.graded, study.options.resampling, guessing_levels(study))
    return DownstreamReading(reading.findings, tuple(facts(study)))


def facts(study: Study) -> list[str]:
    """Return sentences on what was decoded and graded."""
    specs = [spec for spec in study.run.specs.values() if spec.get("kind") == "evaluate"]
    models = dict.fromkeys(str(spec["model"]["name"]) for spec in specs)
    lengths = sorted({int(spec["max_new_tokens"]) for spec in specs})
    graded = study.graded
    orders = ", ".join(dict.fromkeys(str(name) for name in graded["order"]))
    length = " or ".join(map(str, lengths)) or "an unknown number of"
    name = ", ".join(models) or "unknown"
    heat = next((item.schedule for item in study.setups.values() if item.schedule), f"{study.temperature:g}")
    out = [f"Model {name}; orders {orders}; temperature {heat}; at most {length} new tokens."]
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


def downstream_results(out: str | Path) -> Results:
    """Write the results of the runs that the folder of a downstream study holds."""
    start, folder = time.perf_counter(), Path(out)
    stored = stored_plan(folder, DownstreamPlan)
    if not (folder / "runs").is_dir():
        raise RunError(f"{folder} holds no runs yet; leave out --stages to compute them")
    made = write_downstream(graded_study(Study.open(folder / "runs")), folder)
    seconds = {RESULTS: time.perf_counter() - start}
    return replace(made, plan=stored.plan, facts=stored.plan.facts(), seconds=seconds)


def write_downstream(study: Study, folder: Path, formats: Sequence[str] | None = None) -> Results:
    """Write reading, tables, figures and pages of a graded study into ``folder``."""
    reading, tables = read_downstream(study), tuple(study.tables(TABLE_NAMES))
    figures = tuple(draw_figures(study, folder / "figures", figure_names(["evaluate"]), formats))
    page = Page(
        TITLE,
        reading.facts,
        first_screen(study, tables, reading),
        reading,
        NOTES,
        [picture(item) for item in figures],
        [table for table in tables if table.name not in _IN_FILE_ONLY],
        run_details(study.run),
        headlines=reading.headlines(),
        why_no_samples="This folder holds no text of prompts, responses or documents.",
        linked=True,
    )
    content = {"downstream": reading, "rules": NOTES, "groups": reading.groups()}
    content["tables"] = [_markdown_table(table) for table in tables]
    results = Results(folder, tables, reading, figures)
    return write_results(results, "summary", page=page, template="downstream.md.j2", content=content)


def _markdown_table(table: Table) -> dict[str, Any]:
    """Return a table as Markdown, without its text if it is too long for the page."""
    elsewhere = table.name in _IN_FILE_ONLY
    text = "" if elsewhere else markdown_tables([table])
    return {
        "name": table.name,
        "title": table.title,
        "notes": table.notes,
        "elsewhere": elsewhere,
        "text": text,
    }
