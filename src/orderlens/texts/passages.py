"""The bundled texts: original passages for scoring and short question–answer pairs.

Knows nothing about tokens or models; datafiles.py offers them as ``--data passages``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from orderlens.errors import UnknownNameError

KINDS = ("news", "encyclopedia", "narrative", "howto", "dialogue", "qa")


@dataclass(frozen=True)
class Passage:
    """One bundled text.

    Attributes:
        id: Stable row id.
        kind: One of ``KINDS``.
        title: A headline; empty for ``qa``.
        text: The scoring text, at least 180 words; empty for ``qa``.
        prompt: Only for ``qa``: the question, ending in ``Answer:``.
        target: Only for ``qa``: the short answer with its leading space, so that prompt + target is the text.
    """

    id: str
    kind: str
    title: str = ""
    text: str = ""
    prompt: str = ""
    target: str = ""


def load_passages(kind: str | None = None) -> list[Passage]:
    """Return the bundled passages in their fixed sequence, all of them or those of one kind.

    The kinds of the scoring texts take turns, so the first n are a fair mixture; ``qa`` comes last.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"unknown kind of passage {kind!r}; choose one of {', '.join(KINDS)}")
    lines = (
        resources.files("orderlens.texts").joinpath("passages.jsonl").read_text(encoding="utf-8").splitlines()
    )
    passages = [Passage(**json.loads(line)) for line in lines]
    return [passage for passage in passages if kind in (None, passage.kind)]
