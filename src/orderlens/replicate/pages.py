"""A replication's own pages: one self-contained HTML file and the same as Markdown, beside the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orderlens.analysis.judge import RULES, Reading
from orderlens.analysis.study import Study
from orderlens.analysis.table import Table
from orderlens.figures.catalogue import Drawn
from orderlens.replicate.plan import Plan
from orderlens.report.build import SAMPLES, first_screen
from orderlens.report.content import markdown_tables, picture
from orderlens.report.page import Page, run_details, write_report
from orderlens.report.render import write_page
from orderlens.report.samples import pack_samples


def plan_facts(plan: Plan) -> str:
    """Return in one sentence what was computed."""
    warm = "".join(f", {value:g}" for value in plan.temperatures)
    many = f", also with {' and '.join(plan.together)}" if plan.together else ""
    asked = f" and {plan.questions} questions (T = 0 only{many})" if plan.questions else ""
    return (
        f"Model {plan.model}; data {Path(plan.data).name}; preset {plan.preset}: up to {plan.n_sequences} "
        f"texts chosen by hash of their id{asked}, {plan.prefix_tokens} + {plan.target_tokens} tokens, "
        f"blocks of {plan.block_size}, one token per step, no early stop; T = 0{warm}."
    )


def write_html(
    path: Path,
    plan: Plan,
    study: Study,
    tables: Sequence[Table],
    reading: Reading,
    figures: Sequence[Drawn],
    notes: Sequence[str],
) -> Path:
    """Write the report and return its path; figures must lie in ``figures/`` beside it."""
    page = Page(
        f"What the reveal order does to {plan.model}",
        [plan_facts(plan), *notes],
        first_screen(study, tables, reading),
        reading,
        RULES,
        [picture(item) for item in figures],
        tables,
        run_details(study.run),
        pack_samples(study, SAMPLES),
        linked=True,
    )
    return write_report(path, page)


def write_markdown(
    path: Path,
    plan: Plan,
    tables: Sequence[Table],
    reading: Reading,
    figures: Sequence[Drawn],
    notes: Sequence[str],
) -> Path:
    """Write the same for a repository or a wiki; pictures are linked, not embedded."""
    return write_page(
        path,
        "replication.md.j2",
        facts=[plan_facts(plan), *notes],
        reading=reading,
        rules=RULES,
        pictures=[picture(item) for item in figures],
        tables=markdown_tables(tables),
    )
