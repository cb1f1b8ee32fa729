"""Verdicts: what this run says about each of the paper's findings, in one of three words.

A verdict states the paper's claim, the rule it is judged by, and the numbers with their intervals and the
paper's number beside them. All three outcomes are written in the same way. The rules are in ``findings_*``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.render import cell_text

Word = Literal["supported", "not supported by this run", "undetermined"]
SUPPORTED: Word = "supported"
REFUSED: Word = "not supported by this run"
OPEN: Word = "undetermined"

MIN_PROMPTS = 6
"""Prompts below which an interval is too rough to decide anything."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number behind a verdict.

    Attributes:
        name: what it is, with its unit.
        cell: the estimate, or why there is none.
        paper: the paper's number for its own model, if it prints one.
        digits: decimals shown.
    """

    name: str
    cell: Estimate
    paper: float | str | None = None
    digits: int = 3

    def text(self) -> str:
        """Return ``name: value [low, high] (paper: value)``."""
        beside = "" if self.paper is None else f" (paper: {self.paper})"
        return f"{self.name}: {cell_text(self.cell, self.digits)}{beside}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding, judged.

    Attributes:
        name: short id.
        claim: the paper's finding in our words.
        where: its place in the paper.
        word: the outcome.
        rule: how the outcome follows from the numbers.
        numbers: the numbers, those that decide first.
        remarks: what a careful reader should also know.
    """

    name: str
    claim: str
    where: str
    word: Word
    rule: str
    numbers: tuple[Number, ...]
    remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return one line per number; those undefined for the same reason share a line."""
        found = [number.text() for number in self.numbers if number.cell.is_defined]
        reasons: dict[str, list[str]] = {}
        for number in self.numbers:
            if not number.cell.is_defined:
                reasons.setdefault(number.cell.why or "no value", []).append(number.name)
        return found + [f"undefined ({why}): {'; '.join(names)}" for why, names in reasons.items()]

    def record(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        numbers = [
            {**asdict(number.cell), "name": number.name, "paper": number.paper} for number in self.numbers
        ]
        return {
            "name": self.name,
            "claim": self.claim,
            "where": self.where,
            "verdict": self.word,
            "rule": self.rule,
            "numbers": numbers,
            "remarks": list(self.remarks),
        }


def judge(checks: Iterable[Estimate]) -> Word:
    """Return the outcome of claims of the form "this is above 0".

    Supported when every interval lies above 0, refused when one lies at or below it, open otherwise; so is
    everything that has no interval or too few prompts.
    """
    words = [_judge_one(check) for check in checks]
    if not words:
        return OPEN
    if REFUSED in words:
        return REFUSED
    return SUPPORTED if all(word == SUPPORTED for word in words) else OPEN


def _judge_one(check: Estimate) -> Word:
    if not math.isfinite(check.low) or not math.isfinite(check.high) or check.n < MIN_PROMPTS:
        return OPEN
    if check.low > 0:
        return SUPPORTED
    return REFUSED if check.high <= 0 else OPEN


def above(cell: Estimate, threshold: float) -> Estimate:
    """Return ``cell − threshold``, to be judged against 0."""
    return Estimate(
        cell.value - threshold,
        cell.low - threshold,
        cell.high - threshold,
        cell.n,
        cell.n_undefined,
        cell.why,
    )


def few_prompts(n: int) -> tuple[str, ...]:
    """Return the remark for a run that is too small to decide anything."""
    if n >= MIN_PROMPTS:
        return ()
    return (f"Only {n} prompts: below {MIN_PROMPTS} every verdict stays undetermined.",)


def render_text(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts for a terminal: word, claim, numbers, rule, remarks."""
    lines = []
    for place, verdict in enumerate(verdicts, 1):
        lines.append(f"{place}. {verdict.claim}  [{verdict.where}]")
        lines.append(f"   verdict: {verdict.word}")
        lines += [f"     {line}" for line in verdict.lines()]
        lines.append(f"   rule: {verdict.rule}")
        lines += [f"   note: {remark}" for remark in verdict.remarks]
        lines.append("")
    return "\n".join([summary(verdicts), "", *lines])


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many findings have which outcome."""
    counts: Mapping[Word, int] = {
        word: sum(item.word == word for item in verdicts) for word in (SUPPORTED, REFUSED, OPEN)
    }
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{len(verdicts)} findings of the paper: {parts}."
