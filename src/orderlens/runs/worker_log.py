"""What the workers of a run are doing, and which units failed: small files inside the run.

``workers/NAME.json`` holds a worker's state; ``runs watch`` reads it from any machine that sees the folder.
``logs/NAME.jsonl`` grows by one line per event; an object store, which cannot append, gets the lines of half
a minute at once. ``failed/`` has one record per failed attempt, with its traceback. A unit that failed as
often as is allowed is set aside: workers pass over it, and the same command tries it again. No row depends on
these files: all of them may be deleted.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from traceback import format_exception
from types import TracebackType
from typing import Any, TypeAlias

from orderlens.common.machine import is_dead, process_tag
from orderlens.errors import OrderLensError, StorageError, one_line
from orderlens.store.protocol import Folder
from orderlens.store.records import FAILED, LOGS, WORKERS, canonical, failed_stem, failure_file, stem

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
class WorkerState:
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


class WorkerLog:
    """Writes one worker's state and log; a state that cannot be written is not a failure.

    Leaving the context writes how the worker ended: done, failed, or stopped by an interrupt.
    """

    def __init__(self, folder: Folder, name: str, session: str, device: str, clock: Clock = time.time):
        self._folder, self._clock = folder, clock
        self._start = self._written = self._logged = clock()
        self._every, self._log_every = pace(folder), 0.0 if folder.filesystem() is None else LOG_EVERY_S
        self._lines = b""
        self.state = WorkerState(name, session, socket.gethostname(), process_tag(), device)
        self.event("started", pid=os.getpid(), host=self.state.host, device=device)

    def __enter__(self) -> WorkerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.event("done", units=self.state.units, tokens=self.state.tokens)
            self.becomes("done", unit=None)
        elif isinstance(error, Exception):
            line = error_line(error)
            self.event("ended", error=line, traceback="".join(format_exception(error)))
            self.becomes("failed", unit=None, message=line)
        else:
            self.event("stopped")
            self.becomes("stopped", unit=None)

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


def error_line(error: BaseException) -> str:
    """Return an error as one line; the class is named where the message may not tell it."""
    known = isinstance(error, OrderLensError)
    return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"


def steps_left(states: Sequence[WorkerState]) -> int | None:
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


def read_states(folder: Folder, session: str | None = None) -> list[WorkerState]:
    """Return the workers' states by name; only those of one session where it is given."""
    found = folder.read_many(folder.names(WORKERS))
    states = [state for state in map(_parsed_state, found.values()) if state is not None]
    return [state for state in states if session in (None, state.session)]


def _parsed_state(data: bytes) -> WorkerState | None:
    try:
        return WorkerState(**json.loads(data))
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


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt.

    Attributes:
        key: the unit.
        attempt: 0-based.
        error: one line.
        worker: who tried.
        traceback: where it happened; empty where the process was killed.
        samples: ids of the unit's samples.
    """

    key: str
    attempt: int
    error: str
    worker: str
    traceback: str = ""
    samples: tuple[str, ...] = ()


class Failures:
    """The failed attempts of one run.

    Args:
        folder: the run.
        limit: attempts after which a unit is set aside.
    """

    def __init__(self, folder: Folder, limit: int) -> None:
        self._folder, self._limit = folder, limit

    def note(
        self, key: str, error: str, worker: str, traceback: str = "", samples: tuple[str, ...] = ()
    ) -> Failure:
        """Record one more failed attempt."""
        attempt = self._counts().get(stem(key), 0)
        while True:
            found = Failure(key, attempt, error, worker, traceback, samples)
            if self._folder.create(failure_file(key, attempt), canonical(asdict(found)), durable=False):
                return found
            attempt += 1  # another worker noted one meanwhile

    def set_aside(self) -> set[str]:
        """Return the stems of the units that are not tried again."""
        return {name for name, count in self._counts().items() if count >= self._limit}

    def forget(self) -> None:
        """Remove all records, so that every unit may be tried again."""
        self._folder.remove_many(self._folder.names(FAILED))

    def _counts(self) -> Counter[str]:
        names = (failed_stem(name) for name in self._folder.names(FAILED))
        return Counter(name for name in names if name is not None)


def read_failures(folder: Folder) -> list[Failure]:
    """Return all failed attempts, by unit and attempt; records that cannot be read are left out."""
    found = folder.read_many(folder.names(FAILED))
    rows = [row for row in map(_parsed_failure, found.values()) if row is not None]
    return sorted(rows, key=lambda row: (row.key, row.attempt))


def _parsed_failure(data: bytes) -> Failure | None:
    try:
        value: dict[str, Any] = json.loads(data)
        return Failure(**{**value, "samples": tuple(value["samples"])})
    except (ValueError, TypeError, KeyError):
        return None
