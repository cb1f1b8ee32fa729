"""A finished replication as a page of a repository: Markdown, with its pictures in a folder beside it.

Everything on it comes from the runs, but for one section that people may write and that is kept when the page
is made again; the data set's own text does not appear. Knows nothing of models.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from orderlens.analysis import beside_paper, render
from orderlens.analysis.judge import NOT_SUPPORTED, OPEN, RULES, SUPPORTED, Finding, Word
from orderlens.errors import RunError, StorageError
from orderlens.figures.catalogue import Drawn
from orderlens.files import write_text
from orderlens.replicate.markdown import cell, finding_details
from orderlens.replicate.page import plan_facts
from orderlens.replicate.plan import Stored, read_plan
from orderlens.replicate.results import Results
from orderlens.store.folder import open_folder
from orderlens.store.records import SPEC
from orderlens.store.specfile import read_spec

PICTURES = (".png", ".svg")
BY_HAND = "## Our reading"
_GROUPS: tuple[tuple[Word, str], ...] = (
    (SUPPORTED, "Agrees with the paper"),
    (NOT_SUPPORTED, "Does not agree"),
    (OPEN, "Left open by this run"),
)


def write_docs(results: Results, page: Path, notes: Sequence[str] = ()) -> Path:
    """Write the page and copy the pictures to ``figures/NAME/`` beside it, NAME being the page's.

    Args:
        results: what was made of a replication's traces.
        page: the Markdown file; it is overwritten, but for a section called "Our reading".
        notes: what a reader should know besides.
    """
    stored = read_plan(results.folder)
    if stored is None:
        raise RunError(f"{results.folder} holds no replication")
    try:
        pictures = page.parent / "figures" / page.stem
        pictures.mkdir(parents=True, exist_ok=True)
        for item in results.figures:
            for path in item.paths:
                if path.suffix in PICTURES:
                    shutil.copyfile(path, pictures / path.name)
        lines = _lines(results, stored, page, notes, _written_by_hand(page))
        write_text(page, "\n".join(lines) + "\n")  # whole or not: a full disk must not cost what people wrote
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{page} is there and is no UTF-8 text; choose another name for the page"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {page}: {error.strerror or error}") from error
    return page


def _written_by_hand(page: Path) -> str:
    """Return the section that people wrote on an earlier page, or nothing."""
    if not page.exists():
        return ""
    found = re.search(
        rf"^{BY_HAND}\n.*?(?=^## |\Z)", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return found[0].strip() if found else ""


def _lines(results: Results, stored: Stored, page: Path, notes: Sequence[str], by_hand: str) -> Iterable[str]:
    yield f"# The paper's experiments on {stored.model['name']}"
    yield "\nMade by `orderlens replicate`; the rules are in [Replicating the paper](replicate.md).\n"
    yield from _facts(results.folder, stored, notes)
    yield f"\n## In short\n\n{results.reading.sentence()} Intervals are 95 % bootstrap intervals over texts."
    for word, heading in _GROUPS:
        yield from _group(
            heading, [item for item in enumerate(results.reading.findings, 1) if item[1].word == word]
        )
    if by_hand:
        yield f"\n{by_hand}"
    yield "\n## Figures\n"
    for drawn in results.figures:
        yield from _figure(drawn, f"figures/{page.stem}")
    yield "## Findings one by one"
    for place, finding in enumerate(results.reading.findings, 1):
        yield ""
        yield from finding_details(place, finding)
    yield ""
    yield from (f"{rule}\n" for rule in RULES)
    yield "\n## Tables\n"
    yield render([beside_paper(table) for table in results.tables], "markdown")


def _facts(folder: Path, stored: Stored, notes: Sequence[str]) -> Iterable[str]:
    data = stored.data
    yield f"- {plan_facts(stored.plan)}"
    yield f"- {data['n_samples']} texts; digest of their tokens `{data['digest']}`."
    yield f"- Weights: digest `{stored.model['digest']}`. External perplexity: {stored.plan.evaluator}."
    for machine in sorted({_machine(path.parent) for path in (folder / "runs").glob(f"*/{SPEC}")}):
        yield f"- Computed on {machine}."
    yield from (f"- {note}" for note in notes)


def _machine(run: Path) -> str:
    """Return hardware and versions that a run was started with, as far as they are known."""
    found = read_spec(open_folder(run)).provenance
    hardware, versions = found.get("hardware") or {}, found.get("versions") or {}
    device = ", ".join(dict.fromkeys(hardware.get("accelerators") or ())) or hardware.get("processor")
    return f"{device or 'an unknown machine'} with torch {versions.get('torch') or 'absent'}"


def _group(heading: str, members: Sequence[tuple[int, Finding]]) -> Iterable[str]:
    yield f"\n### {heading}\n"
    if not members:
        yield "None."
        return
    yield "| # | finding | first of its numbers |"
    yield "| --- | --- | --- |"
    for place, finding in members:
        first = (finding.lines() or [""])[0]
        yield f"| {place} | {cell(finding.claim)} ({cell(finding.source)}) | {cell(first)} |"


def _figure(item: Drawn, folder: str) -> Iterable[str]:
    names = {path.suffix: path.name for path in item.paths}
    if item.why is not None or ".png" not in names:
        yield f"{item.title}: not drawn ({item.why or 'no PNG was made'}).\n"
        return
    yield f"![{item.title}]({folder}/{names['.png']})\n"
    vector = f" ([SVG]({folder}/{names['.svg']}))" if ".svg" in names else ""
    yield f"*{item.title}*{vector}\n"
