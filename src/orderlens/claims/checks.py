"""A check: a number, the range that a claim predicts for it, and the outcome.

``claims.judge`` assigns outcomes; a check alone only has uncorrected p-values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from scipy import special

from orderlens.analysis.rendering import cell_text
from orderlens.metrics.estimate import Estimate, student_p

Outcome = Literal["supported", "not supported", "left open"]
SUPPORTED: Outcome = "supported"
NOT_SUPPORTED: Outcome = "not supported"
OPEN: Outcome = "left open"
OUTCOMES: tuple[Outcome, ...] = (SUPPORTED, NOT_SUPPORTED, OPEN)

MIN_TEXTS = 6
"""Minimum number of texts or items for a decision: with fewer, not even a sign test can reach ``ALPHA``."""


@dataclass(frozen=True, slots=True)
class ContextNumber:
    """A number that is reported with a finding but does not decide it.

    Attributes:
        label: name and unit.
        estimate: value and interval, or the reason why it is undefined.
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
class CheckResult:
    """The outcome of a check and its p-values.

    ``p`` tests the hypothesis that the number lies outside the predicted range, ``p_absent`` the hypothesis
    that it lies inside by more than the margin. Both are two-sided. ``…_claim`` is corrected over the checks
    of one claim, ``…_reading`` over all checks.
    """

    outcome: Outcome
    p: float = math.nan
    p_claim: float = math.nan
    p_reading: float = math.nan
    p_absent: float = math.nan
    p_absent_claim: float = math.nan
    p_absent_reading: float = math.nan
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A number for which the claim predicts a value above ``above`` and below ``below``.

    Attributes:
        label: name and unit.
        estimate: value and interval.
        above: lower bound of the predicted range.
        below: upper bound of the predicted range; infinite if the claim has none.
        margin: effects up to this size are too small to count (the equivalence margin).
        min_n: minimum number of texts or items for a decision.
        p: p-value of a separate test; None derives it from the interval (Student's t, n − 1 degrees).
        p_absent: the same for absence of the effect.
        paper: what the paper prints, if anything.
        digits: decimals shown.
        where: the order or part of the data that it refers to; empty for all.
        remark: a note shown with the number.
        result: filled in by ``judge``.
    """

    label: str
    estimate: Estimate
    above: float = 0.0
    below: float = math.inf
    margin: float = 0.0
    min_n: int = MIN_TEXTS
    p: float | None = None
    p_absent: float | None = None
    paper: float | str | None = None
    digits: int = 3
    where: str = ""
    remark: str = ""
    result: CheckResult = CheckResult(OPEN)

    @property
    def outcome(self) -> Outcome:
        """The outcome; left open until judged."""
        return self.result.outcome

    @property
    def rule(self) -> str:
        """The rule of this check in words."""
        is_band = math.isfinite(self.below)
        place = f"between {self.above:g} and {self.below:g}" if is_band else f"above {self.above:g}"
        small = f"up to {self.above + self.margin:g}"
        if is_band:
            small += f", or from {self.below - self.margin:g} on,"
        margin = f"; {small} is too small to count" if self.margin else ""
        return f"the interval lies {place}{margin}; at least {self.min_n} texts or items"

    def text(self) -> str:
        """Return ``label: value [low, high] (paper: value)``."""
        return _shown(self.label, self.estimate, self.paper, self.digits)

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        found = self.result
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
            "outcome": found.outcome,
            "why": found.why,
            "remark": self.remark,
        }

    def too_few(self) -> str:
        """Return why the check cannot be decided; empty if it can."""
        cell = self.estimate
        if not cell.is_defined:
            return cell.why or "no value"
        if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
            return cell.why or "no interval"
        return f"{cell.n} of at least {self.min_n} texts or items" if cell.n < self.min_n else ""

    def p_values(self, level: float) -> tuple[float, float]:
        """Return p and p_absent; NaN if the check cannot be decided."""
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
        """Whether the whole interval lies in the predicted range."""
        return self.estimate.low > self.above and self.estimate.high < self.below


def _tail(distance: float, half: float, cell: Estimate, level: float) -> float:
    """Return the two-sided p of a distance from a bound, given the half-width of the interval on that side.

    If the interval has no width, all texts agree and the sign test is used.
    """
    if distance <= 0:
        return 1.0
    width = half if half > 0 else (cell.high - cell.low) / 2
    if width <= 0:
        return min(1.0, 2.0 ** (1 - cell.n))
    statistic = distance / width * float(special.ndtri((1 + level) / 2))
    return min(1.0, student_p(statistic, max(cell.n - 1, 1)))


def p_of_sign(cell: Estimate, level: float = 0.95) -> float:
    """Return the two-sided p of "this number has the sign it shows", read off its interval."""
    up, down = Check("", cell, min_n=2), Check("", negated(cell), min_n=2)
    return (up if cell.value >= 0 else down).p_values(level)[0]


def negated(cell: Estimate) -> Estimate:
    """Return the estimate with its sign changed."""
    return Estimate(-cell.value, -cell.high, -cell.low, cell.n, cell.n_undefined, cell.why)


def at_place(where: str, checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks with ``where`` set."""
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
    printed = "" if paper is None else f" (paper: {paper})"
    return f"{label}: {cell_text(cell, digits)}{printed}"
