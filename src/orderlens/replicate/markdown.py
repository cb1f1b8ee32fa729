"""The results as one Markdown file, for a repository or a wiki; pictures are linked, not embedded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orderlens.analysis import Table, beside_paper, render
from orderlens.analysis.judge import RULES, Finding, Reading
from orderlens.figures.catalogue import Drawn
from orderlens.files import write_text
from orderlens.replicate.page import plan_facts
from orderlens.replicate.plan import Plan


def write_markdown(
    path: Path,
    plan: Plan,
    tables: Sequence[Table],
    reading: Reading,
    figures: Sequence[Drawn],
    notes: Sequence[str],
) -> Path:
    """Write the file and return its path; figures are expected in ``figures/`` beside it."""
    lines = ["# What the reveal order does", "", plan_facts(plan), "", *(f"{note}\n" for note in notes)]
    lines += [
        "## Findings",
        "",
        f"{reading.sentence()} Intervals are 95 % bootstrap intervals over texts.",
        "",
    ]
    lines += ["| # | finding | outcome |", "| --- | --- | --- |"]
    lines += [f"| {n} | {cell(item.claim)} | {item.word} |" for n, item in enumerate(reading.findings, 1)]
    for place, item in enumerate(reading.findings, 1):
        lines += ["", *finding_details(place, item)]
    lines += ["", *(f"{rule}\n" for rule in RULES), "## Figures", ""]
    lines += [line for item in figures for line in _figure(item)]
    lines += ["## Tables", "", render([beside_paper(table) for table in tables], "markdown")]
    return write_text(path, "\n".join(lines))


def finding_details(place: int, item: Finding) -> list[str]:
    """Return one finding with its outcome, rule, numbers and remarks."""
    return [
        f"### {place}. {item.claim}",
        "",
        f"**{item.sentence()}** ({item.source}) Rule: {item.rule}",
        "",
        *(f"- {line}" for line in item.lines()),
        *(f"\n{remark}" for remark in item.remarks),
    ]


def _figure(item: Drawn) -> list[str]:
    pictures = [path for path in item.paths if path.suffix in (".png", ".svg")]
    if item.why is not None or not pictures:
        return [f"{item.title}: not drawn ({item.why or 'no picture format was asked for'}).", ""]
    best = max(pictures, key=lambda path: path.suffix == ".png")
    return [f"![{item.title}](figures/{best.name})", "", f"*{item.title}.*", ""]


def cell(text: str) -> str:
    """Return ``text`` for a table's cell."""
    return text.replace("|", "\\|")
