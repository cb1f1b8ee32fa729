"""The worker loop: claims, computes and commits the units of a run, alone or next to other workers.

Workers need no coordinator, because the store records which units are claimed and committed. A thread writes
one unit while the next is computed. A claim lasts until the commit, so only complete units are stored. Of a
unit only the ids of its samples are read, for the record of a failure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from traceback import format_exception
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from orderlens.errors import StorageError, UnitsFailedError, one_line
from orderlens.runs.worker_log import Failures, WorkerLog, read_failures
from orderlens.store.leases import Lease
from orderlens.store.records import FAILED, stem
from orderlens.store.writer import RunWriter

Tables: TypeAlias = Mapping[str, pa.Table]
Computed: TypeAlias = Tables | Callable[[], Tables]
"""The tables of a unit, or a function that builds them; it is called in the writing thread."""
MAX_QUEUED = 2
"""Maximum number of computed units that are not committed yet: one being written, one ready."""
Payload = TypeVar("Payload")
_MISSES = 3
"""Failed claims in a row after which a worker lists the remaining units again."""
_WATCHED = 8
"""Claims of other workers that a waiting worker checks per round."""
_CROWD = 50
"""Number of workers above which each checks less often and fewer claims; together they check all."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
"""First and longest pause of a waiting worker; each pause is twice the one before."""


class WorkerRole:
    """How a worker shares a run. This base class works alone: it closes the run and stops at a failure.

    Attributes:
        place: 0-based number of the worker.
        count: number of workers. Each has its own share of the units and computes it first, so that two
            workers rarely claim the same unit.
        closes: whether it closes the run when all units are committed; then it also checks all records.
    """

    place: int = 0
    count: int = 1
    closes: bool = True

    def on_begin(self, key: str) -> None:
        """Called when the worker starts a unit."""

    def on_wait(self) -> None:
        """Called when other workers hold all remaining units."""

    def on_commit(self, key: str) -> None:
        """Called when a unit is committed."""

    def on_failure(self, key: str, payload: Any, error: Exception) -> None:
        """Called when a unit fails; return to continue with other units, or raise."""
        raise error

    def set_aside(self) -> set[str]:
        """Return the units (as file stems) that are not tried again."""
        return set()


class LoggedRole(WorkerRole):
    """Works alone and logs its state; the first failure stops it."""

    def __init__(self, log: WorkerLog) -> None:
        self._log = log

    def on_begin(self, key: str) -> None:
        self._log.set_state("working", unit=key)

    def on_wait(self) -> None:
        if self._log.state.state != "waiting":
            self._log.set_state("waiting", unit=None)

    def on_commit(self, key: str) -> None:
        """Count the unit; the worker may already compute the next one."""
        state = self._log.state
        unit = None if state.unit == key else state.unit
        self._log.update(unit=unit, units=state.units + 1)
        self._log.log_event("committed", unit=key, tokens=state.tokens)


class SharedRole(LoggedRole):
    """One of several workers: records failures and continues with other units."""

    def __init__(self, log: WorkerLog, failures: Failures, place: int, count: int, *, closes: bool) -> None:
        super().__init__(log)
        self.place, self.count, self.closes, self._failures = place, count, closes, failures

    def on_failure(self, key: str, payload: Any, error: Exception) -> None:
        trace, name = "".join(format_exception(error)), self._log.state.name
        line = f"{type(error).__name__}: {one_line(error)}"
        ids = tuple(sample.id for sample in payload[1].samples)
        self._failures.record(key, line, name, trace, ids)
        self._log.log_event("failed", unit=key, error=line, samples=list(ids), traceback=trace)
        self._log.set_state("working", unit=None, failures=self._log.state.failures + 1)

    def set_aside(self) -> set[str]:
        return self._failures.set_aside()


def execute(
    writer: RunWriter,
    units: Mapping[str, Payload],
    work: Callable[[Payload], Computed],
    role: WorkerRole | None = None,
) -> None:
    """Compute and commit units until all are committed or set aside, then finish the run.

    A worker first claims its share of the units, then the remaining units of others. While a unit is
    written, the next is computed.

    Args:
        writer: this worker's writer.
        units: unit key → argument of ``work``.
        work: computes the tables of one unit, or returns a function that builds them.
        role: how the worker shares the run; None works alone.

    Raises:
        UnitsFailedError: units were set aside; all others are committed.
    """
    mine, pause = role or WorkerRole(), 0.0
    dealt, own = _dealt(list(units), mine.place, mine.count)
    left = writer.pending(dealt) if mine.closes else [key for key in dealt if key not in writer.done]
    claims: Iterable[Lease | None] = map(writer.claim_new, [key for key in left if key in own])
    while left:
        if _attempt_each(writer, claims, units, work, mine):
            pause = 0.0
        else:
            pause = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S, writer.lease_s / 4)
            mine.on_wait()
            if _rests(writer, units, mine, pause):
                return
        left = _open_units(writer, left, mine)
        claims = _claims(writer, left, mine)
    if mine.closes:
        finish_or_report(writer, units)


def _dealt(keys: list[str], place: int, count: int) -> tuple[list[str], set[str]]:
    """Return all units with the worker's own share first, and that share as a set."""
    shares = [keys[(place + turn) % count :: count] for turn in range(count)]
    return [key for share in shares for key in share], set(shares[0])


