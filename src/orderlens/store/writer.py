"""Writing a run: claim a unit, commit it, and say when all is done (``runs.loop`` goes through all units).

A unit is committed by its record: parts first, the record last, and only the first record of a unit counts.
Readers see whole units or nothing. The module does not know what a unit computes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from orderlens.common.machine import environment, provenance
from orderlens.errors import RunError
from orderlens.store.checks import check_table
from orderlens.store.codec import sort_rows
from orderlens.store.compact import remove_leftovers
from orderlens.store.folder import open_folder
from orderlens.store.leases import Lease, LeaseBook, lease_files
from orderlens.store.parts import make_bundle, make_part
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    COMPLETE,
    Bundle,
    Part,
    Snapshot,
    canonical,
    catalog_file,
    digest_of,
    environment_file,
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
_log = logging.getLogger(__name__)


def open_writer(
    path: str | os.PathLike[str],
    spec: Mapping[str, Any],
    filesystem: Any = None,
    *,
    lease_s: float = DEFAULT_LEASE_S,
) -> RunWriter:
    """Create the run folder at ``path``, or resume the run that is there.

    Args:
        path: local path or address (``s3://…``).
        spec: everything that determines the rows; must be the same on resume.
        filesystem: fsspec or pyarrow file system of ``path``; None derives it.
        lease_s: seconds without a sign of life after which a worker's claim may be taken over.

    Raises:
        RunError: the folder holds something else; the message lists what differs.
        StorageError: the folder cannot be written.
    """
    folder = open_folder(path, filesystem)
    found = create_spec(folder, spec, provenance())
    return RunWriter(folder, found, lease_s)


class RunWriter:
    """One worker's hand on a run; several may work on the same run at once.

    Attributes:
        folder: where the run lives.
        spec: the run's spec as plain JSON values.
        lease_s: the lease of this worker's claims in seconds.
        done: units that are committed, as far as this worker has seen.
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
        self._looked = -float("inf")
        self._environment = self._note_environment()

    def _note_environment(self) -> str:
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
        """Return the keys that nobody has committed yet, in the given order without repetitions.

        Args:
            keys: the units in question.
            by_name: trust that records are sound: one listing instead of a look into each.
        """
        wanted = list(dict.fromkeys(keys))
        self.done = self._named(wanted) if by_name else self._snapshot().unit_keys()
        return [key for key in wanted if key not in self.done]

    def _named(self, keys: Iterable[str]) -> set[str]:
        """Return the units that have a record, in a file of their own or in the catalog of our first look."""
        if self._catalogued is None:
            catalog = newest_catalog(self.folder, self._known)[1]
            self._catalogued = {key for bundle in catalog for key in bundle.units}
        names = set(self.folder.names("units"))
        return self._catalogued | {key for key in keys if unit_file(key) in names}

    def committed(self, key: str) -> bool:
        """Say whether a unit is committed."""
        if key in self.done or read_bundle(self.folder, unit_file(key)) is not None:
            return True
        # A complete run may have been compacted since; then the unit's own record is gone.
        return self.folder.exists(COMPLETE) and not self.pending([key])

    def held(self) -> dict[str, list[str]]:
        """Return the units (as file stems) that somebody has claimed, dead or alive, with their claims."""
        return lease_files(self.folder)

    def claim(self, key: str, names: Iterable[str] | None = None) -> Lease | None:
        """Lease a unit for this worker; None when it is committed or a live worker has it.

        Args:
            key: the unit.
            names: its claims as ``held`` gave them a moment ago; None asks for them.
        """
        claim = self._claims.acquire(key, names)
        if claim is not None and self.committed(key):
            claim.release()
            return None
        return claim

    def take(self, key: str) -> Lease | None:
        """Lease a unit that was free at the last look; None when another worker was faster.

        As a rule that is one request: claims stay until the run is finished. So that a worker which slept
        through that does not begin again, it looks for the end of the run now and then.
        """
        claim = self._claims.take(key)
        if claim is not None and time.monotonic() - self._looked > self.lease_s / 2:
            if key in set(read_completion(self.folder) or ()) and self.committed(key):
                claim.release()
                return None
            self._looked = time.monotonic()
        return claim

    def commit(self, key: str, tables: Mapping[str, pa.Table]) -> bool:
        """Commit a unit's rows as a whole; False when another worker already did (then nothing is added)."""
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
        _log.warning("%s/%s was damaged; the unit was computed again", self.folder.label, bundle.record)
        self.folder.put(bundle.record, record)
        return True

    def _drop(self, bundle: Bundle) -> None:
        """Remove the parts of a commit that came second, unless the first one has the very same."""
        winner = read_bundle(self.folder, bundle.record) if self.folder.exclusive else None
        if winner is not None:
            kept = {part.path for part in winner.parts}
            for part in bundle.parts:
                if part.path not in kept:
                    self.folder.remove(part.path)

    def finish(self, keys: Iterable[str]) -> None:
        """Write the catalog and, last of all, the completion record.

        Keys of earlier calls stay expected, so a run may be finished again after more units were added.

        Raises:
            RunError: some of the keys are not committed.
        """
        wanted = set(keys)
        while not self.finished(wanted):
            snapshot = trusted(self.folder, self._snapshot())
            _refuse_missing(self.folder, wanted, snapshot)
            if save_catalog(
                self.folder, snapshot, snapshot.bundles
            ):  # else another worker was first: look again
                write_completion(self.folder, wanted | set(read_completion(self.folder) or ()))
        if self.folder.exclusive:  # also when the run was complete: a finisher may have been killed here
            remove_leftovers(self.folder)

    def finished(self, keys: Iterable[str]) -> bool:
        """Say whether somebody closed the run with all these units in it."""
        completion = read_completion(self.folder)
        return completion is not None and set(keys) <= set(completion)

    def close(self) -> None:
        """Give back all claims and stop renewing them."""
        self._claims.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_missing(folder: Folder, wanted: set[str], snapshot: Snapshot) -> None:
    missing = sorted(wanted - snapshot.unit_keys())
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise RunError(
            f"{folder.label} lacks {len(missing)} of {len(wanted)} units ({shown}): it is not complete"
        )
