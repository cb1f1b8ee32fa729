"""Workers in other processes: starting them, watching them, and replacing those that end or hang.

The supervision is the same for processes of this machine (``ProcessPool``) and for Ray actors. Workers find
their units through the store and write down there what they do, so nothing is handed out here, and a driver
that dies loses nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol

from orderlens import errors
from orderlens.errors import OrderLensError, WorkersLostError
from orderlens.runs.loop import finish_or_say
from orderlens.runs.options import ProgressSink, ShowsWorkers
from orderlens.runs.worker import WorkerResult, WorkerSlot, WorkerTask, work, worker_name
from orderlens.runs.worker_log import Failures, WorkerState, pace, read_states
from orderlens.store.protocol import Folder
from orderlens.store.records import stem, unit_file
from orderlens.store.writer import open_writer

MOST_RESTARTS = 3
"""How often a slot is filled again in a row without a unit committed in between."""
LOADING_S = 1800.0
"""Seconds that a worker may take to start and load its model, at least."""
_GRACE_S = 3.0
_CROWD = 100
"""Workers from which the driver looks less often: each look reads all their states."""
_PATIENCE_S = 10.0
"""Seconds that workers are given to finish what cannot be interrupted."""


class WorkerPool(Protocol):
    """Workers that can be started, looked at and stopped; ``place`` is the 0-based slot."""

    def start(self, place: int, name: str) -> None:
        """Start a worker under a name."""

    def result(self, place: int) -> WorkerResult | None:
        """Return how the worker ended; None while it lives."""

    def kill(self, place: int) -> None:
        """End a worker that does not answer, at once."""

    def stop(self) -> None:
        """End all workers: first ask, then kill."""


@dataclass(slots=True)
class _Watch:
    """What the driver knows about one slot."""

    name: str
    open: bool = True
    restarts: int = 0
    last: tuple[object, ...] = ()
    since: float = field(default_factory=time.monotonic)


class Supervisor:
    """Keeps a pool at work until every unit is committed or set aside.

    Args:
        pool: the workers.
        slots: how many.
        task: what they were told.
        folder: the run.
        stall_s: seconds without progress after which a worker is killed.
        progress: is told each advance, and what the workers do where it can show that.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pool: WorkerPool,
        slots: int,
        task: WorkerTask,
        folder: Folder,
        stall_s: float,
        progress: ProgressSink | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._task, self._folder, self._clock = pool, task, folder, clock
        self._stall_s, self._progress = stall_s, progress
        self._failures = Failures(folder, task.attempts)
        self._watches = [_Watch(worker_name(task.session, place)) for place in range(slots)]
        self._shown = 0
        self._last_words = ""
        self._number = slots
        self._nothing_left: float | None = None

    def run(self) -> None:
        """Start everybody, look after them, and close the run.

        Raises:
            UnitsFailedError: units were set aside.
            WorkersLostError: all workers died again and again.
            OrderLensError: what stopped a worker for good, such as a full disk or other weights.
        """
        try:
            for place, watch in enumerate(self._watches):
                self._pool.start(place, watch.name)
            while any(watch.open for watch in self._watches) and not self._over():
                time.sleep(pace(self._folder) / 2 * max(1.0, len(self._watches) / _CROWD))
                self._look()
        finally:
            self._pool.stop()
        self._show(read_states(self._folder, self._task.session))
        self._close()

    def _over(self) -> bool:
        """Whether nothing is left and workers had time to say so; some may never have got a place."""
        aside = self._failures.set_aside()
        names = set(self._folder.names("units"))
        if any(unit_file(key) not in names and stem(key) not in aside for key in self._task.units):
            self._nothing_left = None
            return False
        self._nothing_left = self._nothing_left or self._clock()
        return self._clock() - self._nothing_left > _GRACE_S

    def _look(self) -> None:
        states = read_states(self._folder, self._task.session)
        by_name = {state.name: state for state in states}
        for place, watch in enumerate(self._watches):
            if watch.open:
                self._check(place, watch, by_name.get(watch.name))
        self._show(states)

    def _check(self, place: int, watch: _Watch, state: WorkerState | None) -> None:
        result = self._pool.result(place)
        if result is None:
            if not self._hangs(watch, state):
                return
            self._pool.kill(place)
            result = WorkerResult(f"no progress for {self._stall_s:g} s, killed")
        if result.error is None:
            watch.open = False
        elif result.kind:  # an error with a remedy is the same for every worker
            raise _as_raised(result)
        else:
            self._replace(place, watch, state, result)

    def _hangs(self, watch: _Watch, state: WorkerState | None) -> bool:
        """Waiting for others is no hanging: they may compute a long unit. Loading has a time of its own."""
        seen = () if state is None else (state.state, state.unit, state.tokens, state.units, state.failures)
        if seen != watch.last or (state is not None and state.state == "waiting"):
            watch.last, watch.since = seen, self._clock()
        loading = state is None or state.state == "loading"
        return self._clock() - watch.since > (max(self._stall_s, LOADING_S) if loading else self._stall_s)

    def _replace(self, place: int, watch: _Watch, state: WorkerState | None, result: WorkerResult) -> None:
        """Start another worker; the unit that the lost one held has had an attempt."""
        self._last_words = result.error or ""
        if state is not None and state.unit is not None:
            unit = self._task.units[state.unit][1]
            ids = tuple(str(sample["id"]) for sample in unit["samples"])
            self._failures.note(state.unit, f"worker lost: {result.error}", watch.name, result.traceback, ids)
        useful = state is not None and state.units > 0
        watch.restarts = 0 if useful else watch.restarts + 1
        if watch.restarts > MOST_RESTARTS:
            watch.open = False
            return
        watch.name, self._number = worker_name(self._task.session, self._number), self._number + 1
        watch.last, watch.since = (), self._clock()
        self._pool.start(place, watch.name)

    def _show(self, states: Sequence[WorkerState]) -> None:
        done = sum(state.tokens for state in states)
        if self._progress is not None and done > self._shown:
            self._progress(done - self._shown)
            self._shown = done
        if isinstance(self._progress, ShowsWorkers):
            names = {watch.name for watch in self._watches}
            self._progress.show_workers([state for state in states if state.name in names])

    def _close(self) -> None:
        with open_writer(self._task.out, self._task.stated, lease_s=self._task.lease_s) as writer:
            left = set(writer.pending(self._task.units))
            aside = self._failures.set_aside()
            lost = [key for key in left if stem(key) not in aside]
            if lost:
                raise WorkersLostError(
                    f"all workers died and {len(lost)} of {len(self._task.units)} units are left (last: "
                    f"{self._last_words}); what is committed is kept in {self._folder.label}, see its folder "
                    "logs; the same command goes on"
                )
            finish_or_say(writer, self._task.units)


