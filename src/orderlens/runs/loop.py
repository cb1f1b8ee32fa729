"""The worker loop: go through the units of a run, alone or as one of several workers.

What is left is found in the store, so workers need no coordinator: each claims a unit, computes it, commits
it and looks again. A thread sorts, packs and syncs one unit while the next is computed. The claim on a unit
is held until it is committed: whole units or nothing. The module does not depend on what a unit computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from orderlens.errors import StorageError, UnitsFailedError
from orderlens.runs.worker_log import read_failures
from orderlens.store.leases import Lease
from orderlens.store.records import FAILED, stem
from orderlens.store.writer import RunWriter

Tables: TypeAlias = Mapping[str, pa.Table]
Computed: TypeAlias = Tables | Callable[[], Tables]
"""The tables of a unit, or what waits for them: it is called in the writing thread."""
AHEAD = 2
"""Units that may wait for their commit: one that is written, one that is ready."""
Payload = TypeVar("Payload")
_MISSES = 3
"""Units in a row that others took first, after which a worker looks at what is left."""
_WATCHED = 8
"""Claims of others that a waiting worker looks into at a time."""
_CROWD = 50
"""Workers from which each looks less often and into fewer claims: together they still see all of them."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
"""Pauses of a waiting worker double from the one to the other: it never waits twice as long as it had to."""


class WorkerRole:
    """How a worker takes part; this one works alone: it closes the run, and the first failure ends the work.

    Attributes:
        place: the worker's number among those that start together.
        count: how many these are. Units are dealt out like cards, each worker takes its own first and then
            those of others, so that they seldom ask for the same one.
        closes: whether it closes the run when all units are committed. One that does not trusts that the
            records of others are sound.
    """

    place: int = 0
    count: int = 1
    closes: bool = True

    def begins(self, key: str) -> None:
        """Be told that a unit is taken up."""

    def waits(self) -> None:
        """Be told that others hold all units that are left."""

    def ends(self, key: str) -> None:
        """Be told that a unit is committed."""

    def fails(self, key: str, payload: Any, error: Exception) -> None:
        """Decide about a failure: return to go on with other units."""
        raise error

    def set_aside(self) -> set[str]:
        """Return the units (as file stems) that are not to be tried again."""
        return set()


def execute(
    writer: RunWriter,
    units: Mapping[str, Payload],
    work: Callable[[Payload], Computed],
    role: WorkerRole | None = None,
) -> None:
    """Compute and commit units until every one is committed by somebody or set aside, then finish the run.

    A worker begins with its own share and asks nobody: whoever creates a unit's first claim has it. Only when
    it is through with that does it look at what others left. While a unit is written, the next is computed.

    Args:
        writer: this worker's writer.
        units: unit key → what ``work`` needs.
        work: computes the tables of one unit, or begins to and returns what waits for them; depends on its
            payload only.
        role: how the work is shared with others; None works alone.

    Raises:
        UnitsFailedError: units were set aside; everything else is committed.
    """
    mine, pause = role or WorkerRole(), 0.0
    dealt, own = _dealt(list(units), mine.place, mine.count)
    left = writer.pending(dealt) if mine.closes else [key for key in dealt if key not in writer.done]
    claims: Iterable[Lease | None] = map(writer.take, [key for key in left if key in own])
    while left:
        if _attempt_each(writer, claims, units, work, mine):
            pause = 0.0
        else:
            pause = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S, writer.lease_s / 4)
            mine.waits()
            if _rests(writer, units, mine, pause):
                return
        left = _open_units(writer, left, mine)
        claims = _claims(writer, left, mine)
    if mine.closes:
        finish_or_say(writer, units)


def _dealt(keys: list[str], place: int, count: int) -> tuple[list[str], set[str]]:
    """Return all units, the worker's own share first, then those of the workers after it; and that share."""
    shares = [keys[(place + turn) % count :: count] for turn in range(count)]
    return [key for share in shares for key in share], set(shares[0])


