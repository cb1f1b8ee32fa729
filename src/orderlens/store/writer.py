"""Writing a run: claim a unit, commit it, finish the run (``runs.loop`` iterates over the units).

A unit is committed by its record: parts first, the record last, and only the first record of a unit counts.
Readers see a unit completely or not at all. Does not depend on what a unit computes.

``remove_leftovers`` removes only files that this package wrote and no longer needs: parts of units that are
committed in other parts, records and catalogs that a newer catalog replaces, claims and failed attempts on
committed units, and unfinished writes of dead processes. It never touches other files.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from orderlens.common.machine import environment, provenance
from orderlens.errors import RunError
from orderlens.store.codec import sort_rows
from orderlens.store.folder import is_abandoned, open_folder
from orderlens.store.leases import Lease, LeaseBook, lease_files, leased_stem
from orderlens.store.parts import check_table, make_bundle, make_part
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    COMPLETE,
    MERGED,
    Bundle,
    Part,
    Snapshot,
    canonical,
    catalog_file,
    catalogs,
    digest_of,
    environment_file,
    failed_stem,
    load_snapshot,
    newest_catalog,
    read_bundle,
    read_completion,
    save_catalog,
    seal,
    stem,
    trusted,
    unit_file,
    write_completion,
)
from orderlens.store.schema import conform
from orderlens.store.specfile import SpecFile, create_spec

DEFAULT_LEASE_S = 60.0
_PART = re.compile(r"parts/.*?([^/]+)-[0-9a-f]{16}\.parquet")
_log = logging.getLogger(__name__)


def open_writer(
    path: str | os.PathLike[str],
    spec: Mapping[str, Any],
    filesystem: Any = None,
    *,
    lease_s: float = DEFAULT_LEASE_S,
) -> RunWriter:
    """Create the run folder at ``path``, or resume an existing run.

    Args:
        path: local path or address (``s3://…``).
        spec: all settings that determine the rows; must be the same on resume.
        filesystem: fsspec or pyarrow file system of ``path``; None derives it.
        lease_s: seconds without a renewal after which a worker's claim expires.

    Raises:
        RunError: the folder has other content; the message lists the differences.
        StorageError: the folder cannot be written.
    """
    folder = open_folder(path, filesystem)
    found = create_spec(folder, spec, provenance())
    return RunWriter(folder, found, lease_s)


class RunWriter:
    """The writer of one worker; several workers may write to the same run concurrently.

    Attributes:
        folder: the run folder.
        spec: the run's spec as plain JSON values.
        lease_s: duration of this worker's claims in seconds.
        done: committed units that this worker has seen.
    """

    def __init__(self, folder: Folder, spec: SpecFile, lease_s: float) -> None:
        self.folder = folder
        self.spec = spec.spec
        self.lease_s = lease_s
        self._digest = spec.digest
        self._claims = LeaseBook(folder, lease_s)
        self._known: dict[str, list[Bundle]] = {}
        self._catalogued: set[str] | None = None
        self.done: set[str] = set()
        self._checked_at = -float("inf")
        self._environment = self._record_environment()

    def _record_environment(self) -> str:
        content = environment()
        name = digest_of(content)[:16]
        if not self.folder.exists(environment_file(name)):
            self.folder.create(environment_file(name), canonical(content))
        return name

    def _snapshot(self) -> Snapshot:
        snapshot = load_snapshot(self.folder, self._known)
        if (
            catalog_file(snapshot.generation) in snapshot.damaged
        ):  # damaged unit records are only computed again
            trusted(self.folder, snapshot)
        return snapshot

    def pending(self, keys: Iterable[str], *, by_name: bool = False) -> list[str]:
        """Return the keys that are not committed yet, in the given order without repetitions.

        Args:
            keys: the units.
            by_name: assume that records are valid: one listing instead of reading each record.
        """
        distinct = list(dict.fromkeys(keys))
        self.done = self._with_record(distinct) if by_name else self._snapshot().unit_keys()
        return [key for key in distinct if key not in self.done]

    def _with_record(self, keys: Iterable[str]) -> set[str]:
        """Return the units with a record: a separate file, or an entry in the catalog read first."""
        if self._catalogued is None:
            catalog = newest_catalog(self.folder, self._known)[1]
            self._catalogued = {key for bundle in catalog for key in bundle.units}
        names = set(self.folder.names("units"))
        return self._catalogued | {key for key in keys if unit_file(key) in names}

    def committed(self, key: str) -> bool:
        """Return whether a unit is committed."""
        if key in self.done or read_bundle(self.folder, unit_file(key)) is not None:
            return True
        # Compaction of a complete run removes the records of single units.
        return self.folder.exists(COMPLETE) and not self.pending([key])

    def claims(self) -> dict[str, list[str]]:
        """Return unit (as file stem) → its claim files, of live and dead workers."""
        return lease_files(self.folder)

    def claim(self, key: str, names: Iterable[str] | None = None) -> Lease | None:
        """Lease a unit for this worker; None if it is committed or a live worker has it.

        Args:
            key: the unit.
            names: its claim files from a recent call of ``claims``; None lists them.
        """
        claim = self._claims.acquire(key, names)
        if claim is not None and self.committed(key):
            claim.release()
            return None
        return claim

    def claim_new(self, key: str) -> Lease | None:
        """Lease a unit that no worker has claimed before; None if another worker was faster.

        This usually takes one request, because claims stay until the run is finished. From time to time the
        worker also checks for the end of the run, so that a suspended worker does not start it again.
        """
        claim = self._claims.acquire_new(key)
        if claim is not None and time.monotonic() - self._checked_at > self.lease_s / 2:
            if key in set(read_completion(self.folder) or ()) and self.committed(key):
                claim.release()
                return None
            self._checked_at = time.monotonic()
        return claim

    def commit(self, key: str, tables: Mapping[str, pa.Table]) -> bool:
        """Commit a unit's rows atomically; return False, without a change, if another worker was first."""
        parts, bundle = self._encode(key, tables)
        for part, data in parts:
            self.folder.put(part.path, data)
        first = self._record(bundle)
        self._claims.keep(key)
        if not first:
            self._drop(bundle)
        return first

    def _encode(self, key: str, tables: Mapping[str, pa.Table]) -> tuple[list[tuple[Part, bytes]], Bundle]:
        ready = {name: sort_rows(conform(name, table), name) for name, table in sorted(tables.items())}
        for name, table in ready.items():
            check_table(name, table, key)
        note = {"run": self._digest, "units": [key]}
        filled = {name: table for name, table in ready.items() if table.num_rows}
        parts = [make_part(name, f"parts/{name}/{stem(key)}", table, note) for name, table in filled.items()]
        rows = {name: table.num_rows for name, table in ready.items()}
        return parts, make_bundle(
            filled.values(), {key: rows}, [part for part, _ in parts], [self._environment]
        )

    def _record(self, bundle: Bundle) -> bool:
        record = seal(bundle.to_json())
        if self.folder.create(bundle.record, record):
            return True
        if read_bundle(self.folder, bundle.record) is not None:
            return False
        _log.warning("%s/%s is damaged; the unit was computed again", self.folder.label, bundle.record)
        self.folder.put(bundle.record, record)
        return True

    def _drop(self, bundle: Bundle) -> None:
        """Remove the parts of a second commit that the first commit does not share."""
        first = read_bundle(self.folder, bundle.record) if self.folder.exclusive else None
        if first is not None:
            in_use = {part.path for part in first.parts}
            for part in bundle.parts:
                if part.path not in in_use:
                    self.folder.remove(part.path)

    def finish(self, keys: Iterable[str]) -> None:
        """Write the catalog and then the completion record.

        Keys of earlier calls stay expected, so a run can be finished again with additional units.

        Raises:
            RunError: some of the keys are not committed.
        """
        expected = set(keys)
        while not self.finished(expected):
            snapshot = trusted(self.folder, self._snapshot())
            _refuse_missing(self.folder, expected, snapshot)
            if save_catalog(self.folder, snapshot, snapshot.bundles):  # else another worker was first: retry
                write_completion(self.folder, expected | set(read_completion(self.folder) or ()))
        if self.folder.exclusive:  # also for a complete run: a worker may have been killed at this point
            remove_leftovers(self.folder)

    def finished(self, keys: Iterable[str]) -> bool:
        """Return whether the run is complete with all these units."""
        completion = read_completion(self.folder)
        return completion is not None and set(keys) <= set(completion)

    def close(self) -> None:
        """Release all claims and stop renewing them."""
        self._claims.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_missing(folder: Folder, expected: set[str], snapshot: Snapshot) -> None:
    missing = sorted(expected - snapshot.unit_keys())
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise RunError(
            f"{folder.label} is not complete: {len(missing)} of {len(expected)} units are missing ({shown})"
        )


def leftovers(names: Iterable[str], snapshot: Snapshot, *, merged: bool) -> list[str]:
    """Return the files that orderlens wrote and no longer needs; ``merged`` includes those of compactions."""
    in_use = {part.path for part in snapshot.parts()} | {bundle.record for bundle in snapshot.bundles}
    done = {stem(key) for key in snapshot.unit_keys()}
    replaced = {catalog_file(number) for number in catalogs(names) if number < snapshot.generation}
    replaced |= set(snapshot.obsolete)

    def unneeded(name: str) -> bool:
        if _is_merged(name):
            return merged
        return (
            name in replaced
            or is_abandoned(name)
            or not done.isdisjoint((leased_stem(name), failed_stem(name), _part_stem(name)))
        )

    return sorted(name for name in names if name not in in_use and unneeded(name))


def _part_stem(name: str) -> str | None:
    """Return the bundle (as file stem) that a part was written for; None for other files."""
    match = _PART.fullmatch(name)
    return match[1] if match else None


def _is_merged(name: str) -> bool:
    """Return whether a part or record was written by a compaction."""
    return name.rsplit("/", 1)[-1].startswith(MERGED)


def remove_leftovers(folder: Folder, *, merged: bool = False) -> list[str]:
    """Remove the leftovers of a run, unless its records are damaged; return the removed files.

    Args:
        folder: the run.
        merged: also remove unused files of compactions. Needs the maintenance lease, because the files of a
            compaction in progress look the same.
    """
    names = folder.names()
    snapshot = load_snapshot(folder)
    removed = [] if snapshot.damaged else leftovers(names, snapshot, merged=merged)
    folder.remove_many(removed)
    return removed
