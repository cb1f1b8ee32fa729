"""A worker: loads the model of a task and computes its units, in any process.

The task is plain data, so it can be sent to another process or machine. The worker writes its state into the
run (``runs.worker_log``), where the supervisor reads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

from orderlens.errors import OrderLensError
from orderlens.runs.compute import (
    ComputeContext,
    batch_limit,
    decode_unit,
    longest_canvas,
    open_model,
    planned_reveals,
)
from orderlens.runs.extend import Items
from orderlens.runs.loop import SharedRole, execute
from orderlens.runs.spec import RunSpec, Unit
from orderlens.runs.worker_log import Failures, WorkerLog, error_line
from orderlens.store.folder import open_folder
from orderlens.store.writer import open_writer


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The task of all workers of a command.

    Attributes:
        out: the run folder.
        stored_spec: the run's spec as the store writes it.
        specs: specs of the units, as JSON.
        units: unit key → (index into ``specs``, the unit as JSON), longest first.
        model: the model's name or folder.
        dtype: its precision; None leaves the choice to the model.
        session: identifies the command.
        attempts: maximum number of attempts per unit.
        lease_s: seconds after which a claim expires if its worker does not renew it.
    """

    out: str
    stored_spec: Mapping[str, Any]
    specs: tuple[Mapping[str, Any], ...]
    units: Mapping[str, tuple[int, Mapping[str, Any]]]
    model: str
    dtype: str | None
    session: str
    attempts: int
    lease_s: float

    def items(self) -> Items:
        """Return the units with their specs."""
        specs = [RunSpec.from_json(spec) for spec in self.specs]
        return {key: (specs[place], Unit.from_json(unit)) for key, (place, unit) in self.units.items()}


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker: its name, its number, the number of workers, and its device."""

    name: str
    place: int
    count: int
    device: str | None


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The result of a worker, as plain data.

    Attributes:
        error: one line; None if the worker finished.
        kind: name of the error's class in ``orderlens.errors``; empty for other classes.
        traceback: the traceback of the error.
    """

    error: str | None = None
    kind: str = ""
    traceback: str = ""


def longest_first(items: Items) -> Items:
    """Return the units sorted by length, longest first, so that the last units are short."""
    return dict(sorted(items.items(), key=lambda item: -planned_reveals(*item[1])))


def plain_items(items: Items) -> tuple[tuple[Mapping[str, Any], ...], dict[str, tuple[int, dict[str, Any]]]]:
    """Return specs and units in the form of ``WorkerTask``."""
    specs: list[RunSpec] = []
    units = {}
    for key, (spec, unit) in longest_first(items).items():
        if spec not in specs:
            specs.append(spec)
        units[key] = (specs.index(spec), unit.to_json())
    return tuple(spec.to_json() for spec in specs), units


def work(task: WorkerTask, slot: WorkerSlot) -> WorkerResult:
    """Load the model and compute units until none is left; errors are returned, not raised."""
    try:
        with WorkerLog(open_folder(task.out), slot.name, task.session, slot.device or "") as log:
            log.set_state("loading")
            _work(task, slot, log)
    except Exception as error:  # noqa: BLE001  the supervisor handles it
        return _result(error)
    return WorkerResult()


def _work(task: WorkerTask, slot: WorkerSlot, log: WorkerLog) -> None:
    items = task.items()
    spec = next(iter(items.values()))[0]
    model = open_model(spec, name=task.model, device=slot.device, dtype=task.dtype)
    limit = batch_limit(spec.kind, model, longest_canvas(items.values()))
    context = ComputeContext(limit=limit, on_reveals=log.advance)
    log.update(planned=sum(planned_reveals(*item) for item in items.values()))
    log.log_event("loaded", model=task.model)

    with open_writer(task.out, task.stored_spec, lease_s=task.lease_s) as writer:
        failures = Failures(writer.folder, task.attempts)
        role = SharedRole(log, failures, slot.place, slot.count, closes=False)
        execute(writer, items, lambda item: decode_unit(*item, model, context), role)


def _result(error: Exception) -> WorkerResult:
    kind = type(error).__name__ if isinstance(error, OrderLensError) else ""
    return WorkerResult(error_line(error), kind, "".join(format_exception(error)))


def worker_name(session: str, number: int) -> str:
    """Return the name of a worker, which is also a file name."""
    return f"{session}-{number:03d}"


def new_session() -> str:
    """Return an identifier of a command that sorts by start time."""
    from datetime import UTC, datetime
    from uuid import uuid4

    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{uuid4().hex[:4]}"
