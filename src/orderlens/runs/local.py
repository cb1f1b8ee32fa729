"""The engine that computes units in this process, one after the other.

Several processes may do so in one folder at once: each claims the unit it works on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from orderlens.decode.batches import BatchLimit
from orderlens.errors import UserInputError, one_line
from orderlens.models.abilities import device_type
from orderlens.runs.compute import Finish, Local, Tables, begin, reveals_ahead
from orderlens.runs.execute import Shift, execute, finish_or_say
from orderlens.runs.failures import Failures
from orderlens.runs.history import Items, open_plan
from orderlens.runs.job import Job
from orderlens.runs.options import Computing, ProgressSink, ShowsCanvas
from orderlens.runs.ranks import Rank
from orderlens.runs.spec import RunSpec
from orderlens.runs.units import Unit
from orderlens.runs.worker import NotedShift, SharedShift, longest_first
from orderlens.runs.worker_log import Notebook, forget_workers
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.records import COMPLETE
from orderlens.store.writer import RunWriter

_CLOSING_S = 30.0
"""Seconds that ranks wait for the leading one to close a run."""


def run_here(job: Job, options: Computing, rank: Rank | None = None, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming what is there), or in memory.

    A rank computes its share and returns when the run is complete.
    """
    out = options.out
    if out is None and rank is None:
        return _in_memory(job, options.progress, extend)
    if out is None:
        raise UserInputError("several ranks share a run through its folder: give out")
    whole, items, writer = open_plan(job, out, extend=extend)
    folder = writer.folder
    with writer, _notebook(folder, whole, rank) as notebook:
        bar = _Both(notebook, options.progress if rank is None or rank.leads else None)
        left = writer.pending(items, by_name=rank is not None)
        bar.set_total(ahead(items[key] for key in left))
        local = _local(whole, bar, options.progress)

        def work(item: tuple[RunSpec, Unit]) -> Finish:
            return begin(*item, whole.model, local)

        shift = _shift(folder, notebook, options, rank)
        execute(writer, items if rank is None else longest_first(items), work, shift=shift)
        if not shift.closes:
            _await_close(writer, items)
    return open_run(out)


@contextmanager
def _notebook(folder: Folder, job: Job, rank: Rank | None) -> Iterator[Notebook]:
    """Let others see what this process does, and how it ended."""
    # Several commands may work on one folder at once, each alone: the process tells them apart.
    lone = f"alone-{os.getpid()}"
    name, session = (lone, lone) if rank is None else (f"rank-{rank.index:03d}", "ranks")
    if rank is None:
        forget_workers(folder)
    notebook = Notebook(folder, name, session, device_type(job.model))
    try:
        yield notebook
    except BaseException as error:
        notebook.event("ended", error=one_line(error))
        notebook.becomes("failed", unit=None, message=one_line(error))
        raise
    notebook.event("done", units=notebook.state.units, tokens=notebook.state.tokens)
    notebook.becomes("done", unit=None)


def _shift(folder: Folder, notebook: Notebook, options: Computing, rank: Rank | None) -> Shift:
    if rank is None:
        return NotedShift(notebook)
    failures = Failures(folder, options.engine.attempts)
    if rank.leads:
        failures.forget()
    return SharedShift(notebook, failures, rank.index, rank.count, closes=rank.leads)


class _Both:
    """Progress for this process's notes and for the screen."""

    def __init__(self, notebook: Notebook, sink: ProgressSink | None) -> None:
        self._notebook, self._sink = notebook, sink

    def __call__(self, steps: int = 1) -> None:
        self._notebook.advance(steps)
        if self._sink is not None:
            self._sink(steps)

    def set_total(self, total: int) -> None:
        self._notebook.changes(ahead=total)
        if self._sink is not None:
            self._sink.set_total(total)


def _await_close(writer: RunWriter, items: Items) -> None:
    """Wait for the rank that leads to close the run; do it ourselves where it does not."""
    for _ in range(int(_CLOSING_S / 0.1)):
        if writer.folder.exists(COMPLETE) or not writer.folder.exclusive:
            break
        time.sleep(0.1)
    finish_or_say(writer, items)


def _in_memory(job: Job, progress: ProgressSink | None, extend: bool) -> Run:
    if extend:
        raise UserInputError("extend adds to the run in a folder: give out, after run.save(out) if need be")
    local = _local(job, progress, progress)
    _announce(progress, [(job.spec, unit) for unit in job.units])
    parts = {unit.key(): begin(job.spec, unit, job.model, local)() for unit in job.units}
    return memory_run(joined(list(parts.values())), job.spec.to_json(), parts)


def _announce(progress: ProgressSink | None, items: Iterable[tuple[RunSpec, Unit]]) -> None:
    if progress is not None:
        progress.set_total(ahead(items))


def ahead(items: Iterable[tuple[RunSpec, Unit]]) -> int:
    """Return how many progress steps the units take at most."""
    return sum(reveals_ahead(spec, unit) for spec, unit in items)


def joined(parts: list[Tables]) -> Tables:
    """Return the tables of several units as one."""
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _local(job: Job, progress: ProgressSink | None, screen: ProgressSink | None) -> Local:
    """Return what only this process has; ``screen`` is where texts are shown, if it can show them."""
    by_spec = {policy.spec: policy for policy in job.orders}
    measures = job.spec.kind == "measure"  # a few short texts, whose anchor is the model's own
    limit = None if measures else BatchLimit.suggested(job.model, job.longest)
    return Local(by_spec, limit, progress, screen.show_canvas if isinstance(screen, ShowsCanvas) else None)
