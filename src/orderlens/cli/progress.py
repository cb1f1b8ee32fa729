"""Progress without a bar: lines for a log file, and a forecast when a job will take more than an hour.

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


EVERY_S = 10.0
"""Seconds between two lines of one stage."""


class Lines:
    """Writes how far a stage is, at most every ``EVERY_S`` seconds."""

    def __init__(
        self, label: str, total: int | None, forecast: Forecast | None, write: Callable[[str], None]
    ) -> None:
        self._label, self._write, self._forecast = label.strip(), write, forecast
        self._done, self._total = 0, total or 0
        self._start = self._last = time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        """Advance."""
        self._done += steps
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            self.say(self._state(now - self._start))
        warning = self._forecast.advance(steps) if self._forecast else None
        if warning is not None:
            self._write(warning)

    def set_total(self, total: int) -> None:
        """Say how many steps there are; 0 means that everything was there already."""
        self._total = total
        if self._forecast:
            self._forecast.set_total(total)
        self.say(f"{total:,} to do" if total else "nothing left to do")

    def finish(self) -> None:
        """Write the last line."""
        if self._done:
            self.say(f"{self._done:,} done in {time.monotonic() - self._start:.0f} s")

    def say(self, text: str) -> None:
        """Write one line."""
        self._write(f"{self._label}: {text}")

    def _state(self, seconds: float) -> str:
        if not self._total:
            return f"{self._done:,} done, {seconds:.0f} s"
        left = seconds * max(self._total - self._done, 0) / max(self._done, 1)
        percent = 100 * self._done / self._total
        return (
            f"{self._done:,} of {self._total:,} ({percent:.0f} %), {self._done / max(seconds, 1e-3):,.0f}/s, "
            f"{seconds:.0f} s, about {left:.0f} s left"
        )
