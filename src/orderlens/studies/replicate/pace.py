"""How fast this machine decodes, and how many texts of a fixed list the time still allows.

Asked before every stage, with the speed of the stage before it: a machine that gets busy on the way still
ends in time, on fewer texts. Knows neither models nor files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from orderlens.runs.options import ProgressSink, ShowsWorkers

LEAST = 6
"""Texts below which nothing can be decided: never fewer, however slow the machine."""
TRUSTED_S = 2.0
"""Seconds of decoding below which a speed says nothing."""
SLACK = 1.25
"""How much longer than its time a stage may take before texts are made shorter."""

Show = Callable[[str], AbstractContextManager[ProgressSink | None]]
"""Opens a progress bar with a label; a stage advances it by tokens."""


class Pace:
    """Counts revealed tokens and seconds stage by stage.

    Attributes:
        budget_s: seconds that all stages may take together; 0 is no limit.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget_s, self._clock = budget_s, clock
        self._start = clock()
        self._speed: float | None = None

    def fit(self, most: int, tokens_per_text: int, reserved_tokens: int = 0) -> int:
        """Return how many texts fit into what is left of the time, between ``LEAST`` and ``most``.

        Args:
            most: length of the list.
            tokens_per_text: reveals that one more text costs in all stages to come.
            reserved_tokens: reveals of those stages that do not depend on the number of texts.
        """
        if not self.budget_s or self._speed is None:
            return most
        left = self._speed * (self.budget_s - (self._clock() - self._start)) - reserved_tokens
        return min(most, max(LEAST, int(left // tokens_per_text)))

    def allows(self, tokens: int) -> bool:
        """Whether so many reveals take no more than what is left of the time, with some slack."""
        if not self.budget_s or self._speed is None:
            return True
        return tokens <= SLACK * self._speed * (self.budget_s - (self._clock() - self._start))

    def watching(self, show: Show) -> Show:
        """Return ``show`` with every bar's advances counted."""

        @contextmanager
        def opened(label: str) -> Iterator[ProgressSink]:
            with show(label) as bar:
                counter = _Counter(bar)
                start = self._clock()
                yield counter
                seconds = self._clock() - start
                if seconds >= TRUSTED_S:
                    self._speed = counter.tokens / seconds

        return opened


class _Counter:
    """Passes advances on and adds them up; tokens past the requested length never pass the bar's end."""

    def __init__(self, bar: ProgressSink | None) -> None:
        self._bar, self.tokens, self._left = bar, 0, 0

    def __call__(self, steps: int = 1) -> None:
        self.tokens += steps
        shown = min(steps, self._left)
        self._left -= shown
        if self._bar is not None and shown:
            self._bar(shown)

    def set_total(self, total: int) -> None:
        self._left = total
        if self._bar is not None:
            self._bar.set_total(total)

    def show_workers(self, states: Sequence[Any]) -> None:
        if isinstance(self._bar, ShowsWorkers):
            self._bar.show_workers(states)
