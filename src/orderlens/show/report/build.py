"""A report of any runs: every table they can fill, every figure, every finding, some samples."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orderlens.analysis.lorenz import first_block_curves
from orderlens.analysis.study import Study
from orderlens.analysis.table import Table
from orderlens.analysis.traces import all_passes
from orderlens.claims.catalogue import FINDINGS
from orderlens.claims.fixed import fixed_findings
from orderlens.claims.judge import RULES, Finding, Reading, judge
from orderlens.errors import UndefinedFigureError, UserInputError
from orderlens.figures.catalogue import draw_figures
from orderlens.show.report.content import picture
from orderlens.show.report.page import Page, run_details, write_report
from orderlens.show.report.questions import Question, questions
from orderlens.show.report.samples import pack_samples

SAMPLES = 12
"""Samples in a report unless asked otherwise."""
BUILT_IN = ("fixed", "decoding", "sweep", "correctness")


def report(
    study: Study,
    path: Path,
    *,
    samples: int = SAMPLES,
    title: str | None = None,
    figures: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
) -> Path:
    """Write the report of a study and return its path.

    Args:
        study: any runs.
        path: the HTML file.
        samples: how many samples can be explored in it; 0 keeps every text out of the file.
        title: of the page.
        figures: names of the figures; all by default.
        tables: names of the tables; by default all that the runs can fill. Findings on fixed texts stand on
            two of them, coherence and theory.
    """
    made = study.tables(tables)
    reading, why = read_findings(study, made)
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw_figures(study, folder, figures, ["svg"])
        page = Page(
            title or "What the reveal order does",
            run_facts(study),
            first_screen(study, made, reading),
            reading,
            RULES,
            [picture(item) for item in drawn],
            made,
            run_details(study.run),
            pack_samples(study, samples),
            why_no_samples="" if samples else "No sample was asked for (--samples 0).",
            why_no_findings=why,
        )
        return write_report(path, page)


def read_findings(study: Study, tables: Sequence[Table]) -> tuple[Reading | None, str]:
    """Return every built-in finding that the runs allow, judged together, or why there is none.

    Args:
        study: any runs.
        tables: all that the runs can fill; findings that stand on a table do not make it again.
    """
    try:
        study.one_setup()
    except UserInputError as error:
        return None, f"Findings are about one model at a time: {error}."
    found = [finding for name in BUILT_IN for finding in _claims(study, name, tables)]
    if not found:
        return None, "These runs hold nothing that a finding speaks about."
    return judge(found, study.options.resampling.level), ""


def _claims(study: Study, name: str, tables: Sequence[Table]) -> list[Finding]:
    """Return the findings of one kind, none where the runs lack what they are about."""
    named = {table.name: table for table in tables}
    if name == "fixed":
        return fixed_findings(study.view("score"), named) if {"coherence", "theory"} <= named.keys() else []
    if name == "sweep" and study.generated["temperature"].nunique() < 2:
        return []
    try:
        claims = FINDINGS.get(name)(study)
    except UserInputError:  # the first screen says what was not measured
        return []
    return [claims] if isinstance(claims, Finding) else claims


def first_screen(study: Study, tables: Sequence[Table], reading: Reading | None) -> list[Question]:
    """Return the three questions about a study."""
    named = {table.name: table for table in tables}
    findings = () if reading is None else reading.findings
    return questions(named, findings, _lorenz(study), policies(study))


def _lorenz(study: Study) -> Mapping[str, Any] | None:
    if len(study.by_setup()) > 1 or not study.has_view("score"):
        return None
    try:
        return first_block_curves(study.view("score"))
    except UndefinedFigureError:
        return None


def policies(study: Study) -> list[dict[str, Any]]:
    """Return passes, tokens and mean log q of generated text by policy, on prompts that all of them decoded.

    Compared are the policies that commit several tokens per pass and the orders they stand on; without such a
    policy there is nothing to compare. Tokens past the requested length count: passes were spent on them too.
    """
    frame = study.decoded
    frame = frame.assign(filled=frame["n"] + frame["n_overflow"], passes=all_passes(frame))
    total = frame.groupby("order")[["passes", "filled"]].sum()
    passes = total["passes"] < total["filled"]
    together = [str(name) for name in passes.index[passes]]
    alone = {name.partition("+")[0] for name in together} & {str(name) for name in passes.index[~passes]}
    compared = sorted({*together, *alone})
    frame = frame[frame["order"].isin(compared) & (frame["n"] > 0)]
    seen = frame.groupby("prompt")["order"].nunique()
    frame = frame[frame["prompt"].isin(seen.index[seen == len(compared)])]
    return [
        {
            "order": str(order),
            "passes": float(part["passes"].mean()),
            "n": float(part["filled"].mean()),
            "mean": float(part["mean"].mean()),
        }
        for order, part in frame.groupby("order", sort=True)
    ]


def run_facts(study: Study) -> list[str]:
    """Return in sentences what the runs are."""
    frame = study.samples
    models = ", ".join(study.by_setup())
    orders = study.orders(frame)
    shown = ", ".join(orders[:10]) + (f" and {len(orders) - 10} more" if len(orders) > 10 else "")
    kinds = []
    if len(study.scored):
        kinds.append(f"{study.scored['prompt'].nunique()} fixed texts scored")
    if len(study.generated):
        warm = ", ".join(f"{value:g}" for value in sorted(study.generated["temperature"].unique()))
        kinds.append(f"{study.generated['prompt'].nunique()} prompts decoded at T = {warm}")
    tasks = [str(name) for name in frame["task"].dropna().unique()]
    about = f" ({', '.join(tasks)})" if tasks else ""
    runs = study.run.names
    named = ", ".join(runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    return [
        f"Model {models}; {' and '.join(kinds) or 'no traces'}{about}.",
        f"{len(orders)} orders: {shown}. {len(frame):,} traces with {int(frame['n'].sum()):,} tokens.",
        f"{'Runs' if len(runs) > 1 else 'Run'}: {named}.",
        *study.remarks,
    ]
