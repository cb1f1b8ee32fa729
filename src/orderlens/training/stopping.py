"""Interrupts that wait for the end of a training step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Deferred:
    """Notes SIGINT and SIGTERM instead of acting on them; a second one acts at once.

    Only where Python handles them (a default SIGTERM still ends the process), and only in the main thread.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            self._before[number](number, frame)
        self.pending = number

    def deliver(self) -> None:
        """Act on the signal that came, if one did."""
        if self.pending is not None:
            self._before[self.pending](self.pending, None)
