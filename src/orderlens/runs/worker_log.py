"""What the workers of a run are doing: one small state file and one log each, inside the run.

``workers/NAME.json`` is replaced now and then; whoever watches the run reads it, from any machine that sees
the folder. ``logs/NAME.jsonl`` grows by one line per event; an object store, which cannot append, gets the
lines of half a minute at once. Neither determines any row: both may be deleted.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from orderlens.common.machine import is_dead, process_tag
from orderlens.errors import StorageError
from orderlens.store.protocol import Folder
from orderlens.store.records import canonical

WORKERS, LOGS = "workers", "logs"
LOCAL_EVERY_S, REMOTE_EVERY_S = 1.0, 5.0
"""Seconds between two states of a working worker, on a disk and on an object store."""
LOG_EVERY_S = 30.0
"""Seconds between two additions to a log on an object store."""
ENDED = ("done", "failed", "stopped")
"""States after which nothing more comes."""
_FREQUENT = ("started", "loaded", "committed")
"""Events that may wait for the next addition to a log."""
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class State:
    """What one worker does.

    Attributes:
        name: the worker.
        session: the command it belongs to.
        host: its machine.
        process: tag of its process (``common.process``).
        device: where its model is.
        state: ``loading``, ``working``, ``waiting`` (others hold what is left), or one of ``ENDED``.
        unit: key of the unit it computes; None when it does not.
        tokens: progress steps so far.
        ahead: progress steps that all workers of its command had ahead when it began; 0 where not known.
        units: units committed so far.
        failures: attempts that failed.
        seconds: since it began.
        time: seconds since the epoch, by its own clock.
        message: why it ended, where there is something to say.
    """

    name: str
    session: str
    host: str = ""
    process: str = ""
    device: str = ""
    state: str = "loading"
    unit: str | None = None
    tokens: int = 0
    ahead: int = 0
    units: int = 0
    failures: int = 0
    seconds: float = 0.0
    time: float = 0.0
    message: str = ""

    @property
    def rate(self) -> float:
        """Progress steps per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether nothing more comes: it ended, or is known to be dead."""
        return self.state in ENDED or is_dead(self.process)


class Notebook:
    """One worker's own hand on its state and its log; a state that cannot be written is no failure."""

    def __init__(self, folder: Folder, name: str, session: str, device: str, clock: Clock = time.time):
        self._folder, self._clock = folder, clock
        self._start = self._written = self._logged = clock()
        self._every, self._log_every = pace(folder), 0.0 if folder.filesystem() is None else LOG_EVERY_S
        self._lines = b""
        self.state = State(name, session, socket.gethostname(), process_tag(), device)
        self.event("started", pid=os.getpid(), host=self.state.host, device=device)

    def advance(self, steps: int = 1) -> None:
        """Count progress, and let others see it now and then."""
        self.changes(tokens=self.state.tokens + steps)

    def changes(self, **changes: Any) -> None:
        """Change what the state tells, and let others see it now and then."""
        self.state = replace(self.state, **changes)
        if self._clock() - self._written >= self._every:
            self._write()

    def event(self, what: str, *, log: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """Write a line to the log."""
        now = self._clock()
        line = {"time": round(now, 3), "event": what, **facts, **(log or {})}
        self._lines += canonical(line) + b"\n"
        if now - self._logged >= self._log_every or what not in _FREQUENT:
            self._quietly(self._folder.append, f"{LOGS}/{self.state.name}.jsonl", self._lines)
            self._lines, self._logged = b"", now

    def becomes(self, state: str, **changes: Any) -> None:
        """Change the state and show it at once."""
        self.state = replace(self.state, state=state, **changes)
        self._write()

    def _write(self) -> None:
        self._written = self._clock()
        self.state = replace(
            self.state, time=round(self._written, 3), seconds=round(self._written - self._start, 3)
        )
        content = canonical(asdict(self.state))
        self._quietly(self._folder.put, f"{WORKERS}/{self.state.name}.json", content, durable=False)

    def _quietly(self, write: Callable[..., None], *values: Any, **options: Any) -> None:
        """A full disk is reported by the commit that meets it, not by the worker's diary."""
        try:
            write(*values, **options)
        except StorageError:
            return


def steps_left(states: Sequence[State]) -> int | None:
    """Return how many progress steps the commands at work have left; None where one does not tell.

    Commands that share a run without knowing of each other all count everything: the least is nearest.
    """
    left = []
    for session in {state.session for state in states if not state.over}:
        own = [state for state in states if state.session == session]
        left.append(max(state.ahead for state in own) - sum(state.tokens for state in own))
        if not max(state.ahead for state in own):
            return None
    return max(0, min(left)) if left else None


def pace(folder: Folder) -> float:
    """Return the seconds between two looks at, or states of, workers of a run."""
    return LOCAL_EVERY_S if folder.filesystem() is None else REMOTE_EVERY_S


def read_states(folder: Folder, session: str | None = None) -> list[State]:
    """Return the workers' states by name; only those of one session where it is given."""
    found = folder.read_many(folder.names(WORKERS))
    states = [state for state in map(_parsed, found.values()) if state is not None]
    return [state for state in states if session in (None, state.session)]


def _parsed(data: bytes) -> State | None:
    try:
        return State(**json.loads(data))
    except (ValueError, TypeError):
        return None


def forget_workers(folder: Folder) -> None:
    """Remove the states of workers that ended or died; their logs stay, and so do others at work."""
    for state in read_states(folder):
        if state.over:
            folder.remove(f"{WORKERS}/{state.name}.json")


def read_log(folder: Folder, name: str) -> list[dict[str, Any]]:
    """Return the events of a worker, oldest first; a line that was cut off is left out."""
    rows = []
    for line in folder.read(f"{LOGS}/{name}.jsonl").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
