"""Leases: which worker computes which unit, and until when, without a common clock.

A lease is a file (in the run's folder ``claims/``) that its owner rewrites with a growing beat. Others watch
the beat with their own monotonic clock: unchanged for the stated time means dead, whatever the wall clocks
say. On the same Linux machine a dead process is noticed at once. A takeover creates the next attempt's file,
so only one of several rivals gets it. The file of a committed unit stays until the run is finished: whoever
creates the first file of a unit knows by that alone that nobody had it, which is one request on an object
store. Leases only avoid double work; that rows are never doubled is the commit's business.
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
        older: files of earlier attempts, which it replaces.
    """

    def __init__(self, book: LeaseBook, key: str, name: str, older: tuple[str, ...] = ()) -> None:
        self.key = key
        self.name = name
        self.older = older
        self._book = book

    def release(self) -> None:
        """Give the unit back; nothing happens once it is committed or failed."""
        self._book.release(self)

    def fail(self) -> None:
        """Leave the unit to whoever finds no fresh one: the work failed."""
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

    def take(self, key: str) -> Lease | None:
        """Lease a unit that nobody had yet, or return None: one request, without a look at what is there."""
        return self._create(key, {})

    def acquire(self, key: str, names: Iterable[str] | None = None) -> Lease | None:
        """Lease ``key``, or return None when a live worker has it.

        Args:
            key: the unit.
            names: the lease files as listed a moment ago; None lists them.
        """
        attempts = _attempts(self._folder.names(_FOLDER) if names is None else names, key)
        if attempts and not self._expired(key, attempts[max(attempts)]):
            return None
        return self._create(key, attempts)

    def _create(self, key: str, attempts: dict[int, str]) -> Lease | None:
        """Write the next attempt's file. Earlier ones stay: without the first, ``take`` would succeed."""
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
        if content is not None and (is_dead(content.get("process")) or self._is_left(key, content)):
            return True
        beat = None if content is None else (content.get("owner"), content.get("beat"))
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None or seen.name != name or seen.beat != beat:
            self._seen[key] = _Sighting(name, beat, now)
            return False
        return now - seen.since > self._lease_of(content)

    def _is_left(self, key: str, content: dict[str, Any]) -> bool:
        """Whether its owner is done with it: the work failed, or it is our own from before a record broke."""
        mine = content.get("owner") == self._owner and key not in self._held
        return mine or content.get("failed") is True

    def _lease_of(self, content: dict[str, Any] | None) -> float:
        """Return the seconds that a lease states; our own where its file is damaged."""
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
        """Stop renewing a lease and remove its files, its own last: until then nobody else can have it."""
        if self._let_go(lease.key) is lease:
            self._folder.remove_many([*lease.older, lease.name])

    def fail(self, lease: Lease) -> None:
        """Stop renewing a lease; its file says that the unit may be tried again."""
        if self._let_go(lease.key) is lease:
            self._folder.put(lease.name, self._content(lease.key, failed=True), durable=False)

    def keep(self, key: str) -> None:
        """Stop renewing a lease whose unit is committed; its file stays and tells others so."""
        self._let_go(key)

    def _let_go(self, key: str) -> Lease | None:
        with self._lock:  # a renewal under way is waited for: it would bring the file back
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
def maintenance(folder: Folder) -> Iterator[None]:
    """Hold the one lease under which a run is compacted or repaired.

    Raises:
        RunError: another process holds it.
    """
    book = LeaseBook(folder, 60.0)
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
    """Return the lease files of workers that may be computing (maintenance not counted)."""
    recorded = {name.removeprefix("units/").removesuffix(".json") for name in folder.names("units")}
    others = {None, stem(_MAINTENANCE), *recorded}
    names = [name for name in folder.names(_FOLDER) if leased_stem(name) not in others]
    contents = {name: _parsed(data) for name, data in folder.read_many(names).items()}
    return [name for name, content in contents.items() if content is not None and _may_live(content)]


def _may_live(content: dict[str, Any]) -> bool:
    return not is_dead(content.get("process")) and content.get("failed") is not True


def leased_stem(name: str) -> str | None:
    """Return the unit (as file stem) that a lease file is about; None for other files."""
    if not name.startswith(f"{_FOLDER}/") or not name.endswith(".json"):
        return None
    return name[len(_FOLDER) + 1 : -len(".json")].rpartition(".")[0]


def lease_files(folder: Folder) -> dict[str, list[str]]:
    """Return unit (as file stem) → its lease files, whether their owners live or not."""
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
    """Return a lease's content; None when it is gone or cannot be read."""
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