def _rests(writer: RunWriter, keys: Iterable[str], role: WorkerRole, pause: float) -> bool:
    """Wait before the next check; return whether another worker closed the run in the meantime.

    The pause grows with the number of workers. Whether the run is closed, which is one small file, is checked
    more often.
    """
    crowd = 1.0 if role.closes else max(1.0, role.count / _CROWD)
    # Each worker has its own factor, 0.75 to 1.25, so that they do not check at the same moment.
    rest = pause * crowd * (0.75 + 0.5 * (0.618034 * role.place % 1))
    while rest > 1.25 * _LONGEST_PAUSE_S:
        time.sleep(_LONGEST_PAUSE_S)
        rest -= _LONGEST_PAUSE_S
        if writer.finished(keys):
            return True
    time.sleep(rest)
    return False


def finish_or_report(writer: RunWriter, keys: Iterable[str]) -> None:
    """Finish the run, or report which units failed.

    Raises:
        UnitsFailedError: units were set aside.
    """
    wanted = list(keys)
    missing = set(writer.pending(wanted))
    failed = [row for row in read_failures(writer.folder) if row.key in missing] if missing else []
    if not failed:
        writer.finish(wanted)
        return
    first = failed[0]
    shown = ", ".join(first.samples[:3]) + (", …" if len(first.samples) > 3 else "")
    raise UnitsFailedError(
        f"{len({row.key for row in failed})} of {len(wanted)} units failed and were set aside, the first one "
        f"(samples {shown}) with {first.error}; all others are kept in {writer.folder.label}, the "
        f"tracebacks are in its folder {FAILED}; the same command tries the failed units again"
    )


def _open_units(writer: RunWriter, keys: Iterable[str], role: WorkerRole) -> list[str]:
    """Return the units that are neither committed nor set aside."""
    left = writer.pending(keys, by_name=True)
    if not left and role.closes:
        left = writer.pending(keys)
    gone = role.set_aside() if left else set()
    return [key for key in left if stem(key) not in gone]


def _attempt_each(
    writer: RunWriter,
    claims: Iterable[Lease | None],
    units: Mapping[str, Payload],
    work: Callable[[Payload], Computed],
    role: WorkerRole,
) -> int:
    """Compute claimed units until none is left or several claims fail; return the number of attempts."""
    count = misses = 0
    with Commits(writer, role) as commits:
        for claim in claims:
            misses = 0 if claim else misses + 1
            if claim is not None:
                _attempt(commits, claim, units[claim.key], work, role)
                count += 1
            if misses >= _MISSES:
                break
    return count


def _claims(writer: RunWriter, left: list[str], role: WorkerRole) -> Iterator[Lease | None]:
    """Yield a claim per free unit, or None if another worker was faster.

    If no unit is free, some claims of others are checked: the owner may be dead, or its unit may have failed.
    """
    claimed = writer.claims()
    free = [key for key in left if stem(key) not in claimed]
    yield from map(writer.claim_new, free)
    if not free:
        watched = max(1, min(_WATCHED, _WATCHED * _CROWD // role.count))
        first = watched * role.place % len(left)
        for key in [*left[first:], *left[:first]][:watched]:
            claim = writer.claim(key, claimed[stem(key)])
            if claim is not None and stem(key) in role.set_aside():  # it failed elsewhere in the meantime
                claim.fail()
                claim = None
            yield claim


def _attempt(
    commits: Commits,
    claim: Lease,
    payload: Payload,
    work: Callable[[Payload], Computed],
    role: WorkerRole,
) -> None:
    """Compute one unit and queue it for its commit."""
    try:
        role.on_begin(claim.key)
        computed = work(payload)
    except BaseException as error:  # noqa: BLE001  any error of a plug-in or a model is a failure of the unit
        with claim:
            record_failure(role, claim, payload, error)
    else:
        commits.add(claim, payload, computed)


class Commits:
    """The pending commits of one worker; leaving the context waits for them, also after an error."""

    def __init__(self, writer: RunWriter, role: WorkerRole) -> None:
        self._writer, self._role = writer, role
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orderlens-commits")
        self._under_way: deque[tuple[Lease, Any, Future[bool]]] = deque()

    def add(self, claim: Lease, payload: Any, computed: Computed) -> None:
        """Queue a unit for its commit; waits while ``MAX_QUEUED`` others are pending."""
        job = self._thread.submit(self._commit, claim.key, computed)
        self._under_way.append((claim, payload, job))
        self.settle(MAX_QUEUED)

    def _commit(self, key: str, computed: Computed) -> bool:
        return self._writer.commit(key, computed() if callable(computed) else computed)

    def settle(self, most: int = 0) -> None:
        """Report finished commits in order, until at most ``most`` are pending and the first is not done.

        Raises:
            StorageError: the store cannot be written; the unit did not fail.
        """
        while self._under_way and (len(self._under_way) > most or self._under_way[0][2].done()):
            claim, payload, job = self._under_way[0]
            job.exception()  # wait here: an interrupt leaves the unit in the queue
            self._under_way.popleft()
            with claim:
                self._end(claim, payload, job)

    def _end(self, claim: Lease, payload: Any, job: Future[bool]) -> None:
        error = job.exception()
        if error is None:
            self._role.on_commit(claim.key)
        else:
            record_failure(self._role, claim, payload, error)

    def __enter__(self) -> Commits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.settle()
        finally:
            self._thread.shutdown()
            for claim, _, job in self._under_way:  # after another error: keep the computed units
                with claim:
                    if job.exception() is None:
                        self._role.on_commit(claim.key)


def record_failure(role: WorkerRole, claim: Lease, payload: Any, error: BaseException) -> None:
    """Report a failed unit and release its claim, so that it can be tried again.

    An interrupt, or a store that cannot be written, is not a failure of the unit and is raised.
    """
    if isinstance(error, StorageError) or not isinstance(error, Exception):
        raise error
    role.on_failure(claim.key, payload, error)
    claim.fail()
