"""Units that are computed and on their way into the store, written by a thread of their own.

While it sorts, packs and syncs one unit, the next one is computed. The claim on a unit is held until it is
committed, and what a commit means does not change: whole units or nothing. Knows neither models nor what a
unit computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from orderlens.errors import StorageError
from orderlens.store.leases import Lease
from orderlens.store.writer import RunWriter

Tables: TypeAlias = Mapping[str, pa.Table]
Computed: TypeAlias = Tables | Callable[[], Tables]
"""The tables of a unit, or what waits for them: it is called in the writing thread."""
AHEAD = 2
"""Units that may wait for their commit: one that is written, one that is ready."""


class Told(Protocol):
    """Who is told how a unit ended."""

    def ends(self, key: str) -> None:
        """Be told that a unit is committed."""
        ...

    def fails(self, key: str, payload: Any, error: Exception) -> None:
        """Decide about a failure: return to go on with other units."""
        ...


class Commits:
    """The commits under way of one worker; leaving the context waits for them, also after an error."""

    def __init__(self, writer: RunWriter, told: Told) -> None:
        self._writer, self._told = writer, told
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
            self._told.ends(claim.key)
        else:
            say_failed(self._told, claim, payload, error)

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
                        self._told.ends(claim.key)


def say_failed(told: Told, claim: Lease, payload: Any, error: BaseException) -> None:
    """Tell that a unit failed, and leave it to be tried again.

    An interrupt, and a store that cannot be written to, are no failures of the unit: they are raised.
    """
    if isinstance(error, StorageError) or not isinstance(error, Exception):
        raise error
    told.fails(claim.key, payload, error)
    claim.fail()
