"""Starts and supervises workers in other processes, and replaces workers that end or hang.

The supervisor is the same for processes of this machine (``ProcessPool``) and for Ray actors. Workers claim
their units through the store and write their state into it, so nothing is lost if the driver dies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Protocol

from orderlens import errors
from orderlens.errors import OrderLensError, WorkersLostError
from orderlens.runs.loop import finish_or_report
from orderlens.runs.options import ProgressSink, ShowsWorkers
from orderlens.runs.worker import WorkerResult, WorkerSlot, WorkerTask, work, worker_name
from orderlens.runs.worker_log import Failures, WorkerState, pace, read_states
from orderlens.store.protocol import Folder
from orderlens.store.records import stem, unit_file
from orderlens.store.writer import open_writer

MOST_RESTARTS = 3
"""Maximum number of restarts of a slot in a row without a committed unit."""
LOADING_S = 1800.0
"""Minimum seconds that a worker is given to start and load its model."""
_GRACE_S = 3.0
_CROWD = 100
"""Number of workers above which the driver checks less often; each check reads all states."""
_PATIENCE_S = 10.0
"""Seconds that workers are given to stop before they are killed."""


class WorkerPool(Protocol):
    """Workers that can be started, checked and stopped; ``place`` is the 0-based slot."""

    def start(self, place: int, name: str) -> None:
        """Start a worker with a name."""

    def result(self, place: int) -> WorkerResult | None:
        """Return the result of a worker that ended; None while it runs."""

    def kill(self, place: int) -> None:
        """Kill a worker that hangs."""

    def stop(self) -> None:
        """Stop all workers; kill those that do not stop in time."""


@dataclass(slots=True)
class _Watch:
    """The driver's record of one slot."""

    name: str
    open: bool = True
    restarts: int = 0
    last: tuple[object, ...] = ()
    since: float = field(default_factory=time.monotonic)


class Supervisor:
    """Keeps a pool of workers running until every unit is committed or set aside.

    Args:
        pool: the workers.
        slots: number of workers.
        task: the task of all workers.
        folder: the run.
        stall_s: seconds without progress after which a worker is killed.
        progress: progress display; may also show the state of each worker.
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
        self._last_error = ""
        self._number = slots
        self._nothing_left: float | None = None

    def run(self) -> None:
        """Start all workers, supervise them, and close the run.

        Raises:
            UnitsFailedError: units were set aside.
            WorkersLostError: all workers died repeatedly.
            OrderLensError: an error that restarting cannot solve, such as a full disk or other weights.
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
        """Whether no unit is left and the workers had time to stop."""
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
        elif result.kind:  # one of our errors: every worker would fail in the same way
            raise _as_raised(result)
        else:
            self._replace(place, watch, state, result)

    def _hangs(self, watch: _Watch, state: WorkerState | None) -> bool:
        """Whether a worker made no progress for too long; waiting for other workers does not count."""
        seen = () if state is None else (state.state, state.unit, state.tokens, state.units, state.failures)
        if seen != watch.last or (state is not None and state.state == "waiting"):
            watch.last, watch.since = seen, self._clock()
        loading = state is None or state.state == "loading"
        return self._clock() - watch.since > (max(self._stall_s, LOADING_S) if loading else self._stall_s)

    def _replace(self, place: int, watch: _Watch, state: WorkerState | None, result: WorkerResult) -> None:
        """Start another worker, and count a failed attempt for the unit of the lost one."""
        self._last_error = result.error or ""
        if state is not None and state.unit is not None:
            unit = self._task.units[state.unit][1]
            ids = tuple(str(sample["id"]) for sample in unit["samples"])
            self._failures.record(
                state.unit, f"worker lost: {result.error}", watch.name, result.traceback, ids
            )
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
        with open_writer(self._task.out, self._task.stored_spec, lease_s=self._task.lease_s) as writer:
            left = set(writer.pending(self._task.units))
            aside = self._failures.set_aside()
            lost = [key for key in left if stem(key) not in aside]
            if lost:
                raise WorkersLostError(
                    f"all workers died and {len(lost)} of {len(self._task.units)} units are left (last: "
                    f"{self._last_error}); committed units are kept in {self._folder.label}, see its folder "
                    "logs; the same command resumes the run"
                )
            finish_or_report(writer, self._task.units)


def _as_raised(result: WorkerResult) -> OrderLensError:
    """Return a worker's error as an exception of its class."""
    kind = getattr(errors, result.kind, OrderLensError)
    return kind(result.error) if issubclass(kind, OrderLensError) else OrderLensError(result.error)


@dataclass(slots=True)
class _Process:
    process: BaseProcess
    answer: Connection


class ProcessPool:
    """A pool of spawned processes.

    Args:
        task: the task of all workers.
        devices: device of each slot; None leaves the choice to the model.
        threads: CPU threads per worker.
    """

    def __init__(self, task: WorkerTask, devices: Sequence[str | None], threads: int) -> None:
        self._task, self._devices, self._threads = task, devices, threads
        self._context = multiprocessing.get_context("spawn")  # a forked CUDA context does not work
        self._workers: dict[int, _Process] = {}

    def start(self, place: int, name: str) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        slot = WorkerSlot(name, place, len(self._devices), self._devices[place])
        process = self._context.Process(target=_main, args=(self._task, slot, theirs), name=name)
        with _environment(OMP_NUM_THREADS=str(self._threads), OMP_WAIT_POLICY="PASSIVE"), _without_script():
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
            pass  # it died before it sent a result
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
    """Set environment variables for the processes started inside the block."""
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


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide the caller's script from processes started inside the block, which would run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _main(task: WorkerTask, slot: WorkerSlot, answer: Connection) -> None:
    """Main function of a worker process; Ctrl-C reaches it too, but only the driver handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True, name="orderlens-parent").start()
    answer.send(work(task, slot))


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(143)


def _end_with_parent() -> None:
    """End this process when the driver is gone, so that its claims become free."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