def _rests(writer: RunWriter, keys: Iterable[str], role: WorkerRole, pause: float) -> bool:
    """Wait before the next look at what is left; say whether somebody closed the run meanwhile.

    The more workers there are, the longer each waits: together they look often enough. The end of the run,
    which is one small file, is asked for more often.
    """
    crowd = 1.0 if role.closes else max(1.0, role.count / _CROWD)
    # No two workers ask at the same moment again and again: each has a factor of its own, 0.75 to 1.25.
    rest = pause * crowd * (0.75 + 0.5 * (0.618034 * role.place % 1))
    while rest > 1.25 * _LONGEST_PAUSE_S:
        time.sleep(_LONGEST_PAUSE_S)
        rest -= _LONGEST_PAUSE_S
        if writer.finished(keys):
            return True
    time.sleep(rest)
    return False


def finish_or_say(writer: RunWriter, keys: Iterable[str]) -> None:
    """Finish the run, or say which units failed.

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
        f"(samples {shown}) with {first.error}; everything else is kept in {writer.folder.label}, the "
        f"tracebacks are in its folder {FAILED}; the same command tries these units again"
    )


def _open_units(writer: RunWriter, keys: Iterable[str], role: WorkerRole) -> list[str]:
    """Return what is neither committed nor set aside. Whoever closes the run also reads the last records."""
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
    """Compute what is claimed, until others are faster or nothing is left; return how many were tried."""
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
    """Yield a claim, or None where another worker has it, for units in turn: free ones as far as we know.

    Where all are held, some claims are looked into: an owner may be dead, or its work may have failed.
    """
    held = writer.held()
    free = [key for key in left if stem(key) not in held]
    yield from map(writer.take, free)
    if not free:
        watched = max(1, min(_WATCHED, _WATCHED * _CROWD // role.count))
        first = watched * role.place % len(left)
        for key in [*left[first:], *left[:first]][:watched]:
            claim = writer.claim(key, held[stem(key)])
            if claim is not None and stem(key) in role.set_aside():  # it failed elsewhere since we looked
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
    """Compute one unit and hand it on to be committed."""
    try:
        role.begins(claim.key)
        computed = work(payload)
    except BaseException as error:  # noqa: BLE001  whatever a plug-in or a model raises is the unit's failure
        with claim:
            say_failed(role, claim, payload, error)
    else:
        commits.add(claim, payload, computed)


class Commits:
    """The commits under way of one worker; leaving the context waits for them, also after an error."""

    def __init__(self, writer: RunWriter, role: WorkerRole) -> None:
        self._writer, self._role = writer, role
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="orderlens-commits")
        self._under_way: deque[tuple[Lease, Any, Future[bool]]] = deque()

    def add(self, claim: Lease, payload: Any, computed: Computed) -> None:
        """Commit a unit in turn; waits while ``AHEAD`` others do."""
        job = self._thread.submit(self._commit, claim.key, computed)
        self._under_way.append((claim, payload, job))
        self.settle(AHEAD)

    def _commit(self, key: str, computed: Computed) -> bool:
        return self._writer.commit(key, computed() if callable(computed) else computed)

    def settle(self, most: int = 0) -> None:
        """Tell how units ended, in turn, until no more than ``most`` are under way and the first is not done.

        Raises:
            StorageError: the store cannot be written to, which is no failure of the unit.
        """
        while self._under_way and (len(self._under_way) > most or self._under_way[0][2].done()):
            claim, payload, job = self._under_way[0]
            job.exception()  # wait here: an interrupt leaves the unit in the line
            self._under_way.popleft()
            with claim:
                self._end(claim, payload, job)

    def _end(self, claim: Lease, payload: Any, job: Future[bool]) -> None:
        error = job.exception()
        if error is None:
            self._role.ends(claim.key)
        else:
            say_failed(self._role, claim, payload, error)

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
            for claim, _, job in self._under_way:  # something else went wrong: what is computed is kept
                with claim:
                    if job.exception() is None:
                        self._role.ends(claim.key)


def say_failed(role: WorkerRole, claim: Lease, payload: Any, error: BaseException) -> None:
    """Tell that a unit failed, and leave it to be tried again.

    An interrupt, and a store that cannot be written to, are no failures of the unit: they are raised.
    """
    if isinstance(error, StorageError) or not isinstance(error, Exception):
        raise error
    role.fails(claim.key, payload, error)
    claim.fail()
