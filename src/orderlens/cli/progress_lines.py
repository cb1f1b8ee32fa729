"""Progress of long stages for a log file: a line now and then instead of a bar that redraws itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from orderlens.cli.forecast import Forecast

EVERY_S = 15.0
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
