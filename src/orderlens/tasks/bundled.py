"""The bundled tasks ``arith`` and ``choice``: frozen test items that no bundled model was trained on.

``data/NAME.jsonl.xz`` holds the items in the sequence in which ``--limit`` takes them. The code that wrote
them is ``recipes/bundled_tasks``. A source other than None is a local file with the same fields.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from orderlens.errors import DataFileError
from orderlens.store import NAMED_GRADER
from orderlens.tasks.graders import (
    NUMBER_GRADER,
    grade_golden,
    grade_named,
    letter_flaw,
    number_flaw,
)
from orderlens.tasks.multiple_choice import letter_graders
from orderlens.tasks.protocol import Benchmark, Document, by_id

DEFAULT_ITEMS = 100
RESPONSE_TOKENS = 128
"""Twice the longest worked solution in the tokens of `tiny`."""
DIGESTS = {
    "arith": "434761730824500814e672bf03285090b2281f64bc0275a97ba91db79e8e3d00",
    "choice": "1727792ef0d535306f3b756533f8c13186686cc13be2603ba51037f61a518e09",
    "questions": "17aa69b277e1f3a48b9847f1e85da3d2a7c3ef2be2d67c6f0f6130d62c039b77",
}
"""SHA-256 of the frozen items, uncompressed: 2,400 of each task, and 100 word problems of one step."""


@cache
def frozen_items(name: str) -> tuple[Document, ...]:
    """Return the frozen items called ``name``, one of ``DIGESTS``.

    Raises:
        DataFileError: the installed file is not the one that was released.
    """
    packed = files("orderlens").joinpath(f"tasks/data/{name}.jsonl.xz").read_bytes()
    text = lzma.decompress(packed)
    if hashlib.sha256(text).hexdigest() != DIGESTS[name]:
        raise DataFileError(f"the bundled items of '{name}' are damaged; install orderlens again")
    return tuple(json.loads(line) for line in text.splitlines())


class BundledTask(Benchmark):
    """A task whose items come with the package; its prompts already end in the bundled models' answer cue."""

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return the first ``limit`` test items (100 without a limit) by id."""
        if source is not None:
            return super().load(source, limit)
        items = frozen_items(self.name)
        return by_id(self, items[: DEFAULT_ITEMS if limit is None else limit], self.id_field)


_SHARED: dict[str, Any] = {
    "hub": None,
    "id_field": "id",
    "fields": ("id", "prompt"),
    "write_prompt": lambda doc: str(doc["prompt"]),
    "max_new_tokens": RESPONSE_TOKENS,
    "stop": ("\nQuestion:",),
    "cue": "",
}
ARITH = BundledTask(
    name="arith",
    summary="generated word problems with 1 to 3 steps; no files needed",
    graders={NUMBER_GRADER: grade_golden},
    find_flaw=number_flaw("golden"),
    **_SHARED,
)
CHOICE = BundledTask(
    name="choice",
    summary="generated four-way questions; no files needed",
    graders={**letter_graders(), NAMED_GRADER: grade_named},
    find_flaw=letter_flaw("options", "answer", "answer_index"),
    lists=("options",),
    **_SHARED,
)
