"""One kind of check and one set of words for everything that is claimed about numbers.

A check says where a number should lie: above a bar, or inside a band. After Holm's correction over the whole
reading it is one of

- *supported*: the whole interval lies where the claim puts it;
- *not supported*: evidence of absence, the whole interval lies on the wrong side, or inside the margin of
  sizes that are too small to count;
- *left open*: everything else, and whatever has too few texts or items. "Not significant" is left open.

A finding is a claim with its checks, and needs all of them. A reading is all findings that are read together:
it knows how many checks were made and corrects over each claim (all checks of one finding id, whatever the
task) and over all of them; the words follow from the second. Plain data in and out; knows neither orders nor
tasks nor pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.paired import adjust
from orderlens.analysis.render import cell_text

Word = Literal["supported", "not supported", "left open"]
SUPPORTED: Word = "supported"
NOT_SUPPORTED: Word = "not supported"
OPEN: Word = "left open"
WORDS: tuple[Word, ...] = (SUPPORTED, NOT_SUPPORTED, OPEN)

ALPHA = 0.05
CORRECTION = "Holm"
LEAST = 6
"""Texts or items below which nothing is decided: not even a sign test of so few can reach ``ALPHA``."""

RULES = (
    (
        "Supported: the whole interval lies where the claim puts it. Not supported: the whole interval lies "
        "on the wrong side, or inside the margin of sizes too small to count. Left open: everything else, "
        "and whatever has too few texts or items; 'not significant' is left open."
    ),
    (
        f"A word must survive {CORRECTION}'s correction at {ALPHA:g} over all checks of the reading, in both "
        "directions. A claim needs all its checks."
    ),
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that stands beside a finding without deciding it.

    Attributes:
        label: what it is, with its unit.
        estimate: value and interval, or why there is none.
        paper: what the paper prints for its own model, if anything.
        digits: decimals shown.
    """

    label: str
    estimate: Estimate
    paper: float | str | None = None
    digits: int = 3

    def text(self) -> str:
        """Return ``label: value [low, high] (paper: value)``."""
        return _shown(self.label, self.estimate, self.paper, self.digits)

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return _numbers(self.label, self.estimate) | {"paper": self.paper}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check: its word and the p-values behind it.

    ``p`` speaks against "the number does not lie where the claim puts it", ``p_absent`` against "it lies
    there by more than the margin". Both are two-sided; ``…_claim`` and ``…_reading`` are corrected.
    """

    word: Word
    p: float = math.nan
    p_claim: float = math.nan
    p_reading: float = math.nan
    p_absent: float = math.nan
    p_absent_claim: float = math.nan
    p_absent_reading: float = math.nan
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A number that the claim puts above ``above`` and below ``below``.

    Attributes:
        label: what it is, with its unit.
        estimate: value and interval.
        above: the bar.
        below: the other end of a band; infinite for a plain bar.
        margin: beyond the bar, sizes up to this are too small to count (the equivalence margin).
        least: texts or items needed before anything is decided.
        p: of a test of its own; otherwise it is read off the interval by Student's t with n − 1 degrees.
        p_absent: the same for absence; it then needs no interval.
        paper: what the paper prints, if anything.
        digits: decimals shown.
        where: the order or part of the data it speaks about; empty for the whole.
        remark: what a reader should see beside it.
        outcome: filled in by ``judge``.
    """

    label: str
    estimate: Estimate
    above: float = 0.0
    below: float = math.inf
    margin: float = 0.0
    least: int = LEAST
    p: float | None = None
    p_absent: float | None = None
    paper: float | str | None = None
    digits: int = 3
    where: str = ""
    remark: str = ""
    outcome: Outcome = Outcome(OPEN)

    @property
    def word(self) -> Word:
        """The outcome in a word; left open as long as nobody judged."""
        return self.outcome.word

    @property
    def rule(self) -> str:
        """The rule of this check in words."""
        place = f"above {self.above:g}"
        if math.isfinite(self.below):
            place = f"between {self.above:g} and {self.below:g}"
        margin = f"; up to {self.above + self.margin:g} is too small to count" if self.margin else ""
        return f"the interval lies {place}{margin}; at least {self.least} texts or items"

    def text(self) -> str:
        """Return ``label: value [low, high] (paper: value)``."""
        return _shown(self.label, self.estimate, self.paper, self.digits)

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        found = self.outcome
        return _numbers(self.label, self.estimate) | {
            "where": self.where,
            "paper": self.paper,
            "rule": self.rule,
            "margin": self.margin,
            "p": found.p,
            "p_holm_claim": found.p_claim,
            "p_holm_reading": found.p_reading,
            "p_absent": found.p_absent,
            "p_absent_holm_claim": found.p_absent_claim,
            "p_absent_holm_reading": found.p_absent_reading,
            "word": found.word,
            "why": found.why,
            "remark": self.remark,
        }

    def too_few(self) -> str:
        """Return why nothing can be decided, or nothing."""
        cell = self.estimate
        if not cell.is_defined:
            return cell.why or "no value"
        if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
            return "no interval"
        return f"{cell.n} of at least {self.least} texts or items" if cell.n < self.least else ""

    def p_values(self, level: float) -> tuple[float, float]:
        """Return p and p_absent, NaN where nothing can be decided."""
        if self.too_few():
            return math.nan, math.nan
        here = self._p_here(level) if self.p is None else self.p
        return here, self._p_elsewhere(level) if self.p_absent is None else self.p_absent

    def _p_here(self, level: float) -> float:
        cell = self.estimate
        found = _tail(cell.value - self.above, cell.value - cell.low, cell, level)
        if math.isfinite(self.below):
            found = max(found, _tail(self.below - cell.value, cell.high - cell.value, cell, level))
        return found

    def _p_elsewhere(self, level: float) -> float:
        cell = self.estimate
        found = _tail(self.above + self.margin - cell.value, cell.high - cell.value, cell, level)
        if math.isfinite(self.below):
            beyond = cell.value - (self.below - self.margin)
            found = min(found, _tail(beyond, cell.value - cell.low, cell, level))
        return found

    def fits(self) -> bool:
        """Whether the whole interval lies where the claim puts it."""
        return self.estimate.low > self.above and self.estimate.high < self.below


