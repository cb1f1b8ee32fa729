"""The bundled tasks ``arith`` and ``choice`` behind the task interface; they need no files.

``load`` draws from the test split, which the bundled models never saw. A source other than None is a local
file with the generator's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orderlens.tasks.bundled.generator import items
from orderlens.tasks.graders import NUMBER_GRADER, grade_number
from orderlens.tasks.mmlu_pro import letter_graders
from orderlens.tasks.named_option import NAMED_GRADER, grade_named
from orderlens.tasks.protocol import Document, Grader
from orderlens.tasks.sources import read_docs
from orderlens.tasks.verdict import Verdict

DEFAULT_ITEMS = 1000


@dataclass(frozen=True)
class BundledTask:
    """A generated task.

    Attributes:
        name: the id, also the generator's name.
        summary: one line for listings.
        graders: rules by name, default first.
        stop: strings before which a response is cut.
        cue: nothing: the prompt already ends in the words the bundled models were trained on.
    """

    name: str
    summary: str
    graders: Mapping[str, Grader]
    stop: tuple[str, ...] = ("\nQuestion:",)
    cue: str = ""

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return ``limit`` test items (1,000 without a limit) by id."""
        if source is None:
            rows = items(self.name, "test", DEFAULT_ITEMS if limit is None else limit)
        else:
            rows = read_docs(source, ("id", "prompt"), limit)
        return {str(row["id"]): row for row in rows}

    def prompt(self, doc: Document) -> str:
        """Return the prompt in the form the bundled models were trained on."""
        return str(doc["prompt"])


def grade_golden(doc: Document, response: object) -> Verdict:
    """Compare the last number with ``golden``."""
    return grade_number(doc.get("golden"), response)


ARITH = BundledTask(
    "arith", "generated word problems with 1 to 3 steps; no files needed", {NUMBER_GRADER: grade_golden}
)
CHOICE = BundledTask(
    "choice",
    "generated four-way questions; no files needed",
    {**letter_graders(), NAMED_GRADER: grade_named},
)
