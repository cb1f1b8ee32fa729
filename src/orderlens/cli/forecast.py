"""Says once, after the first minute, when a job will take more than an hour, and what makes it shorter.

Counts steps against a clock; knows neither bars nor jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_AFTER_S = 60.0
TOO_LONG_S = 3600.0


class Forecast:
    """Predicts from the first minute's speed; the minute begins when the total is known."""

    def __init__(
        self, shorter: str, total: int | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._shorter, self._clock = shorter, clock or time.monotonic
        self._settled = False
        self.set_total(total)

    def set_total(self, total: int | None) -> None:
        """Say how many steps there are (None: not known yet) and begin the minute."""
        self._total, self._done, self._start = total, 0, self._clock()

    def advance(self, steps: int) -> str | None:
        """Count ``steps``; return the warning, once, when it is due."""
        self._done += steps
        elapsed = self._clock() - self._start
        if self._settled or not self._total or not self._done or elapsed < LOOK_AFTER_S:
            return None
        self._settled = True
        left = elapsed * (self._total - self._done) / self._done
        if left <= TOO_LONG_S:
            return None
        return (
            f"this will take about {_duration(left)} more ({self._done:,} of {self._total:,} in the first "
            f"{elapsed:.0f} s; fewer where texts end early); Ctrl-C keeps what is done, "
            f"shorter with {self._shorter}"
        )


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"
