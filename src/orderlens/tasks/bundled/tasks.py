"""The bundled tasks ``arith`` and ``choice`` behind the task interface; they need no files.

``load`` draws from the test split, which the bundled models never saw. A source other than None is a local
file with the generator's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orderlens.tasks.bundled.generator import items
from orderlens.tasks.flaws import Flaw, letter_flaw, number_flaw
from orderlens.tasks.graders import NAMED_GRADER, NUMBER_GRADER, grade_golden, grade_named
from orderlens.tasks.mmlu_pro import letter_graders
from orderlens.tasks.protocol import Document, Grader, by_id
from orderlens.texts.sources import read_docs

DEFAULT_ITEMS = 100
RESPONSE_TOKENS = 128
"""Twice the longest worked solution in the tokens of `tiny`."""


@dataclass(frozen=True)
class BundledTask:
    """A generated task.

    Attributes:
        name: the id, also the generator's name.
        summary: one line for listings.
        graders: rules by name, default first.
        find_flaw: says what makes a document ungradable.
        lists: fields of a local file that hold lists.
        max_new_tokens: response length when none is asked for.
        stop: strings before which a response is cut.
        cue: nothing: the prompt already ends in the words the bundled models were trained on.
    """

    name: str
    summary: str
    graders: Mapping[str, Grader]
    find_flaw: Flaw
    lists: tuple[str, ...] = ()
    max_new_tokens: int = RESPONSE_TOKENS
    stop: tuple[str, ...] = ("\nQuestion:",)
    cue: str = ""

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return ``limit`` test items (100 without a limit) by id."""
        if source is None:
            rows = items(self.name, "test", DEFAULT_ITEMS if limit is None else limit)
        else:
            rows = read_docs(source, ("id", "prompt"), limit, self.lists)
        return by_id(self, rows, "id")

    def flaw(self, doc: Document) -> str | None:
        """Return what makes ``doc`` ungradable, or None."""
        return self.find_flaw(doc)

    def prompt(self, doc: Document) -> str:
        """Return the prompt in the form the bundled models were trained on."""
        return str(doc["prompt"])


ARITH = BundledTask(
    "arith",
    "generated word problems with 1 to 3 steps; no files needed",
    {NUMBER_GRADER: grade_golden},
    number_flaw("golden"),
)
CHOICE = BundledTask(
    "choice",
    "generated four-way questions; no files needed",
    {**letter_graders(), NAMED_GRADER: grade_named},
    letter_flaw("options", "answer", "answer_index"),
    lists=("options",),
)
