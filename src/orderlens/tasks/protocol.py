"""What a task is: documents, a prompt, a stop rule and graders. Knows nothing of models or stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from orderlens.errors import DataFileError, UnknownNameError
from orderlens.registry import suggest
from orderlens.tasks.sources import HubFile, read_docs
from orderlens.tasks.verdict import Verdict

Document: TypeAlias = Mapping[str, Any]
Grader: TypeAlias = Callable[[Document, object], Verdict]
Prompt: TypeAlias = Callable[[Document], str]


class Task(Protocol):
    """A benchmark as the rest of the package sees it."""

    @property
    def name(self) -> str:
        """The id used on the command line and in the store."""
        ...

    @property
    def summary(self) -> str:
        """One line for listings."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings before which a response is cut; EOS always ends it."""
        ...

    @property
    def cue(self) -> str:
        """What follows the prompt of a model without a chat template."""
        ...

    @property
    def graders(self) -> Mapping[str, Grader]:
        """Grading rules by name; the first is the default."""
        ...

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return documents by row id, in file order; from the default source when none is given."""
        ...

    def prompt(self, doc: Document) -> str:
        """Return the user's message for ``doc`` (plain text, no chat template)."""
        ...


@dataclass(frozen=True)
class Benchmark:
    """A task over a published file.

    Attributes:
        name: the id.
        summary: one line for listings.
        hub: the default source.
        id_field: field that holds the row id; None keys rows by their 0-based number in the file, for data
            whose own ids or texts repeat.
        fields: fields every row must have.
        lists: those of them that hold lists.
        write_prompt: document → user message.
        graders: rules by name, default first.
        stop: strings before which a response is cut.
        cue: what follows the prompt of a model without a chat template.
    """

    name: str
    summary: str
    hub: HubFile
    id_field: str | None
    fields: tuple[str, ...]
    write_prompt: Prompt
    graders: Mapping[str, Grader]
    stop: tuple[str, ...] = ()
    cue: str = "\n\nSolution:"
    lists: tuple[str, ...] = ()

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return documents by row id, in file order."""
        rows = read_docs(self.hub if source is None else source, self.fields, limit)
        for number, row in enumerate(rows, start=1):
            if wrong := [name for name in self.lists if not isinstance(row[name], list)]:
                raise DataFileError(f"{self.name}: '{wrong[0]}' of row {number} is not a list")
        if self.id_field is None:
            return {str(number): row for number, row in enumerate(rows)}
        docs: dict[str, Document] = {}
        for row in rows:
            key = str(row[self.id_field])
            if key in docs:
                raise DataFileError(f"{self.name}: two rows have {self.id_field} {key}; row ids must differ")
            docs[key] = row
        return docs

    def prompt(self, doc: Document) -> str:
        """Return the user's message for ``doc``."""
        return self.write_prompt(doc)


def pick_grader(task: Task, name: str | None) -> Grader:
    """Return the grader called ``name``, or the task's default."""
    if name is None:
        return next(iter(task.graders.values()))
    if name not in task.graders:
        known = list(task.graders)
        raise UnknownNameError(
            f"unknown grader '{name}' of {task.name}{suggest(name, known)} (known: {', '.join(known)})"
        )
    return task.graders[name]


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str:
    """Return ``text`` up to the first of the stop strings."""
    places = [place for place in (text.find(mark) for mark in stop if mark) if place >= 0]
    return text[: min(places)] if places else text
