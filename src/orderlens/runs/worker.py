"""A worker: loads the model that a task names and goes through its units, in whatever process it is called.

The task is plain data, so it can be sent to a process or to another machine. What a worker does is written
into the run (``runs.worker_log``); whoever started it looks there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

from orderlens.decode.batches import BatchLimit
from orderlens.errors import OrderLensError, one_line
from orderlens.runs.compute import Local, begin, longest_canvas, open_model, reveals_ahead
from orderlens.runs.extend import Items
from orderlens.runs.loop import WorkerRole, execute
from orderlens.runs.spec import RunSpec
from orderlens.runs.units import Unit
from orderlens.runs.worker_log import Failures, WorkerLog, error_line
from orderlens.store.folder import open_folder
from orderlens.store.writer import open_writer


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What all workers of a command are told.

    Attributes:
        out: the run folder.
        stated: the run's spec as the store keeps it.
        specs: specs that units are computed under, as JSON.
        units: unit key → (place in ``specs``, the unit as JSON), longest first.
        model: the model's name or folder.
        dtype: its precision; None is the model's own choice.
        session: names the command.
        attempts: how often a unit is tried.
        lease_s: seconds without a sign of life after which a worker's claim may be taken over.
    """

    out: str
    stated: Mapping[str, Any]
    specs: tuple[Mapping[str, Any], ...]
    units: Mapping[str, tuple[int, Mapping[str, Any]]]
    model: str
    dtype: str | None
    session: str
    attempts: int
    lease_s: float

    def items(self) -> Items:
        """Return the units as the engines want them."""
        specs = [RunSpec.from_json(spec) for spec in self.specs]
        return {key: (specs[place], Unit.from_json(unit)) for key, (place, unit) in self.units.items()}


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """What one worker is told besides: its name, its place among how many, and its device."""

    name: str
    place: int
    count: int
    device: str | None


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """How a worker ended; plain, so that it can be sent back.

    Attributes:
        error: one line; None when all units are done.
        kind: name of the error's class in ``orderlens.errors``, or "" for any other.
        traceback: where it happened.
    """

    error: str | None = None
    kind: str = ""
    traceback: str = ""


def longest_first(items: Items) -> Items:
    """Return the units with the longest first, so that no long one is left for the end."""
    return dict(sorted(items.items(), key=lambda item: -reveals_ahead(*item[1])))


def plain_items(items: Items) -> tuple[tuple[Mapping[str, Any], ...], dict[str, tuple[int, dict[str, Any]]]]:
    """Return specs and units as a task holds them."""
    specs: list[RunSpec] = []
    units = {}
    for key, (spec, unit) in longest_first(items).items():
        if spec not in specs:
            specs.append(spec)
        units[key] = (specs.index(spec), unit.to_json())
    return tuple(spec.to_json() for spec in specs), units


class LoggedRole(WorkerRole):
    """A worker whose doings others can see; the first failure ends its work."""

    def __init__(self, log: WorkerLog) -> None:
        self._log = log

    def begins(self, key: str) -> None:
        self._log.becomes("working", unit=key)

    def waits(self) -> None:
        if self._log.state.state != "waiting":
            self._log.becomes("waiting", unit=None)

    def ends(self, key: str) -> None:
        """Count the unit; the next one may be in work already."""
        state = self._log.state
        unit = None if state.unit == key else state.unit
        self._log.changes(unit=unit, units=state.units + 1)
        self._log.event("committed", unit=key, tokens=state.tokens)


class SharedRole(LoggedRole):
    """One of several workers: failures are noted and the next unit is taken up."""

    def __init__(self, log: WorkerLog, failures: Failures, place: int, count: int, *, closes: bool) -> None:
        super().__init__(log)
        self.place, self.count, self.closes, self._failures = place, count, closes, failures

    def fails(self, key: str, payload: Any, error: Exception) -> None:
        trace, name = "".join(format_exception(error)), self._log.state.name
        line = f"{type(error).__name__}: {one_line(error)}"
        ids = tuple(sample.id for sample in payload[1].samples)
        self._failures.note(key, line, name, trace, ids)
        self._log.event("failed", unit=key, error=line, samples=list(ids), traceback=trace)
        self._log.becomes("working", unit=None, failures=self._log.state.failures + 1)

    def set_aside(self) -> set[str]:
        return self._failures.set_aside()


def work(task: WorkerTask, slot: WorkerSlot) -> WorkerResult:
    """Load the model and compute units until none is left; never raises but for an interrupt."""
    try:
        with WorkerLog(open_folder(task.out), slot.name, task.session, slot.device or "") as log:
            log.becomes("loading")
            _work(task, slot, log)
    except Exception as error:  # noqa: BLE001  the driver decides what it means
        return _result(error)
    return WorkerResult()


def _work(task: WorkerTask, slot: WorkerSlot, log: WorkerLog) -> None:
    items = task.items()
    spec = next(iter(items.values()))[0]
    model = open_model(spec, name=task.model, device=slot.device, dtype=task.dtype)
    limit = BatchLimit.suggested(model, longest_canvas(items.values()))
    local = Local(limit=None if spec.kind == "measure" else limit, on_reveals=log.advance)
    log.changes(ahead=sum(reveals_ahead(*item) for item in items.values()))
    log.event("loaded", model=task.model)

    with open_writer(task.out, task.stated, lease_s=task.lease_s) as writer:
        failures = Failures(writer.folder, task.attempts)
        role = SharedRole(log, failures, slot.place, slot.count, closes=False)
        execute(writer, items, lambda item: begin(*item, model, local), role)


def _result(error: Exception) -> WorkerResult:
    kind = type(error).__name__ if isinstance(error, OrderLensError) else ""
    return WorkerResult(error_line(error), kind, "".join(format_exception(error)))


def worker_name(session: str, number: int) -> str:
    """Return the name of a worker: it is also a file name."""
    return f"{session}-{number:03d}"


def new_session() -> str:
    """Return a name for a command, sortable by the time it started on this machine."""
    from datetime import UTC, datetime
    from uuid import uuid4

    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{uuid4().hex[:4]}"