def _tail(distance: float, half: float, cell: Estimate, level: float) -> float:
    """Return the two-sided p of a distance, given the half of the interval that points to the bar.

    Without any spread there is only the sign test: all texts agree.
    """
    if distance <= 0:
        return 1.0
    width = half if half > 0 else (cell.high - cell.low) / 2
    if width <= 0:
        return min(1.0, 2.0 ** (1 - cell.n))
    statistic = distance / width * stats.norm.ppf((1 + level) / 2)
    return min(1.0, float(2 * stats.t.sf(statistic, max(cell.n - 1, 1))))


def p_of_sign(cell: Estimate, level: float = 0.95) -> float:
    """Return the two-sided p of "this number has the sign it shows", read off its interval."""
    up, down = Check("", cell, least=2), Check("", negated(cell), least=2)
    return (up if cell.value >= 0 else down).p_values(level)[0]


@dataclass(frozen=True, slots=True)
class Part:
    """The checks of a finding that speak about the same place, and their common word."""

    where: str
    word: Word
    checks: tuple[Check, ...]

    def text(self) -> str:
        """Return ``where: numbers; remarks``."""
        known = [check for check in self.checks if check.estimate.is_defined]
        remarks = dict.fromkeys(check.remark for check in self.checks if check.remark)
        if not known:
            remarks |= dict.fromkeys(check.too_few() for check in self.checks)
        body = "; ".join([*(check.text() for check in known), *remarks, *self._weakened()])
        return f"{self.where}: {body}" if self.where else body

    def _weakened(self) -> list[str]:
        """Say where the correction took a word away."""
        if self.word != OPEN:
            return []
        lost = [check.outcome for check in self.checks if check.fits() and check.outcome.p < ALPHA]
        worst = max((item.p_reading for item in lost), default=math.nan)
        return [f"{CORRECTION} p over the reading = {worst:.2g}"] if worst >= ALPHA else []


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with the checks that decide it.

    Attributes:
        id: short name, the same for all tasks.
        claim: a sentence that is right or wrong.
        checks: all of them must hold.
        source: its place in the paper, empty for our own.
        task: the task it speaks about, empty where there is none.
        rule: how the word follows from the numbers, in one sentence.
        numbers: what a reader should see besides.
        remarks: what a careful reader should also know.
    """

    id: str
    claim: str
    checks: tuple[Check, ...]
    source: str = ""
    task: str = ""
    rule: str = ""
    numbers: tuple[Number, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The id as words."""
        return self.id.replace("-", " ").capitalize()

    @property
    def word(self) -> Word:
        """The outcome of the claim as a whole."""
        return combined(check.word for check in self.checks)

    def parts(self) -> list[Part]:
        """Return the checks by place, in order of first appearance."""
        places: dict[str, list[Check]] = {}
        for check in self.checks:
            places.setdefault(check.where, []).append(check)
        return [
            Part(where, combined(check.word for check in found), tuple(found))
            for where, found in places.items()
        ]

    def at(self, word: Word) -> list[Part]:
        """Return the places with this outcome."""
        return [part for part in self.parts() if part.word == word]

    def sentence(self) -> str:
        """Say the outcome and how it came about."""
        counts = {word: sum(check.word == word for check in self.checks) for word in WORDS}
        shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        reasons = dict.fromkeys(check.outcome.why for check in self.checks if check.outcome.why)
        text = f"{self.word.capitalize()}: {len(self.checks)} checks, {shown or 'none made'}"
        return f"{text} ({'; '.join(reasons)})." if reasons else f"{text}."

    def lines(self) -> list[str]:
        """Return one line per number, deciding ones first; those undefined for the same reason share one."""
        every: list[Check | Number] = [*self.checks, *self.numbers]
        out = [item.text() for item in every if item.estimate.is_defined]
        reasons: dict[str, list[str]] = {}
        for item in every:
            if not item.estimate.is_defined:
                reasons.setdefault(item.estimate.why or "no value", []).append(item.label)
        return out + [f"undefined ({why}): {'; '.join(labels)}" for why, labels in reasons.items()]

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "id": self.id,
            "title": self.title,
            "task": self.task,
            "claim": self.claim,
            "source": self.source,
            "word": self.word,
            "sentence": self.sentence(),
            "rule": self.rule,
            "checks": [check.record() for check in self.checks],
            "numbers": [number.record() for number in self.numbers],
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """Findings that were judged together."""

    findings: tuple[Finding, ...]

    @property
    def n_checks(self) -> int:
        """Checks that could be made: each has a p-value and counts for the correction."""
        return sum(math.isfinite(c.outcome.p) for item in self.findings for c in item.checks)

    @property
    def n_undefined(self) -> int:
        """Checks that lacked numbers or texts."""
        return sum(len(item.checks) for item in self.findings) - self.n_checks

    def counts(self) -> dict[Word, int]:
        """Return how many findings have which outcome."""
        return {word: sum(item.word == word for item in self.findings) for word in WORDS}

    def sentence(self) -> str:
        """Say the outcomes, how many checks were made and how they were corrected."""
        counts = ", ".join(f"{count} {word}" for word, count in self.counts().items())
        missing = f" ({self.n_undefined} more could not be made)" if self.n_undefined else ""
        return (
            f"{len(self.findings)} findings: {counts}. {self.n_checks} checks were made{missing}; words hold "
            f"after {CORRECTION}'s correction over all of them at {ALPHA:g} (each claim's own is shown too)."
        )

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "summary": self.sentence(),
            "counts": dict(self.counts()),
            "n_findings": len(self.findings),
            "n_checks": self.n_checks,
            "n_undefined": self.n_undefined,
            "correction": {"claim": CORRECTION, "reading": CORRECTION, "decides": "reading", "alpha": ALPHA},
            "rules": list(RULES),
            "findings": [item.record() for item in self.findings],
        }


