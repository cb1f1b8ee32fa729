"""Whether guessing ahead gains anything, measured while it goes on: it depends on the host beside the device.

Without guesses a pass takes the host's own work and the wait for the device. Guesses hide the wait, but a
guess costs the host more than starting the pass once it is known: it pays where the wait is longer than that.
So the first passes of a batch are made without guesses, and again those of a block after one in which the
device was mostly done before the host: little was left to hide then. Times decide when something is computed,
never what.
"""

from __future__ import annotations

import math

TRIAL = 2
"""Passes without guesses before it is decided; the last one counts (the first of a block caches another)."""
IDLE = 1e-4
"""A wait this short (seconds) means that the device was done first."""


class Worth:
    """What guessing costs and what it would hide, in seconds."""

    def __init__(self) -> None:
        self._trial = TRIAL
        self._start = self._guess = math.inf
        self._pays = True
        self._hidden = self._waits = 0

    def started(self, seconds: float) -> bool:
        """A pass was started without a guess; return whether to guess the next one."""
        self._start = min(self._start, seconds)
        if 2 * self._hidden > self._waits:
            self._trial = TRIAL
        self._hidden = self._waits = 0
        return self._pays and not self._trial

    def guessed(self, seconds: float) -> None:
        """A guess took the host so long."""
        self._guess = min(self._guess, seconds)

    def waited(self, seconds: float) -> None:
        """The host waited for a pass that was started without a guess, and behind which there is none."""
        self._trial = max(0, self._trial - 1)
        more = 0.0 if math.isinf(self._guess) else self._guess - self._start
        self._pays = seconds > more

    def waited_for_guess(self, seconds: float) -> None:
        """The host waited for a pass that had been guessed."""
        self._waits += 1
        self._hidden += seconds < IDLE
