"""Writing a run: claim a unit, compute it, commit it, and say when all is done.

A unit is committed by its record: parts first, the record last, and only the first record of a unit counts.
Readers see whole units or nothing. The module does not know what a unit computes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from orderlens import provenance
from orderlens.errors import RunError
from orderlens.store.claims import Claim, ClaimBook
from orderlens.store.codec import encode, sort_rows
from orderlens.store.folder import Folder, open_folder
from orderlens.store.records import (
    COMPLETE,
    Bundle,
    Part,
    Snapshot,
    canonical,
    catalog_file,
    digest_of,
    load_snapshot,
    read_bundle,
    read_completion,
    seal,
    stem,
    unit_file,
)
from orderlens.store.schema import SCHEMA_VERSION, SCHEMAS, conform
from orderlens.store.specfile import SpecFile, create_spec

Payload = TypeVar("Payload")
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
    found = create_spec(folder, spec, provenance.collect())
    return RunWriter(folder, found, lease_s)


class RunWriter:
    """One worker's hand on a run; several may work on the same run."""

    def __init__(self, folder: Folder, spec: SpecFile, lease_s: float) -> None:
        self.folder = folder
        self.spec = spec.spec
        self.lease_s = lease_s
        self._digest = spec.digest
        self._claims = ClaimBook(folder, lease_s)
        self._environment = self._note_environment()

    def _note_environment(self) -> str:
        content = provenance.environment()
        name = digest_of(content)[:16]
        if not self.folder.exists(f"environments/{name}.json"):
            self.folder.create(f"environments/{name}.json", canonical(content))
        return name

    def pending(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that nobody has committed yet, in the given order without repetitions."""
        done = load_snapshot(self.folder).keys()
        return [key for key in dict.fromkeys(keys) if key not in done]

    def committed(self, key: str) -> bool:
        """Say whether a unit is committed."""
        if self.folder.exists(unit_file(key)) and read_bundle(self.folder, unit_file(key)) is not None:
            return True
        return key in set(load_snapshot(self.folder).keys())

    def claim(self, key: str) -> Claim | None:
        """Claim a unit for this worker; None when it is committed or a live worker has it."""
        claim = self._claims.acquire(key)
        if claim is not None and self.committed(key):
            claim.release()
            return None
        return claim

    def commit(self, key: str, tables: Mapping[str, pa.Table]) -> bool:
        """Commit a unit's rows as a whole; False when another worker already did (then nothing is added)."""
        parts, bundle = self._encode(key, tables)
        for part, data in parts:
            self.folder.put(part.path, data)
        record = seal({"version": SCHEMA_VERSION, **bundle.to_json()})
        if self._record(key, record):
            return True
        self._drop(key, bundle)
        return False

    def _record(self, key: str, record: bytes) -> bool:
        name = unit_file(key)
        if self.folder.create(name, record):
            return True
        if read_bundle(self.folder, name) is not None:
            return False
        _log.warning("%s/%s was damaged; the unit was computed again", self.folder.label, name)
        self.folder.put(name, record)
        return True

    def _drop(self, key: str, bundle: Bundle) -> None:
        """Remove the parts of a commit that came second (where a first exists for sure)."""
        winner = read_bundle(self.folder, unit_file(key)) if self.folder.exclusive else None
        if winner is not None:
            kept = {part.path for part in winner.parts}
            for part in bundle.parts:
                if part.path not in kept:
                    self.folder.remove(part.path)

    def _encode(self, key: str, tables: Mapping[str, pa.Table]) -> tuple[list[tuple[Part, bytes]], Bundle]:
        ready = {name: sort_rows(_checked(name, table), name) for name, table in sorted(tables.items())}
        note = {"run": self._digest, "units": [key]}
        parts = [write_part(name, stem(key), table, note) for name, table in ready.items() if table.num_rows]
        rows = {name: table.num_rows for name, table in ready.items()}
        bundle = describe(ready.values(), {key: rows}, [part for part, _ in parts], (self._environment,))
        return parts, bundle

    def finish(self, keys: Iterable[str]) -> None:
        """Write the completion record once every key is committed."""
        wanted = sorted(set(keys))
        earlier = read_completion(self.folder)
        if earlier is not None and set(wanted) <= set(earlier.keys):
            return
        snapshot = load_snapshot(self.folder)
        missing = sorted(set(wanted) - snapshot.keys())
        if missing:
            raise RunError(
                f"{self.folder.label} is not complete: {len(missing)} of {len(wanted)} units are missing "
                f"({', '.join(missing[:3])}{', …' if len(missing) > 3 else ''})"
            )
        save_catalog(self.folder, snapshot)
        expected = sorted({*wanted, *(earlier.keys if earlier else [])})
        self.folder.put(COMPLETE, seal({"version": SCHEMA_VERSION, "keys": expected}))

    def close(self) -> None:
        """Give back all claims and stop renewing them."""
        self._claims.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(name: str, table: pa.Table) -> pa.Table:
    return conform(name, table) if name in SCHEMAS else table


def write_part(table_name: str, stem_: str, table: pa.Table, note: Mapping[str, Any]) -> tuple[Part, bytes]:
    """Return the part of ``table`` and its bytes; the name holds the content's digest."""
    data, layout = encode(table_name, table, note)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"parts/{table_name}/{stem_}-{sha256[:16]}.parquet"
    return Part(table_name, path, table.num_rows, len(data), sha256, layout), data


def describe(
    tables: Iterable[pa.Table],
    units: Mapping[str, Mapping[str, int]],
    parts: Iterable[Part],
    environments: tuple[str, ...],
) -> Bundle:
    """Return the bundle of some units with an index of the samples, orders and tasks in it."""
    found: dict[str, set[Any]] = {"sample_id": set(), "order": set(), "task": set()}
    for table in tables:
        for column, values in found.items():
            if column in table.column_names:
                values.update(pc.unique(table[column]).to_pylist())
    samples = tuple(sorted(found["sample_id"]))
    return Bundle(
        units,
        tuple(parts),
        samples,
        first=samples[0] if samples else None,
        last=samples[-1] if samples else None,
        tasks=tuple(sorted(found["task"], key=lambda task: (task is not None, task))),
        orders=tuple(sorted(found["order"])),
        environments=environments,
    )


def save_catalog(folder: Folder, snapshot: Snapshot) -> None:
    """Write the snapshot as the next catalog, so that readers need not open every unit record."""
    body = seal({"version": SCHEMA_VERSION, "bundles": [bundle.to_json() for bundle in snapshot.bundles]})
    folder.create(catalog_file(snapshot.generation + 1), body)
    if snapshot.generation:
        folder.remove(catalog_file(snapshot.generation))


def execute(
    writer: RunWriter,
    units: Mapping[str, Payload],
    work: Callable[[Payload], Mapping[str, pa.Table]],
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Compute and commit units until every one is committed by somebody, then finish the run.

    Args:
        writer: this worker's writer.
        units: unit key → what ``work`` needs.
        work: computes the tables of one unit; depends on its payload only.
        on_progress: called with (committed units, all units) at the start and after each change.
    """
    left = writer.pending(units)
    while True:
        if on_progress is not None:
            on_progress(len(units) - len(left), len(units))
        if not left:
            break
        if not _pass(writer, left, units, work, on_progress):
            time.sleep(min(0.25, writer.lease_s / 8))
        left = writer.pending(left)
    writer.finish(units)


def _pass(
    writer: RunWriter,
    left: list[str],
    units: Mapping[str, Payload],
    work: Callable[[Payload], Mapping[str, pa.Table]],
    on_progress: Callable[[int, int], None] | None,
) -> int:
    """Go through the units once; return how many this worker committed or found committed."""
    done = 0
    for key in left:
        claim = writer.claim(key)
        if claim is None:
            continue
        with claim:
            writer.commit(key, work(units[key]))
        done += 1
        if on_progress is not None:
            on_progress(len(units) - len(left) + done, len(units))
    return done
