"""What a grader says about one response. Knows nothing of tasks, models or files."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of grading one response.

    Attributes:
        correct: whether the response counts as right under the grader that was used.
        extracted: what the grader read out of the response, or None when it found nothing to read.
        reason: one line that says why, including every departure from the plain rule.
        grader: name of the rule (``last-number``, ``last-line``, ``strict``, …).
        per_instruction: IFEval only: strict outcome per instruction, in the document's order.
        loose: IFEval only: whether all instructions hold for some loosened form of the response.
        per_instruction_loose: IFEval only: loose outcome per instruction.
    """

    correct: bool
    extracted: str | None
    reason: str
    grader: str = ""
    per_instruction: list[bool] | None = None
    loose: bool | None = None
    per_instruction_loose: list[bool] | None = None

    def instructions_json(self) -> str | None:
        """Return strict and loose outcomes as one JSON string for the store, or None without any."""
        if self.per_instruction is None:
            return None
        return json.dumps({"strict": self.per_instruction, "loose": self.per_instruction_loose})


def incorrect(reason: str, grader: str, extracted: str | None = None) -> Verdict:
    """Return an incorrect verdict."""
    return Verdict(False, extracted, reason, grader)
