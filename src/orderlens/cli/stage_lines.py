"""Progress of long stages for a log file: a line now and then instead of a bar that redraws itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from orderlens.cli.console import Bar, progress_bar, stderr

EVERY_S = 15.0
"""Seconds between two lines of one stage."""


class Lines:
    """Writes how far a stage is, at most every ``EVERY_S`` seconds."""

    def __init__(self, label: str) -> None:
        self._label, self._done, self._total = label, 0, 0
        self._start = self._last = time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        """Advance."""
        self._done += steps
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            self.say(self._state(now - self._start))

    def set_total(self, total: int) -> None:
        """Say how many steps there are; 0 means that everything was there already."""
        self._total = total
        self.say(f"{total:,} to do" if total else "nothing left to do")

    def close(self) -> None:
        """Write the last line."""
        if self._done:
            self.say(f"{self._done:,} done in {time.monotonic() - self._start:.0f} s")

    def say(self, text: str) -> None:
        """Write one line to standard error."""
        stderr.print(f"{self._label}: {text}")

    def _state(self, seconds: float) -> str:
        if not self._total:
            return f"{self._done:,} done, {seconds:.0f} s"
        left = seconds * max(self._total - self._done, 0) / max(self._done, 1)
        percent = 100 * self._done / self._total
        return (
            f"{self._done:,} of {self._total:,} ({percent:.0f} %), {seconds:.0f} s, about {left:.0f} s left"
        )


@contextmanager
def lines(label: str) -> Iterator[Lines]:
    """Open the line writer of a stage."""
    writer = Lines(label)
    try:
        yield writer
    finally:
        writer.close()


def stage_progress(*, quiet: bool) -> Callable[[str], AbstractContextManager[Bar | Lines]]:
    """Return what shows a stage's progress: a bar on a terminal, lines in a file, nothing when quiet."""
    if quiet or stderr.is_terminal:
        return lambda label: progress_bar(f"{label:<30}", None, quiet=quiet)
    return lines
