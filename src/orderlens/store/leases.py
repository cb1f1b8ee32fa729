"""Leases: which worker computes which unit, and until when, without a common clock.

A lease is a file (in the run's folder ``claims/``) that its owner rewrites with a growing beat. Others watch
the beat with their own monotonic clock: unchanged for the stated time means dead, whatever the wall clocks
say. On the same Linux machine a dead process is noticed at once. A takeover creates the next attempt's file,
so only one of several rivals gets it. Leases only avoid double work; that rows are never doubled is the
commit's business.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from uuid import uuid4

from orderlens.errors import RunError, StorageError
from orderlens.store.process import is_dead, process_tag
from orderlens.store.protocol import Folder
from orderlens.store.records import stem

_log = logging.getLogger(__name__)
_FOLDER = "claims"
_MAINTENANCE = "~maintenance"


class Lease:
    """One leased unit; use as a context manager or call ``release``."""

    def __init__(self, book: LeaseBook, key: str, name: str) -> None:
        self.key = key
        self.name = name
        self._book = book

    def release(self) -> None:
        """Give the unit back (after its commit, or when the work failed)."""
        self._book.release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class _Sighting:
    name: str
    beat: object
    since: float


class LeaseBook:
    """The leases of one worker on one run, kept alive by a background thread."""

    def __init__(self, folder: Folder, lease_s: float) -> None:
        self._folder = folder
        self._lease = lease_s
        self._owner = uuid4().hex
        self._process = process_tag()
        self._held: dict[str, Lease] = {}
        self._seen: dict[str, _Sighting] = {}
        self._beat = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, key: str) -> Lease | None:
        """Lease ``key``, or return None when a live worker has it."""
        attempts = lease_files(self._folder, key)
        latest = max(attempts, default=-1)
        if latest >= 0 and not self._expired(key, attempts[latest]):
            return None
        name = f"{_FOLDER}/{stem(key)}.{latest + 1}.json"
        if not self._folder.create(name, self._content(key), durable=False):
            return None
        for old in attempts.values():
            self._folder.remove(old)
        lease = Lease(self, key, name)
        with self._lock:
            self._held[key] = lease
        self._start()
        return lease

    def _expired(self, key: str, name: str) -> bool:
        content = read_lease(self._folder, name)
        if content is not None and is_dead(content.get("process")):
            return True
        beat = None if content is None else (content.get("owner"), content.get("beat"))
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None or seen.name != name or seen.beat != beat:
            self._seen[key] = _Sighting(name, beat, now)
            return False
        return now - seen.since > self._lease_of(content)

    def _lease_of(self, content: dict[str, Any] | None) -> float:
        """Return the seconds that a lease states; our own where its file is damaged."""
        stated = None if content is None else content.get("lease_s")
        return float(stated) if isinstance(stated, int | float) else self._lease

    def _content(self, key: str) -> bytes:
        value = {
            "key": key,
            "owner": self._owner,
            "beat": self._beat,
            "lease_s": self._lease,
            "process": self._process,
        }
        return json.dumps(value).encode()

    def release(self, lease: Lease) -> None:
        """Stop renewing a lease and remove its file."""
        with self._lock:
            self._held.pop(lease.key, None)
            self._folder.remove(lease.name)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="orderlens-leases", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(self._lease / 4):
            self._beat += 1
            with self._lock:
                for lease in self._held.values():
                    self._renew_one(lease)

    def _renew_one(self, lease: Lease) -> None:
        try:
            self._folder.put(lease.name, self._content(lease.key), durable=False)
        except (StorageError, OSError) as error:  # the next beat may work; a lost lease costs work, not rows
            _log.warning("could not renew the lease on %s: %s", lease.key, error)

    def close(self) -> None:
        """Stop the thread and give back what is still held."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for lease in list(self._held.values()):
            self.release(lease)


@contextmanager
def maintenance(folder: Folder, lease_s: float = 60.0) -> Iterator[None]:
    """Hold the one lease under which a run is compacted or repaired.

    Raises:
        RunError: another process holds it.
    """
    book = LeaseBook(folder, lease_s)
    try:
        lease = book.acquire(_MAINTENANCE)
        if lease is None:
            raise RunError(
                f"{folder.label} is being compacted or repaired by another process; wait for it, or remove "
                f"{_FOLDER}/{stem(_MAINTENANCE)}.*.json if that process is dead"
            )
        with lease:
            yield
    finally:
        book.close()


def live_leases(folder: Folder) -> list[str]:
    """Return the lease files of workers that are not known to be dead (maintenance not counted)."""
    own = stem(_MAINTENANCE)
    names = [name for name in folder.sizes(_FOLDER) if leased_stem(name) not in (None, own)]
    contents = {name: read_lease(folder, name) for name in names}
    return [
        name
        for name, content in contents.items()
        if content is not None and not is_dead(content.get("process"))
    ]


def leased_stem(name: str) -> str | None:
    """Return the unit (as file stem) that a lease file is about; None for other files."""
    if not name.startswith(f"{_FOLDER}/") or not name.endswith(".json"):
        return None
    return name[len(_FOLDER) + 1 : -len(".json")].rpartition(".")[0]


def leased_stems(folder: Folder) -> set[str]:
    """Return the units (as file stems) that have a lease, whether its owner lives or not."""
    found = (leased_stem(name) for name in folder.sizes(_FOLDER))
    return {name for name in found if name is not None}


def lease_files(folder: Folder, key: str) -> dict[int, str]:
    """Return attempt → file name of the leases on ``key``."""
    start = f"{_FOLDER}/{stem(key)}."
    names = [name for name in folder.sizes(_FOLDER) if name.startswith(start) and name.endswith(".json")]
    numbers = {name: name[len(start) : -len(".json")] for name in names}
    return {int(number): name for name, number in numbers.items() if number.isdigit()}


def read_lease(folder: Folder, name: str) -> dict[str, Any] | None:
    """Return a lease's content; None when it is gone or cannot be read."""
    try:
        value = json.loads(folder.read(name))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