def combined(words: Iterable[Word]) -> Word:
    """Return the word of a claim that needs all of these."""
    found = list(words)
    if NOT_SUPPORTED in found:
        return NOT_SUPPORTED
    return SUPPORTED if found and set(found) == {SUPPORTED} else OPEN


def judge(findings: Iterable[Finding], level: float = 0.95) -> Reading:
    """Return the findings with the outcome of every check, corrected over each claim and over all.

    Args:
        findings: everything that is read together.
        level: coverage of the checks' intervals.
    """
    kept = list(findings)
    checks = [(place, check) for place, item in enumerate(kept) for check in item.checks]
    raw = np.array([check.p_values(level) for _, check in checks], np.float64).reshape(-1, 2)
    ids = [kept[place].id for place, _ in checks]
    outcomes = _outcomes([check for _, check in checks], raw, ids)
    done: dict[int, list[Check]] = {place: [] for place in range(len(kept))}
    for (place, check), outcome in zip(checks, outcomes, strict=True):
        done[place].append(replace(check, outcome=outcome))
    return Reading(tuple(replace(item, checks=tuple(done[place])) for place, item in enumerate(kept)))


def _outcomes(checks: Sequence[Check], raw_N2: Any, ids: Sequence[str]) -> list[Outcome]:
    columns = []
    for side in (0, 1):
        p = raw_N2[:, side]
        columns += [p, _by_claim(p, ids), adjust(p, "holm")]
    out = []
    for check, row in zip(checks, np.column_stack(columns).tolist() if checks else [], strict=True):
        word: Word = OPEN
        if row[5] < ALPHA:
            word = NOT_SUPPORTED
        elif row[2] < ALPHA and check.fits():
            word = SUPPORTED
        out.append(Outcome(word, row[0], row[1], row[2], row[3], row[4], row[5], check.too_few()))
    return out


def _by_claim(p: Any, ids: Sequence[str]) -> Any:
    out = np.full(len(p), np.nan)
    names = np.array(ids, object)
    for name in dict.fromkeys(ids):
        out[names == name] = adjust(p[names == name], "holm")
    return out


def negated(cell: Estimate) -> Estimate:
    """Return the estimate with its sign changed."""
    return Estimate(-cell.value, -cell.high, -cell.low, cell.n, cell.n_undefined, cell.why)


def each(where: str, checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks with the place they speak about."""
    return tuple(replace(check, where=where) for check in checks)


def _numbers(label: str, cell: Estimate) -> dict[str, Any]:
    return {
        "label": label,
        "estimate": cell.value,
        "interval": [cell.low, cell.high],
        "n": cell.n,
        "n_undefined": cell.n_undefined,
        "note": cell.why,
    }


def _shown(label: str, cell: Estimate, paper: float | str | None, digits: int) -> str:
    beside = "" if paper is None else f" (paper: {paper})"
    return f"{label}: {cell_text(cell, digits)}{beside}"
