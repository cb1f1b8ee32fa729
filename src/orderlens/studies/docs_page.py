"""A finished replication as a Markdown page, with its figures in a folder next to it.

Everything on it comes from the runs, except for one hand-written section, which is kept when the page is
generated again. The page contains no text of the data set. Does not depend on models.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, Outcome
from orderlens.claims.judge import RULES
from orderlens.common.templating import Markdown, write_page
from orderlens.errors import StorageError
from orderlens.show.report.page import PICTURES, markdown_tables, picture
from orderlens.store.folder import open_folder
from orderlens.store.records import SPEC
from orderlens.store.specfile import read_spec
from orderlens.studies.plan import Stored, stored_plan
from orderlens.studies.replicate_plan import ReplicatePlan
from orderlens.studies.results import Results

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
