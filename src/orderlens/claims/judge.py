"""Judges findings: one kind of check and one set of outcomes for all claims about numbers.

A check predicts a range for a number: above a bound, or inside a band. After Holm's correction over all
checks, its outcome is one of

- *supported*: the whole interval lies in the predicted range;
- *not supported*: evidence of absence; the whole interval lies outside the range, or inside the margin of
  effects that are too small to count;
- *left open*: everything else, and every check with too few texts or items. "Not significant" is left open.

A finding is a claim with its checks; it is supported only if all checks are. A reading is a set of findings
that are judged together. It corrects over each claim (all checks of one finding id, over all tasks) and over
all checks; the latter decides. Plain data in and out; does not depend on orders, tasks or pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orderlens.claims.checks import (
    NOT_SUPPORTED,
    OPEN,
    OUTCOMES,
    SUPPORTED,
    Check,
    CheckResult,
    ContextNumber,
    Outcome,
)
from orderlens.errors import counted
from orderlens.metrics.significance import adjust

ALPHA = 0.05
CORRECTION = "Holm"
RULES = (
    (
        "Supported: the whole interval lies where the claim predicts. Not supported: the whole interval "
        "contradicts the claim, or shows only effects too small to count. Left open: everything else, and "
        "every claim with too few texts or items. 'Not significant' means left open."
    ),
    (
        f"Outcomes hold after {CORRECTION}'s correction at {ALPHA:g} over all checks, in both directions. "
        "A claim is supported only if all its checks are."
    ),
)


@dataclass(frozen=True, slots=True)
class FindingPart:
    """The checks of a finding with the same ``where``, and their joint outcome."""

    where: str
    outcome: Outcome
    checks: tuple[Check, ...]

    def text(self) -> str:
        """Return ``where: numbers; remarks``."""
        known = [check for check in self.checks if check.estimate.is_defined]
        remarks = dict.fromkeys(check.remark for check in self.checks if check.remark)
        if not known:
            remarks |= dict.fromkeys(check.too_few() for check in self.checks)
        body = "; ".join([*(check.text() for check in known), *remarks, *self.weakened()])
        return f"{self.where}: {body}" if self.where else body

    def weakened(self) -> list[str]:
        """Return a remark if only the correction prevents an outcome."""
        if self.outcome != OPEN:
            return []
        lost = [check.result for check in self.checks if check.fits() and check.result.p < ALPHA]
        worst = max((item.p_reading for item in lost), default=math.nan)
        return [f"{CORRECTION} p over all checks = {worst:.2g}"] if worst >= ALPHA else []


def _located(item: Check | ContextNumber, text: str) -> str:
    """Prefix the text with the order or part of the data that a check refers to."""
    return f"{item.where}: {text}" if isinstance(item, Check) and item.where else text


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with the checks that decide it.

    Attributes:
        id: short name, the same for all tasks.
        claim: a sentence that is true or false.
        checks: all of them must hold.
        source: its place in the paper, empty for our own.
        task: the task it refers to; empty if it concerns no task.
        rule: how the outcome follows from the numbers, in one sentence.
        numbers: further numbers, which do not decide.
        remarks: cautions, a sentence each.
    """

    id: str
    claim: str
    checks: tuple[Check, ...]
    source: str = ""
    task: str = ""
    rule: str = ""
    numbers: tuple[ContextNumber, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The claim with its task and source, for a list of findings."""
        head = f"{self.task}: {self.claim}" if self.task else self.claim
        return f"{head}  [{self.source}]" if self.source else head

    @property
    def title(self) -> str:
        """The id as outcomes."""
        return self.id.replace("-", " ").capitalize()

    @property
    def outcome(self) -> Outcome:
        """The outcome of the claim over all checks."""
        return combined(check.outcome for check in self.checks)

    def parts(self) -> list[FindingPart]:
        """Return the checks by place, in order of first appearance."""
        places: dict[str, list[Check]] = {}
        for check in self.checks:
            places.setdefault(check.where, []).append(check)
        return [
            FindingPart(where, combined(check.outcome for check in found), tuple(found))
            for where, found in places.items()
        ]

    def at(self, outcome: Outcome) -> list[FindingPart]:
        """Return the places with this outcome."""
        return [part for part in self.parts() if part.outcome == outcome]

    def sentence(self) -> str:
        """Return the outcome and the counts of its checks."""
        counts = {outcome: sum(check.outcome == outcome for check in self.checks) for outcome in OUTCOMES}
        shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        reasons = dict.fromkeys(check.result.why for check in self.checks if check.result.why)
        reasons |= dict.fromkeys(remark for part in self.parts() for remark in part.weakened())
        text = f"{self.outcome.capitalize()}: {counted(len(self.checks), 'check')}, {shown or 'none made'}"
        return f"{text} ({'; '.join(reasons)})." if reasons else f"{text}."

    def lines(self) -> list[str]:
        """Return one line per number, deciding ones first; those undefined for one reason share a line."""
        every: list[Check | ContextNumber] = [*self.checks, *self.numbers]
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
            "outcome": self.outcome,
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
        """Number of checks with a p-value; these count for the correction."""
        return sum(math.isfinite(c.result.p) for item in self.findings for c in item.checks)

    @property
    def n_undefined(self) -> int:
        """Number of checks without enough numbers or texts."""
        return sum(len(item.checks) for item in self.findings) - self.n_checks

    def counts(self) -> dict[Outcome, int]:
        """Return the number of findings by outcome."""
        return {outcome: sum(item.outcome == outcome for item in self.findings) for outcome in OUTCOMES}

    def sentence(self) -> str:
        """Return the outcomes, the number of checks and the correction, as sentences."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts().items())
        missing = f" ({self.n_undefined} more could not be made)" if self.n_undefined else ""
        made = f"{counted(self.n_checks, 'check')} {'was' if self.n_checks == 1 else 'were'} made{missing}"
        return (
            f"{counted(len(self.findings), 'finding')}: {counts}. {made}. Outcomes hold after {CORRECTION}'s "
            f"correction over all checks at {ALPHA:g}; p-values corrected within each claim are shown too."
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
        """Return outcome, claim, numbers, rule and remarks of every finding, in one layout."""
        lines = []
        for place, item in enumerate(self.findings, 1):
            lines.append(f"{place}. {item.heading}")
            lines.append(f"   {item.sentence()}")
            lines += [f"     {line}" for line in item.lines()]
            lines.append(f"   rule: {item.rule}")
            lines += [f"   note: {remark}" for remark in item.remarks]
            lines.append("")
        return "\n".join([self.sentence(), "", *lines, *RULES, ""])


def combined(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a claim that requires all of these."""
    found = list(outcomes)
    if NOT_SUPPORTED in found:
        return NOT_SUPPORTED
    return SUPPORTED if found and set(found) == {SUPPORTED} else OPEN


def judge(findings: Iterable[Finding], level: float = 0.95) -> Reading:
    """Return the findings with the outcome of every check, corrected over each claim and over all.

    Args:
        findings: all findings that are judged together.
        level: coverage of the checks' intervals.
    """
    kept = list(findings)
    checks = [(place, check) for place, item in enumerate(kept) for check in item.checks]
    raw = np.array([check.p_values(level) for _, check in checks], np.float64).reshape(-1, 2)
    ids = [kept[place].id for place, _ in checks]
    results = _results([check for _, check in checks], raw, ids)
    done: dict[int, list[Check]] = {place: [] for place in range(len(kept))}
    for (place, check), result in zip(checks, results, strict=True):
        done[place].append(replace(check, result=result))
    return Reading(tuple(replace(item, checks=tuple(done[place])) for place, item in enumerate(kept)))


def _results(checks: Sequence[Check], raw_N2: Any, ids: Sequence[str]) -> list[CheckResult]:
    columns = []
    for side in (0, 1):
        p = raw_N2[:, side]
        columns += [p, _by_claim(p, ids), adjust(p, "holm")]
    out = []
    for check, row in zip(checks, np.column_stack(columns).tolist() if checks else [], strict=True):
        outcome: Outcome = OPEN
        if row[5] < ALPHA:
            outcome = NOT_SUPPORTED
        elif row[2] < ALPHA and check.fits():
            outcome = SUPPORTED
        out.append(CheckResult(outcome, row[0], row[1], row[2], row[3], row[4], row[5], check.too_few()))
    return out


def _by_claim(p: Any, ids: Sequence[str]) -> Any:
    out = np.full(len(p), np.nan)
    names = np.array(ids, object)
    for name in dict.fromkeys(ids):
        out[names == name] = adjust(p[names == name], "holm")
    return out
