"""What one re-derived claim looks like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Standing = Literal["holds", "fails", "incomplete"]
"""``incomplete``: true in a smaller range than printed, or the printed argument does not prove it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper beside our own computation of it.

    Attributes:
        name: short id, unique.
        section: where the paper says it (A: proofs, B: downstream protocol, C: sampling).
        statement: the claim in our words.
        paper: the paper's number or condition.
        ours: what we compute.
        standing: whether the claim survives.
        note: what to know when it does not, or under which condition it does.
        values: the computed numbers, by name.
    """

    name: str
    section: str
    statement: str
    paper: str
    ours: str
    standing: Standing
    note: str = ""
    values: dict[str, float] = field(default_factory=dict)


def holds_if(condition: bool) -> Standing:
    """Return ``"holds"`` or ``"fails"``."""
    return "holds" if condition else "fails"
