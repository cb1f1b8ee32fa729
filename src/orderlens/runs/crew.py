"""Looking after a crew of workers: who ended, who hangs, what is done.

The same for processes and for Ray actors; a ``Crew`` starts and stops them. Workers find their units through
the store and write down what they do there, so nothing is handed out here, and a driver that dies loses
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orderlens import errors
from orderlens.errors import OrderLensError, WorkersLostError
from orderlens.runs.execute import finish_or_say
from orderlens.runs.failures import Failures
from orderlens.runs.options import ProgressSink, ShowsWorkers
from orderlens.runs.worker import Brief, Ending, worker_name
from orderlens.runs.worker_log import State, pace, read_states
from orderlens.store.protocol import Folder
from orderlens.store.records import stem, unit_file
from orderlens.store.writer import open_writer

MOST_RESTARTS = 3
"""How often a seat is filled again in a row without a unit committed in between."""
LOADING_S = 1800.0
"""Seconds that a worker may take to start and load its model, at least."""
_GRACE_S = 3.0
_CROWD = 100
"""Workers from which the driver looks less often: each look reads all their states."""


class Crew(Protocol):
    """Workers that can be started, looked at and stopped; ``place`` is the 0-based seat."""

    def start(self, place: int, name: str) -> None:
        """Start a worker under a name."""

    def ending(self, place: int) -> Ending | None:
        """Return how the worker ended; None while it lives."""

    def kill(self, place: int) -> None:
        """End a worker that does not answer, at once."""

    def stop(self) -> None:
        """End all workers: first ask, then kill."""


@dataclass(slots=True)
class _Watch:
    """What the driver knows about one seat."""

    name: str
    open: bool = True
    restarts: int = 0
    last: tuple[object, ...] = ()
    since: float = field(default_factory=time.monotonic)


class Supervisor:
    """Keeps a crew at work until every unit is committed or set aside.

    Args:
        crew: the workers.
        seats: how many.
        brief: what they were told.
        folder: the run.
        stall_s: seconds without progress after which a worker is killed.
        progress: is told each advance, and what the workers do where it can show that.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        crew: Crew,
        seats: int,
        brief: Brief,
        folder: Folder,
        stall_s: float,
        progress: ProgressSink | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew, self._brief, self._folder, self._clock = crew, brief, folder, clock
        self._stall_s, self._progress = stall_s, progress
        self._failures = Failures(folder, brief.attempts)
        self._watches = [_Watch(worker_name(brief.session, place)) for place in range(seats)]
        self._shown = 0
        self._last_words = ""
        self._number = seats
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
                self._crew.start(place, watch.name)
            while any(watch.open for watch in self._watches) and not self._over():
                time.sleep(pace(self._folder) / 2 * max(1.0, len(self._watches) / _CROWD))
                self._look()
        finally:
            self._crew.stop()
        self._show(read_states(self._folder, self._brief.session))
        self._close()

    def _over(self) -> bool:
        """Whether nothing is left and workers had time to say so; some may never have got a place."""
        aside = self._failures.set_aside()
        names = set(self._folder.names("units"))
        if any(unit_file(key) not in names and stem(key) not in aside for key in self._brief.units):
            self._nothing_left = None
            return False
        self._nothing_left = self._nothing_left or self._clock()
        return self._clock() - self._nothing_left > _GRACE_S

    def _look(self) -> None:
        states = read_states(self._folder, self._brief.session)
        by_name = {state.name: state for state in states}
        for place, watch in enumerate(self._watches):
            if watch.open:
                self._check(place, watch, by_name.get(watch.name))
        self._show(states)

    def _check(self, place: int, watch: _Watch, state: State | None) -> None:
        ending = self._crew.ending(place)
        if ending is None:
            if not self._hangs(watch, state):
                return
            self._crew.kill(place)
            ending = Ending(f"no progress for {self._stall_s:g} s, killed")
        if ending.error is None:
            watch.open = False
        elif ending.kind:  # an error with a remedy is the same for every worker
            raise _as_raised(ending)
        else:
            self._replace(place, watch, state, ending)

    def _hangs(self, watch: _Watch, state: State | None) -> bool:
        """Waiting for others is no hanging: they may compute a long unit. Loading has a time of its own."""
        seen = () if state is None else (state.state, state.unit, state.tokens, state.units, state.failures)
        if seen != watch.last or (state is not None and state.state == "waiting"):
            watch.last, watch.since = seen, self._clock()
        loading = state is None or state.state == "loading"
        return self._clock() - watch.since > (max(self._stall_s, LOADING_S) if loading else self._stall_s)

    def _replace(self, place: int, watch: _Watch, state: State | None, ending: Ending) -> None:
        """Start another worker; the unit that the lost one held has had an attempt."""
        self._last_words = ending.error or ""
        if state is not None and state.unit is not None:
            unit = self._brief.units[state.unit][1]
            ids = tuple(str(sample["id"]) for sample in unit["samples"])
            self._failures.note(state.unit, f"worker lost: {ending.error}", watch.name, ending.traceback, ids)
        useful = state is not None and state.units > 0
        watch.restarts = 0 if useful else watch.restarts + 1
        if watch.restarts > MOST_RESTARTS:
            watch.open = False
            return
        watch.name, self._number = worker_name(self._brief.session, self._number), self._number + 1
        watch.last, watch.since = (), self._clock()
        self._crew.start(place, watch.name)

    def _show(self, states: Sequence[State]) -> None:
        done = sum(state.tokens for state in states)
        if self._progress is not None and done > self._shown:
            self._progress(done - self._shown)
            self._shown = done
        if isinstance(self._progress, ShowsWorkers):
            names = {watch.name for watch in self._watches}
            self._progress.show_workers([state for state in states if state.name in names])

    def _close(self) -> None:
        with open_writer(self._brief.out, self._brief.stated, lease_s=self._brief.lease_s) as writer:
            left = set(writer.pending(self._brief.units))
            aside = self._failures.set_aside()
            lost = [key for key in left if stem(key) not in aside]
            if lost:
                raise WorkersLostError(
                    f"all workers died and {len(lost)} of {len(self._brief.units)} units are left (last: "
                    f"{self._last_words}); what is committed is kept in {self._folder.label}, see its folder "
                    "logs; the same command goes on"
                )
            finish_or_say(writer, self._brief.units)


def _as_raised(ending: Ending) -> OrderLensError:
    """Return a worker's error as it would have been raised here."""
    kind = getattr(errors, ending.kind, OrderLensError)
    return kind(ending.error) if issubclass(kind, OrderLensError) else OrderLensError(ending.error)
