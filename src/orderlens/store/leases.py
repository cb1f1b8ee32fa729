"""Leases: which worker computes which unit, and until when, without a common clock.

A lease is a file in the run's folder ``claims/`` that its owner rewrites with an increasing counter, the
beat. Other workers watch the beat with their own monotonic clocks. If it does not change for the stated time,
the owner counts as dead. A dead process on the same Linux machine is detected immediately. A takeover creates
the file of the next attempt, so only one worker succeeds. The file of a committed unit stays until the run is
finished: a worker that creates the first file of a unit knows that no worker had it before, with one request
to an object store. Leases only avoid double work; the commit protocol guarantees that no row is stored twice.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from uuid import uuid4

from orderlens.common.machine import is_dead, process_tag
from orderlens.errors import RunError, StorageError
from orderlens.store.protocol import Folder
from orderlens.store.records import stem

_log = logging.getLogger(__name__)
_FOLDER = "claims"
_MAINTENANCE = "~maintenance"


class Lease:
    """One leased unit; use as a context manager or call ``release``.

    Attributes:
        key: the unit.
        name: the file.
        older: files of earlier attempts at the unit.
    """

    def __init__(self, book: LeaseBook, key: str, name: str, older: tuple[str, ...] = ()) -> None:
        self.key = key
        self.name = name
        self.older = older
        self._book = book

    def release(self) -> None:
        """Give the unit back; no effect after a commit or failure."""
        self._book.release(self)

    def fail(self) -> None:
        """Mark the work as failed: another worker may retry the unit."""
        self._book.fail(self)

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
    """The leases of one worker on one run, renewed by a background thread."""

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

    def acquire_new(self, key: str) -> Lease | None:
        """Lease a unit that no worker had before, or return None; one request, without a listing."""
        return self._create(key, {})

    def acquire(self, key: str, names: Iterable[str] | None = None) -> Lease | None:
        """Lease ``key``, or return None if a live worker has it.

        Args:
            key: the unit.
            names: a recent listing of the lease files; None lists them.
        """
        attempts = _attempts(self._folder.names(_FOLDER) if names is None else names, key)
        if attempts and not self._expired(key, attempts[max(attempts)]):
            return None
        return self._create(key, attempts)

    def _create(self, key: str, attempts: dict[int, str]) -> Lease | None:
        """Write the file of the next attempt. Earlier files stay, so that ``acquire_new`` fails."""
        name = f"{_FOLDER}/{stem(key)}.{max(attempts, default=-1) + 1}.json"
        if not self._folder.create(name, self._content(key), durable=False):
            return None
        lease = Lease(self, key, name, tuple(attempts.values()))
        with self._lock:
            self._held[key] = lease
        self._start()
        return lease

    def _expired(self, key: str, name: str) -> bool:
        content = read_lease(self._folder, name)
        if content is not None and (is_dead(content.get("process")) or self._is_abandoned(key, content)):
            return True
        beat = None if content is None else (content.get("owner"), content.get("beat"))
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None or seen.name != name or seen.beat != beat:
            self._seen[key] = _Sighting(name, beat, now)
            return False
        return now - seen.since > self._lease_of(content)

    def _is_abandoned(self, key: str, content: dict[str, Any]) -> bool:
        """Return whether its owner has stopped: the work failed, or this worker held it before a damage."""
        mine = content.get("owner") == self._owner and key not in self._held
        return mine or content.get("failed") is True

    def _lease_of(self, content: dict[str, Any] | None) -> float:
        """Return the duration that a lease states, in seconds; this worker's if its file is damaged."""
        stated = None if content is None else content.get("lease_s")
        return float(stated) if isinstance(stated, int | float) else self._lease

    def _content(self, key: str, **more: object) -> bytes:
        value = {
            "key": key,
            "owner": self._owner,
            "beat": self._beat,
            "lease_s": self._lease,
            "process": self._process,
            **more,
        }
        return json.dumps(value).encode()

    def release(self, lease: Lease) -> None:
        """Stop renewing a lease and remove its files, the current one last to keep other workers out."""
        if self._stop_renewing(lease.key) is lease:
            self._folder.remove_many([*lease.older, lease.name])

    def fail(self, lease: Lease) -> None:
        """Stop renewing a lease and mark it as failed, so that the unit may be retried."""
        if self._stop_renewing(lease.key) is lease:
            self._folder.put(lease.name, self._content(lease.key, failed=True), durable=False)

    def keep(self, key: str) -> None:
        """Stop renewing the lease of a committed unit; its file stays, so that no worker leases it again."""
        self._stop_renewing(key)

    def _stop_renewing(self, key: str) -> Lease | None:
        with self._lock:  # waits for a renewal in progress, which would restore the file
            return self._held.pop(key, None)

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
        except (StorageError, OSError) as error:  # the next beat may succeed; a lost lease costs only time
            _log.warning("could not renew the lease on %s: %s", lease.key, error)

    def close(self) -> None:
        """Stop the thread and release the remaining leases."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for lease in list(self._held.values()):
            self.release(lease)


@contextmanager
def maintenance(folder: Folder) -> Iterator[None]:
    """Hold the lease that compaction and repair of a run require.

    Raises:
        RunError: another process holds it.
    """
    book = LeaseBook(folder, 60.0)
    try:
        lease = book.acquire(_MAINTENANCE)
        if lease is None:
            raise RunError(
                f"{folder.label} is being compacted or repaired by another process; wait for it to end, or "
                f"remove {_FOLDER}/{stem(_MAINTENANCE)}.*.json if that process is dead"
            )
        with lease:
            yield
    finally:
        book.close()


def live_leases(folder: Folder) -> list[str]:
    """Return the lease files of workers that may be computing, without the maintenance lease."""
    recorded = {name.removeprefix("units/").removesuffix(".json") for name in folder.names("units")}
    others = {None, stem(_MAINTENANCE), *recorded}
    names = [name for name in folder.names(_FOLDER) if leased_stem(name) not in others]
    contents = {name: _parsed(data) for name, data in folder.read_many(names).items()}
    return [name for name, content in contents.items() if content is not None and _may_live(content)]


def _may_live(content: dict[str, Any]) -> bool:
    return not is_dead(content.get("process")) and content.get("failed") is not True


def leased_stem(name: str) -> str | None:
    """Return the unit (as file stem) of a lease file; None for other files."""
    if not name.startswith(f"{_FOLDER}/") or not name.endswith(".json"):
        return None
    return name[len(_FOLDER) + 1 : -len(".json")].rpartition(".")[0]


def lease_files(folder: Folder) -> dict[str, list[str]]:
    """Return unit (as file stem) → its lease files, of live and dead owners."""
    found: dict[str, list[str]] = {}
    for name in folder.names(_FOLDER):
        unit = leased_stem(name)
        if unit is not None:
            found.setdefault(unit, []).append(name)
    return found


def _attempts(names: Iterable[str], key: str) -> dict[int, str]:
    """Return attempt → file name of the leases on ``key``."""
    start = f"{_FOLDER}/{stem(key)}."
    fitting = [name for name in names if name.startswith(start) and name.endswith(".json")]
    numbers = {name: name[len(start) : -len(".json")] for name in fitting}
    return {int(number): name for name, number in numbers.items() if number.isdigit()}


def read_lease(folder: Folder, name: str) -> dict[str, Any] | None:
    """Return a lease's content; None if it is missing or unreadable."""
    try:
        return _parsed(folder.read(name))
    except FileNotFoundError:
        return None


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
