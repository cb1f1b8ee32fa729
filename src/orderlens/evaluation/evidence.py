"""Claims and what the numbers say about them, in one of three words. Knows intervals, not tasks or traces.

A claim is put as "this number is above 0". It is *supported* when the whole interval is, *not supported* when
the interval ends below the smallest size of interest, and otherwise we *cannot tell*. Among the lines of one
claim a word must also survive Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from scipy import stats

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.paired import adjust
from orderlens.analysis.render import cell_text

Word = Literal["supported", "not supported", "cannot tell"]
SUPPORTED: Word = "supported"
REFUSED: Word = "not supported"
OPEN: Word = "cannot tell"
WORDS: tuple[Word, ...] = (SUPPORTED, REFUSED, OPEN)
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """A number that the claim says is above 0.

    Attributes:
        name: what it is, with its unit.
        cell: estimate and interval.
        negligible: values below this are of no interest, even if they are not 0.
        digits: decimals shown.
        quiet: decides without being printed, where the line's remark shows the number in a plainer form.
    """

    name: str
    cell: Estimate
    negligible: float = 0.0
    digits: int = 3
    quiet: bool = False

    def word(self) -> Word:
        """Judge this number alone."""
        if not (math.isfinite(self.cell.low) and math.isfinite(self.cell.high)):
            return OPEN
        if self.cell.low > 0:
            return SUPPORTED
        return REFUSED if self.cell.high <= self.negligible else OPEN

    def text(self) -> str:
        """Return ``name value [low, high]``."""
        return f"{self.name} {cell_text(self.cell, self.digits)}"


@dataclass(frozen=True, slots=True)
class Line:
    """The evidence on a claim in one place.

    Attributes:
        where: the order, or empty for the whole task.
        word: the outcome.
        checks: the numbers that decide.
        remark: further numbers or the reason why nothing can be told.
    """

    where: str
    word: Word
    checks: tuple[Check, ...] = ()
    remark: str = ""

    @classmethod
    def judged(cls, where: str, checks: Sequence[Check], remark: str = "") -> Line:
        """Combine checks that must all hold."""
        words = [check.word() for check in checks]
        word = REFUSED if REFUSED in words else SUPPORTED if words and set(words) == {SUPPORTED} else OPEN
        return cls(where, word, tuple(checks), remark)

    def text(self) -> str:
        """Return the line for people."""
        parts = [check.text() for check in self.checks if not check.quiet]
        body = "; ".join([*parts, *([self.remark] if self.remark else [])])
        return f"{self.where}: {body}" if self.where else body


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim about one task.

    Attributes:
        name: short id, the same in all tasks.
        task: the task.
        claim: a sentence that is right or wrong.
        lines: the evidence, by order or for the task.
    """

    name: str
    task: str
    claim: str
    lines: tuple[Line, ...]

    def at(self, word: Word) -> list[Line]:
        """Return the lines with this outcome."""
        return [line for line in self.lines if line.word == word]

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        lines = [
            {"where": line.where, "word": line.word, "remark": line.remark, "numbers": _numbers(line)}
            for line in self.lines
        ]
        return {"name": self.name, "task": self.task, "claim": self.claim, "lines": lines}


def _numbers(line: Line) -> list[dict[str, Any]]:
    return [
        {"name": check.name, **asdict(check.cell), "negligible": check.negligible} for check in line.checks
    ]


def correct_for_many(findings: Iterable[Finding], level: float = 0.95) -> list[Finding]:
    """Return the findings with words that hold after Holm's correction over all lines of the same claim."""
    kept = list(findings)
    for name in dict.fromkeys(item.name for item in kept):
        places = [(i, j) for i, item in enumerate(kept) if item.name == name for j in range(len(item.lines))]
        adjusted = adjust([_p(kept[i].lines[j], level) for i, j in places], "holm")
        for (i, j), p in zip(places, adjusted, strict=True):
            line = kept[i].lines[j]
            if line.word == SUPPORTED and p >= ALPHA:
                weak = replace(line, word=OPEN, remark=_joined(line.remark, f"Holm p = {p:.2g}"))
                lines = (*kept[i].lines[:j], weak, *kept[i].lines[j + 1 :])
                kept[i] = replace(kept[i], lines=lines)
    return kept


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _p(line: Line, level: float) -> float:
    """Return the weakest check's two-sided p, from value and interval as if normal; NaN without any."""
    found = [_p_of(check.cell, level) for check in line.checks]
    return max(found) if found and all(math.isfinite(p) for p in found) else math.nan


def _p_of(cell: Estimate, level: float) -> float:
    half = (cell.high - cell.low) / 2
    if not math.isfinite(half) or half <= 0:
        return math.nan
    return float(2 * stats.norm.sf(abs(cell.value) / (half / stats.norm.ppf((1 + level) / 2))))


def flipped(cell: Estimate) -> Estimate:
    """Return the estimate with its sign changed."""
    return Estimate(-cell.value, -cell.high, -cell.low, cell.n, cell.n_undefined, cell.why)


def shifted(cell: Estimate, by: float) -> Estimate:
    """Return the estimate plus a constant."""
    return Estimate(cell.value + by, cell.low + by, cell.high + by, cell.n, cell.n_undefined, cell.why)
