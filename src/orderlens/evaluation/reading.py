"""The findings in plain language: what the data support, what they do not, what they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderlens.evaluation.evidence import OPEN, REFUSED, SUPPORTED, WORDS, Finding, Line, Word

HEADINGS: Mapping[Word, str] = {
    SUPPORTED: "What these data support",
    REFUSED: "What these data do not support",
    OPEN: "What these data leave open",
}
RULES = (
    (
        "Every claim is put as a number that should be above 0. Supported: its whole interval is, also "
        "after Holm's correction over all lines of the same claim. Not supported: the interval ends at or "
        "below the smallest size of interest. Left open: everything else, and whatever has too few items, "
        "correct or incorrect answers."
    ),
    (
        "Intervals are bootstrap intervals over items (log-odds: Wald, clustered by item). Seeds of one "
        "order are pooled. Var, mean log q and length are those of content tokens."
    ),
    "Association inside a cell is not causation: lowering Var need not make an answer right.",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Findings and the facts a reader needs beside them.

    Attributes:
        findings: all claims of all tasks, judged.
        facts: sentences about the run (model, orders, temperature, graders, what was left out).
    """

    findings: tuple[Finding, ...]
    facts: tuple[str, ...] = ()

    def headlines(self) -> list[str]:
        """Return one sentence per task on the main question."""
        return [_headline(task, self._of(task)) for task in self._tasks()]

    def _tasks(self) -> list[str]:
        return list(dict.fromkeys(item.task for item in self.findings))

    def _of(self, task: str) -> dict[str, Finding]:
        return {item.name: item for item in self.findings if item.task == task}

    def text(self) -> str:
        """Return the reading for a terminal."""
        lines = ["Does the shape of the trace predict correctness?", ""]
        lines += [*self.facts, "", *(f"- {line}" for line in self.headlines()), ""]
        for word in WORDS:
            lines += [HEADINGS[word], ""]
            for finding, found in self._with(word):
                lines += [f"  {finding.task}: {finding.claim}", *(f"    - {text}" for text in _texts(found))]
            lines += [*([] if any(self._with(word)) else ["  Nothing."]), ""]
        return "\n".join([*lines, *RULES, ""])

    def markdown(self, level: int = 2) -> str:
        """Return the reading as Markdown with headings from ``level`` down."""
        mark = "#" * level
        lines = [f"{mark} In one sentence per task", "", *(f"- {line}" for line in self.headlines()), ""]
        for word in WORDS:
            lines += [f"{mark} {HEADINGS[word]}", ""]
            for finding, found in self._with(word):
                lines += [
                    f"**{finding.task}**: {finding.claim}",
                    "",
                    *(f"- {text}" for text in _texts(found)),
                    "",
                ]
            lines += [] if any(self._with(word)) else ["Nothing.", ""]
        return "\n".join([*lines, f"{mark} How the words are chosen", "", *_paragraphs(RULES)])

    def record(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return {
            "facts": list(self.facts),
            "headlines": self.headlines(),
            "findings": [item.record() for item in self.findings],
            "rules": list(RULES),
        }

    def _with(self, word: Word) -> list[tuple[Finding, list[Line]]]:
        return [(item, item.at(word)) for item in self.findings if item.at(word)]


def _texts(lines: Iterable[Line]) -> list[str]:
    """Return one text per line; those that lack numbers for the same reason share one."""
    out: list[str] = []
    silent: dict[str, list[str]] = {}
    for line in lines:
        if line.checks or not line.where:
            out.append(line.text())
        else:
            silent.setdefault(line.remark, []).append(line.where)
    return [*out, *(f"{', '.join(places)}: {why}" for why, places in silent.items())]


def _headline(task: str, found: Mapping[str, Finding]) -> str:
    if not any(line.checks for line in found["lower-when-correct"].lines):
        return (
            f"{task}: too few right or too few wrong answers under every order to learn anything about Var."
        )
    parts = []
    if (guess := found.get("beats-guessing")) and not guess.at(SUPPORTED):
        parts.append(
            "under no order are answers shown to be better than guesses, so little can be learned here"
        )
    parts.append(f"correct answers have lower Var in {_count(found['lower-when-correct'])}")
    parts.append(f"this survives mean log q and length in {_count(found['survives-controls'], 'all orders')}")
    parts.append(f"Var predicts better than mean log q in {_count(found['better-than-mean'])}")
    return f"{task}: {'; '.join(parts)}."


def _count(finding: Finding, besides: str = "") -> str:
    """Return ``3 of 5 orders (1 not, 1 open)``; lines that begin with ``besides`` are no order."""
    lines = [line for line in finding.lines if not (besides and line.where.startswith(besides))]
    yes, no, open_ = (sum(line.word == word for line in lines) for word in WORDS)
    rest = ", ".join(f"{n} {what}" for n, what in ((no, "not"), (open_, "open")) if n)
    return f"{yes} of {len(lines)} orders" + (f" ({rest})" if rest else "")


def _paragraphs(texts: Sequence[str] | Iterable[str]) -> list[str]:
    return [line for text in texts for line in (text, "")]
