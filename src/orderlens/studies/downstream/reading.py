"""The findings in plain language: what the data support, what they do not, what they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orderlens.claims.correctness import ALL_ORDERS
from orderlens.claims.judge import NOT_SUPPORTED, OPEN, RULES, SUPPORTED, WORDS, Finding, Part, Reading, Word

HEADINGS: Mapping[Word, str] = {
    SUPPORTED: "What these data support",
    NOT_SUPPORTED: "What these data do not support",
    OPEN: "What these data leave open",
}
NOTES = (
    *RULES,
    (
        "Intervals are bootstrap intervals over items; of Var(incorrect) − Var(correct) the wider of "
        "Student's and the bootstrap of t; of log-odds Wald's, and beyond the mean Student's, clustered by "
        "item. Seeds of one order are pooled. Var, mean log q and length are those of content tokens."
    ),
    "Association inside a cell is not causation: lowering Var need not make an answer right.",
)


@dataclass(frozen=True, slots=True)
class Downstream:
    """A reading of graded runs and the facts one needs beside it.

    Attributes:
        reading: all claims of all tasks, judged together.
        facts: sentences about the run (model, orders, temperature, graders, what was left out).
    """

    reading: Reading
    facts: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return self.reading.findings

    def headlines(self) -> list[str]:
        """Return one sentence per task on the main question."""
        return [_headline(task, self._of(task)) for task in self._tasks()]

    def _tasks(self) -> list[str]:
        return list(dict.fromkeys(item.task for item in self.findings))

    def _of(self, task: str) -> dict[str, Finding]:
        return {item.id: item for item in self.findings if item.task == task}

    def text(self) -> str:
        """Return the reading for a terminal."""
        lines = ["Does the shape of the trace predict correctness?", ""]
        lines += [*self.facts, "", *(f"- {line}" for line in self.headlines()), ""]
        lines += [self.reading.sentence(), ""]
        for heading, members in self.groups():
            lines += [heading, ""]
            for finding, texts in members:
                lines += [f"  {finding.task}: {finding.claim}", *(f"    - {text}" for text in texts)]
            lines += [*([] if members else ["  Nothing."]), ""]
        return "\n".join([*lines, *NOTES, ""])

    def groups(self) -> list[tuple[str, list[tuple[Finding, list[str]]]]]:
        """Return, under a heading per outcome, the findings with their texts at the places that have it."""
        return [
            (HEADINGS[word], [(finding, _texts(found)) for finding, found in self._with(word)])
            for word in WORDS
        ]

    def record(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return {
            "facts": list(self.facts),
            "headlines": self.headlines(),
            **self.reading.record(),
            "rules": list(NOTES),
        }

    def _with(self, word: Word) -> list[tuple[Finding, list[Part]]]:
        return [(item, item.at(word)) for item in self.findings if item.at(word)]


def _texts(parts: Iterable[Part]) -> list[str]:
    """Return one text per place; those that lack numbers for the same reason share one."""
    out: list[str] = []
    silent: dict[str, list[str]] = {}
    for part in parts:
        if _has_numbers(part) or not part.where:
            out.append(part.text())
        else:
            silent.setdefault(part.text().removeprefix(f"{part.where}: "), []).append(part.where)
    return [*out, *(f"{', '.join(places)}: {why}" for why, places in silent.items())]


def _has_numbers(part: Part) -> bool:
    return any(check.estimate.is_defined for check in part.checks)


def _headline(task: str, found: Mapping[str, Finding]) -> str:
    if not any(_has_numbers(part) for part in found["lower-when-correct"].parts()):
        return (
            f"{task}: too few right or too few wrong answers under every order to learn anything about Var."
        )
    parts = []
    if (guess := found.get("beats-guessing")) and not guess.at(SUPPORTED):
        parts.append(
            "under no order are answers shown to be better than guesses, so little can be learned here"
        )
    parts.append(f"correct answers have lower Var in {_count(found['lower-when-correct'])}")
    parts.append(f"this survives mean log q and length in {_count(found['survives-controls'])}")
    parts.append(f"Var predicts better than mean log q in {_count(found['better-than-mean'])}")
    return f"{task}: {'; '.join(parts)}."


def _count(finding: Finding) -> str:
    """Return ``3 of 5 orders (1 not, 1 open)``."""
    parts = [part for part in finding.parts() if part.where != ALL_ORDERS]
    yes, no, open_ = (sum(part.word == word for part in parts) for word in WORDS)
    rest = ", ".join(f"{n} {what}" for n, what in ((no, "not"), (open_, "open")) if n)
    return f"{yes} of {len(parts)} orders" + (f" ({rest})" if rest else "")
