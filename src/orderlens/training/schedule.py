"""How far a run is and how large its steps are. Progress is counted in steps or in wall time, never both."""

from __future__ import annotations

from dataclasses import dataclass

from orderlens.errors import UserInputError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, a plateau, then a straight line to zero at the end of the budget.

    Attributes:
        steps: number of steps, or None to be limited by time.
        max_minutes: wall time of the whole run, earlier parts of a resumed run included, or None.
        warmup_steps: steps of linear warm-up.
        hold: share of the budget after which the decay starts.
    """

    steps: int | None = None
    max_minutes: float | None = None
    warmup_steps: int = 100
    hold: float = 0.2

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.max_minutes is None):
            raise UserInputError("give the length of training either in steps or in minutes")
        if (self.steps or self.max_minutes or 0) <= 0:
            raise UserInputError("the length of training must be positive")

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the spent share of the budget; training ends at 1."""
        if self.steps is not None:
            return step / self.steps
        assert self.max_minutes is not None
        return elapsed_s / (60.0 * self.max_minutes)

    def factor(self, step: int, elapsed_s: float) -> float:
        """Return the learning-rate factor in [0, 1] for the step with this (0-based) number."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        left = 1.0 - self.progress(step, elapsed_s)
        return warm * min(1.0, max(0.0, left) / (1.0 - self.hold))
