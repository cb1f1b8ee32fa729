"""States and logs of the workers of a run, and records of failed units: small files in the run folder.

``workers/NAME.json`` is a worker's state, which ``runs watch`` reads. ``logs/NAME.jsonl`` has one line per
event; on an object store, which cannot append, lines are written every 30 seconds. ``failed/`` has one record
per failed attempt, with its traceback. A unit with too many failed attempts is set aside: workers skip it,
and the same command tries it again later. The rows of a run do not depend on these files, so they may be
deleted.
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
"""Seconds between two writes of a state, on a disk and on an object store."""
LOG_EVERY_S = 30.0
"""Seconds between two writes of a log on an object store."""
ENDED = ("done", "failed", "stopped")
"""States of a worker that ended."""
_FREQUENT = ("started", "loaded", "committed")
"""Events that need not be written immediately."""
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of one worker.

    Attributes:
        name: name of the worker.
        session: identifies the command that started it.
        host: its machine.
        process: tag of its process (``common.machine``).
        device: device of its model.
        state: ``loading``, ``working``, ``waiting`` (others hold all remaining units), or one of ``ENDED``.
        unit: key of the unit that it computes; None for no unit.
        tokens: progress steps so far.
        planned: progress steps of all workers of its command together, at its start; 0 if unknown.
        units: units committed so far.
        failures: failed attempts so far.
        seconds: seconds since its start.
        time: seconds since the epoch, by its own clock.
        message: why it ended, if it failed.
    """

    name: str
    session: str
    host: str = ""
    process: str = ""
    device: str = ""
    state: str = "loading"
    unit: str | None = None
    tokens: int = 0
    planned: int = 0
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
        """Whether it ended or is known to be dead."""
        return self.state in ENDED or is_dead(self.process)


class WorkerLog:
    """Writes one worker's state and log; errors of writing are ignored.

    Leaving the context writes the final state: done, failed, or stopped by an interrupt.
    """

    def __init__(self, folder: Folder, name: str, session: str, device: str, clock: Clock = time.time):
        self._folder, self._clock = folder, clock
        self._start = self._written = self._logged = clock()
        self._every, self._log_every = pace(folder), 0.0 if folder.filesystem() is None else LOG_EVERY_S
        self._lines = b""
        self.state = WorkerState(name, session, socket.gethostname(), process_tag(), device)
        self.log_event("started", pid=os.getpid(), host=self.state.host, device=device)

    def __enter__(self) -> WorkerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.log_event("done", units=self.state.units, tokens=self.state.tokens)
            self.set_state("done", unit=None)
        elif isinstance(error, Exception):
            line = error_line(error)
            self.log_event("ended", error=line, traceback="".join(format_exception(error)))
            self.set_state("failed", unit=None, message=line)
        else:
            self.log_event("stopped")
            self.set_state("stopped", unit=None)

    def advance(self, steps: int = 1) -> None:
        """Count progress steps."""
        self.update(tokens=self.state.tokens + steps)

    def update(self, **changes: Any) -> None:
        """Change fields of the state; it is written from time to time."""
        self.state = replace(self.state, **changes)
        if self._clock() - self._written >= self._every:
            self._write()

    def log_event(self, what: str, *, log: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """Write a line to the log."""
        now = self._clock()
        line = {"time": round(now, 3), "event": what, **facts, **(log or {})}
        self._lines += canonical(line) + b"\n"
        if now - self._logged >= self._log_every or what not in _FREQUENT:
            self._quietly(self._folder.append, f"{LOGS}/{self.state.name}.jsonl", self._lines)
            self._lines, self._logged = b"", now

    def set_state(self, state: str, **changes: Any) -> None:
        """Change the state and write it immediately."""
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
        """Ignore a full disk here; the next commit reports it."""
        try:
            write(*values, **options)
        except StorageError:
            return


def error_line(error: BaseException) -> str:
    """Return an error as one line, with its class unless it is one of ours."""
    known = isinstance(error, OrderLensError)
    return one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"


def steps_left(states: Sequence[WorkerState]) -> int | None:
    """Return the number of remaining progress steps of the active commands; None if unknown.

    Independent commands that share a run each count all remaining steps, so the smallest count is used.
    """
    left = []
    for session in {state.session for state in states if not state.over}:
        own = [state for state in states if state.session == session]
        left.append(max(state.planned for state in own) - sum(state.tokens for state in own))
        if not max(state.planned for state in own):
            return None
    return max(0, min(left)) if left else None


def pace(folder: Folder) -> float:
    """Return the seconds between two writes (or reads) of the states of workers."""
    return LOCAL_EVERY_S if folder.filesystem() is None else REMOTE_EVERY_S


def read_states(folder: Folder, session: str | None = None) -> list[WorkerState]:
    """Return the states of the workers sorted by name, of one session or of all."""
    found = folder.read_many(folder.names(WORKERS))
    states = [state for state in map(_parsed_state, found.values()) if state is not None]
    return [state for state in states if session in (None, state.session)]


def _parsed_state(data: bytes) -> WorkerState | None:
    try:
        return WorkerState(**json.loads(data))
    except (ValueError, TypeError):
        return None


def remove_ended_workers(folder: Folder) -> None:
    """Remove the states of workers that ended or died; their logs stay."""
    for state in read_states(folder):
        if state.over:
            folder.remove(f"{WORKERS}/{state.name}.json")


def read_log(folder: Folder, name: str) -> list[dict[str, Any]]:
    """Return the events of a worker, oldest first; incomplete lines are skipped."""
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
        worker: name of the worker.
        traceback: the traceback; empty if the process was killed.
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

    def record(
        self, key: str, error: str, worker: str, traceback: str = "", samples: tuple[str, ...] = ()
    ) -> Failure:
        """Record one more failed attempt."""
        attempt = self._counts().get(stem(key), 0)
        while True:
            found = Failure(key, attempt, error, worker, traceback, samples)
            if self._folder.create(failure_file(key, attempt), canonical(asdict(found)), durable=False):
                return found
            attempt += 1  # another worker recorded one in the meantime

    def set_aside(self) -> set[str]:
        """Return the stems of the units with too many failed attempts."""
        return {name for name, count in self._counts().items() if count >= self._limit}

    def clear(self) -> None:
        """Remove all records, so that every unit may be tried again."""
        self._folder.remove_many(self._folder.names(FAILED))

    def _counts(self) -> Counter[str]:
        names = (failed_stem(name) for name in self._folder.names(FAILED))
        return Counter(name for name in names if name is not None)


def read_failures(folder: Folder) -> list[Failure]:
    """Return all failed attempts, sorted by unit and attempt; unreadable records are skipped."""
    found = folder.read_many(folder.names(FAILED))
    rows = [row for row in map(_parsed_failure, found.values()) if row is not None]
    return sorted(rows, key=lambda row: (row.key, row.attempt))


def _parsed_failure(data: bytes) -> Failure | None:
    try:
        value: dict[str, Any] = json.loads(data)
        return Failure(**{**value, "samples": tuple(value["samples"])})
    except (ValueError, TypeError, KeyError):
        return None