def _as_raised(result: WorkerResult) -> OrderLensError:
    """Return a worker's error as it would have been raised here."""
    kind = getattr(errors, result.kind, OrderLensError)
    return kind(result.error) if issubclass(kind, OrderLensError) else OrderLensError(result.error)


@dataclass(slots=True)
class _Process:
    process: BaseProcess
    answer: Connection


class ProcessPool:
    """A pool of spawned processes.

    Args:
        task: what all of them are told.
        devices: device of each slot; None leaves the choice to the model.
        threads: CPU threads of each.
    """

    def __init__(self, task: WorkerTask, devices: Sequence[str | None], threads: int) -> None:
        self._task, self._devices, self._threads = task, devices, threads
        self._context = multiprocessing.get_context("spawn")  # a forked CUDA context does not work
        self._workers: dict[int, _Process] = {}

    def start(self, place: int, name: str) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        slot = WorkerSlot(name, place, len(self._devices), self._devices[place])
        process = self._context.Process(target=_main, args=(self._task, slot, theirs), name=name)
        with _environment(OMP_NUM_THREADS=str(self._threads), OMP_WAIT_POLICY="PASSIVE"):
            process.start()
        theirs.close()
        self._workers[place] = _Process(process, ours)

    def result(self, place: int) -> WorkerResult | None:
        worker = self._workers[place]
        if worker.process.is_alive():
            return None
        worker.process.join()
        try:
            if worker.answer.poll():
                found: WorkerResult = worker.answer.recv()
                return found
        except (EOFError, OSError):
            pass  # it died before it could say anything
        code = worker.process.exitcode or 0
        return WorkerResult(f"signal {-code}" if code < 0 else f"exit code {code}")

    def kill(self, place: int) -> None:
        self._workers[place].process.kill()
        self._workers[place].process.join()

    def stop(self) -> None:
        for worker in self._workers.values():
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(_PATIENCE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.answer.close()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for processes started meanwhile: threads are counted when torch is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _main(task: WorkerTask, slot: WorkerSlot, answer: Connection) -> None:
    """Run in the new process. Ctrl-C reaches the whole group: only the driver decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True, name="orderlens-parent").start()
    answer.send(work(task, slot))


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(143)


def _end_with_parent() -> None:
    """A driver that was killed cannot stop its workers; its claims are then free at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
