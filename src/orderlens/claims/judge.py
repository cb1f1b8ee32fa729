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
from typing import Any

import numpy as np

from orderlens.claims.checks import NOT_SUPPORTED, OPEN, SUPPORTED, WORDS, Check, CheckOutcome, Number, Word
from orderlens.errors import counted
from orderlens.metrics.significance import adjust

ALPHA = 0.05
CORRECTION = "Holm"
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
class FindingPart:
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


def _located(item: Check | Number, text: str) -> str:
    """Put the order or part of the data in front, where a check speaks about one."""
    return f"{item.where}: {text}" if isinstance(item, Check) and item.where else text


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
    def heading(self) -> str:
        """The claim with its task and source, for a list of findings."""
        head = f"{self.task}: {self.claim}" if self.task else self.claim
        return f"{head}  [{self.source}]" if self.source else head

    @property
    def title(self) -> str:
        """The id as words."""
        return self.id.replace("-", " ").capitalize()

    @property
    def word(self) -> Word:
        """The outcome of the claim as a whole."""
        return combined(check.word for check in self.checks)

    def parts(self) -> list[FindingPart]:
        """Return the checks by place, in order of first appearance."""
        places: dict[str, list[Check]] = {}
        for check in self.checks:
            places.setdefault(check.where, []).append(check)
        return [
            FindingPart(where, combined(check.word for check in found), tuple(found))
            for where, found in places.items()
        ]

    def at(self, word: Word) -> list[FindingPart]:
        """Return the places with this outcome."""
        return [part for part in self.parts() if part.word == word]

    def sentence(self) -> str:
        """Say the outcome and how it came about."""
        counts = {word: sum(check.word == word for check in self.checks) for word in WORDS}
        shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        reasons = dict.fromkeys(check.outcome.why for check in self.checks if check.outcome.why)
        text = f"{self.word.capitalize()}: {counted(len(self.checks), 'check')}, {shown or 'none made'}"
        return f"{text} ({'; '.join(reasons)})." if reasons else f"{text}."

    def lines(self) -> list[str]:
        """Return one line per number, deciding ones first; those undefined for the same reason share one."""
        every: list[Check | Number] = [*self.checks, *self.numbers]
        out = [_located(item, item.text()) for item in every if item.estimate.is_defined]
        reasons: dict[str, list[str]] = {}
        for item in every:
            if not item.estimate.is_defined:
                reasons.setdefault(item.estimate.why or "no value", []).append(_located(item, item.label))
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
        made = f"{counted(self.n_checks, 'check')} {'was' if self.n_checks == 1 else 'were'} made{missing}"
        return (
            f"{counted(len(self.findings), 'finding')}: {counts}. {made}; words hold "
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

    def text(self) -> str:
        """Return word, claim, numbers, rule and remarks of every finding; all outcomes look alike."""
        lines = []
        for place, item in enumerate(self.findings, 1):
            lines.append(f"{place}. {item.heading}")
            lines.append(f"   {item.sentence()}")
            lines += [f"     {line}" for line in item.lines()]
            lines.append(f"   rule: {item.rule}")
            lines += [f"   note: {remark}" for remark in item.remarks]
            lines.append("")
        return "\n".join([self.sentence(), "", *lines, *RULES, ""])


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


def _outcomes(checks: Sequence[Check], raw_N2: Any, ids: Sequence[str]) -> list[CheckOutcome]:
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
        out.append(CheckOutcome(word, row[0], row[1], row[2], row[3], row[4], row[5], check.too_few()))
    return out


def _by_claim(p: Any, ids: Sequence[str]) -> Any:
    out = np.full(len(p), np.nan)
    names = np.array(ids, object)
    for name in dict.fromkeys(ids):
        out[names == name] = adjust(p[names == name], "holm")
    return out
