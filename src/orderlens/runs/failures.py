"""Units whose computation failed: one record per attempt, with its traceback, in the folder ``failed/``.

A unit that failed as often as is allowed is set aside: workers pass over it while the rest goes on. The same
command tries it again, since it forgets earlier failures when it starts. Knows nothing of what is computed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from orderlens.store.protocol import Folder
from orderlens.store.records import canonical, stem

FAILED = "failed"
"""Folder of the records inside a run."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt.

    Attributes:
        key: the unit.
        attempt: 0-based.
        error: one line.
        worker: who tried.
        traceback: where it happened; empty where the process was killed.
        samples: ids of the unit's samples.
    """

    key: str
    attempt: int
    error: str
    worker: str
    traceback: str = ""
    samples: tuple[str, ...] = ()


class Failures:
    """The failed attempts of one run.

    Args:
        folder: the run.
        limit: attempts after which a unit is set aside.
    """

    def __init__(self, folder: Folder, limit: int) -> None:
        self._folder, self._limit = folder, limit

    def note(
        self, key: str, error: str, worker: str, traceback: str = "", samples: tuple[str, ...] = ()
    ) -> Failure:
        """Record one more failed attempt."""
        attempt = self._counts().get(stem(key), 0)
        while True:
            found = Failure(key, attempt, error, worker, traceback, samples)
            if self._folder.create(record_name(key, attempt), canonical(asdict(found)), durable=False):
                return found
            attempt += 1  # another worker noted one meanwhile

    def set_aside(self) -> set[str]:
        """Return the stems of the units that are not tried again."""
        return {name for name, count in self._counts().items() if count >= self._limit}

    def forget(self) -> None:
        """Remove all records, so that every unit may be tried again."""
        self._folder.remove_many(self._folder.names(FAILED))

    def _counts(self) -> Counter[str]:
        names = (failed_stem(name) for name in self._folder.names(FAILED))
        return Counter(name for name in names if name is not None)


def record_name(key: str, attempt: int) -> str:
    """Return the file name of an attempt's record."""
    return f"{FAILED}/{stem(key)}.{attempt}.json"


def failed_stem(name: str) -> str | None:
    """Return the unit (as file stem) that a failure record is about; None for other files."""
    if not name.startswith(f"{FAILED}/") or not name.endswith(".json"):
        return None
    return name[len(FAILED) + 1 : -len(".json")].rpartition(".")[0]


def read_failures(folder: Folder) -> list[Failure]:
    """Return all failed attempts, by unit and attempt; records that cannot be read are left out."""
    found = folder.read_many(folder.names(FAILED))
    rows = [row for row in map(_parsed, found.values()) if row is not None]
    return sorted(rows, key=lambda row: (row.key, row.attempt))


def _parsed(data: bytes) -> Failure | None:
    try:
        value: dict[str, Any] = json.loads(data)
        return Failure(**{**value, "samples": tuple(value["samples"])})
    except (ValueError, TypeError, KeyError):
        return None
