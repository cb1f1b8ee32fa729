"""Tasks: documents, a prompt, a stop rule and graders. Does not depend on models or stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from orderlens.errors import DataFileError, UnknownNameError, UserInputError
from orderlens.registry import suggest
from orderlens.tasks.graders import Flaw, Verdict, require_gradable
from orderlens.texts.sources import HubFile, read_docs

Document: TypeAlias = Mapping[str, Any]
Grader: TypeAlias = Callable[[Document, object], Verdict]
Prompt: TypeAlias = Callable[[Document], str]
TokenLogProbs: TypeAlias = Sequence[Sequence[float]]
"""Per choice, the log-probability of each of its tokens (nats)."""


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
        """Text after the prompt of a model without a chat template."""
        ...

    @property
    def graders(self) -> Mapping[str, Grader]:
        """Grading rules by name; the first is the default."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Default response length in tokens."""
        ...

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return documents by row id, in file order; from the default source when none is given."""
        ...

    def flaw(self, doc: Document) -> str | None:
        """Return what makes ``doc`` ungradable, naming the field, or None."""
        ...

    def prompt(self, doc: Document) -> str:
        """Return the user's message for ``doc`` (plain text, no chat template)."""
        ...


@dataclass(frozen=True)
class LikelihoodRule:
    """A rule that compares the model's own scores of given texts instead of reading the response.

    Attributes:
        choices: document → the texts to score, each after a space.
        context: (document, prompt, response) → the text after which they are scored.
        grade: (document, log-probabilities of each choice's tokens) → verdict.
    """

    choices: Callable[[Document], Sequence[str]]
    context: Callable[[Document, str, str], str]
    grade: Callable[[Document, TokenLogProbs], Verdict]


@runtime_checkable
class GradesByLikelihood(Protocol):
    """A task that also has rules which need the model; the first of them is the task's default."""

    @property
    def likelihood(self) -> Mapping[str, LikelihoodRule]:
        """The rules by name."""
        ...


@dataclass(frozen=True)
class Benchmark:
    """A task over a published file.

    Attributes:
        name: the id.
        summary: one line for listings.
        hub: the default source; None if users must supply the data.
        id_field: field that holds the row id; None keys rows by their 0-based number in the file, for data
            whose own ids or texts repeat.
        fields: fields every row must have.
        find_flaw: returns what makes a document ungradable.
        lists: those of ``fields`` that hold lists.
        write_prompt: document → user message.
        graders: rules by name, default first.
        stop: strings before which a response is cut.
        cue: text after the prompt of a model without a chat template.
        max_new_tokens: default response length in tokens (the paper's is 16,384).
        likelihood: rules that need the model, by name.
        prompts: further prompts by name, in place of ``write_prompt``.
    """

    name: str
    summary: str
    hub: HubFile | None
    id_field: str | None
    fields: tuple[str, ...]
    write_prompt: Prompt
    graders: Mapping[str, Grader]
    find_flaw: Flaw
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    cue: str = "\n\nSolution:"
    lists: tuple[str, ...] = ()
    likelihood: Mapping[str, LikelihoodRule] = field(default_factory=dict)
    prompts: Mapping[str, Prompt] = field(default_factory=dict)

    def load(self, source: str | Path | None = None, limit: int | None = None) -> dict[str, Document]:
        """Return documents by row id, in file order."""
        place = self.hub if source is None else source
        if place is None:
            raise UserInputError(f"task '{self.name}' comes without data; add --source {self.name}=FILE")
        rows = read_docs(place, self.fields, limit, self.lists)
        return by_id(self, rows, self.id_field)

    def flaw(self, doc: Document) -> str | None:
        """Return what makes ``doc`` ungradable, or None."""
        return self.find_flaw(doc)

    def prompt(self, doc: Document) -> str:
        """Return the user's message for ``doc``."""
        return self.write_prompt(doc)


def by_id(task: Task, rows: Sequence[Document], id_field: str | None) -> dict[str, Document]:
    """Return gradable rows by their id, or by their 0-based number without an id field.

    Raises:
        DataFileError: a row cannot be graded, or two have one id.
    """
    docs: dict[str, Document] = {}
    for number, row in enumerate(rows):
        require_gradable(task.name, task.flaw(row), f"row {number + 1}")
        key = str(number if id_field is None else row[id_field])
        if key in docs:
            raise DataFileError(f"{task.name}: two rows have {id_field} {key[:60]}; row ids must differ")
        docs[key] = row
    return docs


def pick_grader(task: Task, name: str | None) -> Grader:
    """Return the grader called ``name``, or the task's default."""
    if name is None:
        return next(iter(task.graders.values()))
    if name not in task.graders:
        known = [*likelihood_rules(task), *task.graders]
        raise UnknownNameError(
            f"unknown grader '{name}' of {task.name}{suggest(name, known)} (known: {', '.join(known)})"
        )
    return task.graders[name]


def likelihood_rules(task: Task) -> Mapping[str, LikelihoodRule]:
    """Return the task's rules that need the model; most tasks have none."""
    return task.likelihood if isinstance(task, GradesByLikelihood) else {}


def choose_grader(task: Task, name: str | None) -> str:
    """Return the name of the grading rule: the requested one, or the task's default."""
    if name is None:
        return next(iter([*likelihood_rules(task), *task.graders]))
    if name not in likelihood_rules(task):
        pick_grader(task, name)
    return name


def with_prompt(task: Task, name: str | None) -> Task:
    """Return the task with the prompt called ``name``; None keeps its own."""
    if name is None:
        return task
    known = task.prompts if isinstance(task, Benchmark) else {}
    if not isinstance(task, Benchmark) or name not in known:
        listed = ", ".join(known) or "only its own; leave out --prompt"
        raise UnknownNameError(
            f"unknown prompt '{name}' of {task.name}{suggest(name, list(known))} (known: {listed})"
        )
    return replace(task, write_prompt=known[name])


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str:
    """Return ``text`` up to the first of the stop strings."""
    places = [place for place in (text.find(mark) for mark in stop if mark) if place >= 0]
    return text[: min(places)] if places else text
