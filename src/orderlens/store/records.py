"""The small JSON files of a run: which units were committed, in which parts.

A *bundle* is a set of work units whose rows are in the same parts: one unit when it is committed, many after
compaction. Each bundle has a record under ``units/``. A *catalog* lists all bundles in one file and takes
precedence if two records contain the same unit. A *snapshot* is the set of bundles that readers use; they
ignore files that no bundle lists. Depends on the folder operations, not on the meaning of rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from orderlens.errors import CorruptRunError
from orderlens.store.folder import TEMPORARY
from orderlens.store.protocol import Folder
from orderlens.store.schema import SCHEMA_VERSION

SPEC = "spec.json"
COMPLETE = "complete.json"
FAILED, WORKERS, LOGS = "failed", "workers", "logs"
"""Folders of failed attempts, of the workers' states and of their logs."""
EXTENSIONS = "extensions"
"""Folder of the additions to a complete run."""
MERGED = "merged~"
"""Prefix of the file names of bundles of several units."""
_CATALOG = re.compile(r"catalog-(\d{6})\.json")
_SAFE_STEM = 80
_SAFE_FOLDER = 200


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of ``value`` (sorted keys, no spaces, UTF-8)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest_of(value: Any) -> str:
    """Return the sha256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical(value)).hexdigest()


@lru_cache(1 << 16)
def stem(key: str) -> str:
    """Return a safe file name (no suffix) for ``key``, different for different keys."""
    safe = quote(key, safe="")
    # Names with capitals get a digest, because some file systems ignore case.
    safe_already = safe == key == key.lower() and not key.startswith(".") and "~" not in key
    if safe_already and 0 < len(key) <= _SAFE_STEM:
        return key
    readable = safe[:_SAFE_STEM].replace("%", "_").replace(".", "_")
    return f"{readable}~{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def hive_folder(column: str, value: str) -> str:
    """Return the folder of parts with one value of a column (``order=random``); long values get a digest."""
    safe = quote(value, safe="")
    if len(safe) > _SAFE_FOLDER:
        safe = f"{safe[:_SAFE_STEM].rpartition('%')[0] or safe[:_SAFE_STEM]}~{digest_of(value)[:16]}"
    return f"{column}={safe}"


def merged_stem(keys: Iterable[str]) -> str:
    """Return the file name (no suffix) of a bundle of several units."""
    return f"{MERGED}{digest_of(sorted(keys))[:16]}"


@dataclass(frozen=True, slots=True)
class Part:
    """One committed Parquet file; ``layout`` is a digest of its physical schema."""

    table: str
    path: str
    rows: int
    size: int
    sha256: str
    layout: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}

    def may_hold(self, order: str | None) -> bool:
        """Return whether the part can contain rows of ``order``: unless its folder names another order."""
        return order is None or "/order=" not in self.path or f"/{hive_folder('order', order)}/" in self.path


@dataclass(frozen=True, slots=True)
class Bundle:
    """Work units that share parts.

    Attributes:
        units: unit key → rows per table.
        parts: the files with exactly these rows.
        samples: sample ids in them, or None if only ``first``…``last`` is known.
        first: smallest sample id.
        last: largest sample id.
        tasks: their tasks (None for rows without a task).
        orders: their orders.
        environments: digests of the environments that computed them.
    """

    units: Mapping[str, Mapping[str, int]]
    parts: tuple[Part, ...]
    samples: tuple[str, ...] | None = None
    first: str | None = None
    last: str | None = None
    tasks: tuple[str | None, ...] = ()
    orders: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """File name (no suffix) of the record, and prefix of the names of the parts."""
        return stem(next(iter(self.units))) if len(self.units) == 1 else merged_stem(self.units)

    @property
    def record(self) -> str:
        """Name of the record file."""
        return f"units/{self.stem}.json"

    def rows(self, table: str) -> int:
        """Return the number of rows of one table."""
        return sum(part.rows for part in self.parts if part.table == table)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("units", "parts")}
        lists = {name: list(item) if isinstance(item, tuple) else item for name, item in plain.items()}
        units = {key: dict(rows) for key, rows in self.units.items()}
        return {"units": units, "parts": [part.to_json() for part in self.parts], **lists}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Bundle:
        """Read the JSON form; unknown fields are ignored."""
        samples = value["samples"]
        return cls(
            value["units"],
            tuple(Part(**{name: item[name] for name in Part.__slots__}) for item in value["parts"]),
            samples=None if samples is None else tuple(samples),
            first=value["first"],
            last=value["last"],
            tasks=tuple(value["tasks"]),
            orders=tuple(value["orders"]),
            environments=tuple(value["environments"]),
        )

    def may_hold(self, sample_id: str, order: str | None) -> bool:
        """Return whether the bundle can contain a trace of ``sample_id`` under ``order`` (None: any)."""
        if order is not None and order not in self.orders:
            return False
        if self.samples is not None:
            return sample_id in self.samples
        return self.first is not None and self.last is not None and self.first <= sample_id <= self.last


def unit_file(key: str) -> str:
    """Return the name of the record of a single unit."""
    return f"units/{stem(key)}.json"


def failure_file(key: str, attempt: int) -> str:
    """Return the name of the record of a failed attempt at a unit."""
    return f"{FAILED}/{stem(key)}.{attempt}.json"


def failed_stem(name: str) -> str | None:
    """Return the unit (as file stem) of a failure record; None for other files."""
    if not name.startswith(f"{FAILED}/") or not name.endswith(".json"):
        return None
    return name[len(FAILED) + 1 : -len(".json")].rpartition(".")[0]


def seal(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as JSON with the schema version and a digest, which reveals damage."""
    body = {"version": SCHEMA_VERSION, **value}
    return json.dumps({**body, "digest": digest_of(body)}, ensure_ascii=False, allow_nan=False).encode()


def unseal(data: bytes) -> dict[str, Any] | None:
    """Return the value that was sealed, or None if the bytes are damaged or incomplete."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            return None
        digest = value.pop("digest", None)
        return value if digest_of(value) == digest else None
    except (ValueError, RecursionError):  # not JSON, NaN, a lone surrogate
        return None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed bundles of a run at one moment.

    Attributes:
        generation: number of the newest catalog (0 for none).
        bundles: the bundles for readers, in an order that does not depend on the order of commits.
        damaged: required record files that are damaged.
        obsolete: records of units that the catalog lists in other bundles (left by an interrupted
            compaction).
    """

    generation: int
    bundles: tuple[Bundle, ...]
    damaged: tuple[str, ...] = ()
    obsolete: tuple[str, ...] = ()

    def unit_keys(self) -> set[str]:
        """Return all committed unit keys."""
        return {key for bundle in self.bundles for key in bundle.units}

    def parts(self, table: str | None = None) -> list[Part]:
        """Return the parts of one table, or of all tables."""
        return [part for bundle in self.bundles for part in bundle.parts if table in (None, part.table)]

    def rows(self) -> dict[str, int]:
        """Return table → number of rows."""
        total: dict[str, int] = {}
        for part in self.parts():
            total[part.table] = total.get(part.table, 0) + part.rows
        return total


def catalog_file(generation: int) -> str:
    """Return the name of a catalog."""
    return f"catalog-{generation:06d}.json"


def catalogs(names: Iterable[str]) -> list[int]:
    """Return the generations among file names, newest first."""
    matches = (_CATALOG.fullmatch(name) for name in names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def load_snapshot(folder: Folder, known: dict[str, list[Bundle]] | None = None) -> Snapshot:
    """Read the newest catalog and the records that it does not list.

    Args:
        folder: the run.
        known: cache of file name → bundles; extended by this call. Valid records and catalogs never change.
    """
    known = {} if known is None else known
    generation, catalog = newest_catalog(folder, known)
    listed = {bundle.record for bundle in catalog}
    rest = [name for name in folder.names("units") if _is_record(name) and name not in listed]
    _read_bundles(folder, rest, known)
    snapshot = _combine(generation, catalog, {name: known.get(name) for name in rest})
    valid = generation == 0 or catalog_file(generation) in known
    return snapshot if valid else _without_catalog(snapshot)


def newest_catalog(folder: Folder, known: dict[str, list[Bundle]]) -> tuple[int, list[Bundle]]:
    """Return the number of the newest catalog (0 for none) and its bundles; no bundles if it is damaged."""
    generation = next(iter(catalogs(folder.names(deep=False))), 0)
    _read_bundles(folder, [catalog_file(generation)] if generation else [], known)
    return generation, known.get(catalog_file(generation), [])


def _without_catalog(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its catalog marked as damaged: ``verify`` uses it, readers reject it."""
    damaged = (catalog_file(snapshot.generation), *snapshot.damaged)
    return Snapshot(snapshot.generation, snapshot.bundles, damaged, snapshot.obsolete)


def _read_bundles(folder: Folder, names: Iterable[str], known: dict[str, list[Bundle]]) -> None:
    """Read the records and catalogs that are not in ``known``; damaged ones are not added."""
    for name, data in folder.read_many([name for name in names if name not in known]).items():
        value = unseal(data)
        if value is not None:
            found = [Bundle.from_json(item) for item in value.get("bundles", [value])]
            if not _is_record(name) or found[0].record == name:  # else the record of another unit
                known[name] = found


def _combine(generation: int, catalog: list[Bundle], records: Mapping[str, list[Bundle] | None]) -> Snapshot:
    """Add records to the catalog's bundles; a merged bundle replaces the bundles of its units."""
    bundles, covered, obsolete = list(catalog), {key for bundle in catalog for key in bundle.units}, []
    valid = [(name, found[0]) for name, found in records.items() if found is not None]
    for name, bundle in sorted(valid, key=lambda item: -len(item[1].units)):
        if covered.isdisjoint(bundle.units):
            bundles.append(bundle)
            covered.update(bundle.units)
        else:
            obsolete.append(name)
    bundles.sort(key=_reading_order)
    damaged = tuple(name for name, found in records.items() if found is None)
    return Snapshot(generation, tuple(bundles), damaged, tuple(obsolete))


def _reading_order(bundle: Bundle) -> tuple[list[str], tuple[str, ...], str, str]:
    """Return a sort key from the content, so that the row order does not depend on the order of commits."""
    return [task or "" for task in bundle.tasks], bundle.orders, bundle.first or "", min(bundle.units)


def _is_record(name: str) -> bool:
    return name.startswith("units/") and name.endswith(".json") and TEMPORARY not in name


def read_bundle(folder: Folder, name: str) -> Bundle | None:
    """Return the bundle of a record; None if the record is missing or damaged."""
    found: dict[str, list[Bundle]] = {}
    _read_bundles(folder, [name], found)
    return found[name][0] if name in found else None


def save_catalog(folder: Folder, snapshot: Snapshot, bundles: Iterable[Bundle]) -> bool:
    """Write the next catalog after ``snapshot``; return False if another process has written one."""
    body = seal({"bundles": [bundle.to_json() for bundle in bundles]})
    return folder.create(catalog_file(snapshot.generation + 1), body)


def trusted(folder: Folder, snapshot: Snapshot) -> Snapshot:
    """Return ``snapshot``; raise ``CorruptRunError`` if one of its records is damaged."""
    if snapshot.damaged:
        raise CorruptRunError(
            f"{folder.label}: {', '.join(snapshot.damaged)} is damaged; "
            f"run: orderlens runs verify {folder.label} --repair"
        )
    return snapshot


def read_completion(folder: Folder) -> list[str] | None:
    """Return the unit keys in the completion record; None if there is no valid one."""
    try:
        value = unseal(folder.read(COMPLETE))
    except FileNotFoundError:
        return None
    return None if value is None else list(value["keys"])


def completion_damaged(folder: Folder) -> bool:
    """Return whether the completion record is damaged."""
    return folder.exists(COMPLETE) and read_completion(folder) is None


def environment_file(name: str) -> str:
    """Return the file of an environment, which is named by the digest of its content."""
    return f"environments/{name}.json"


def read_environment(folder: Folder, name: str) -> Any:
    """Return the content of an environment; None if its file is missing.

    Raises:
        CorruptRunError: the content does not match the digest in its name.
    """
    data = folder.read_many([environment_file(name)])
    if not data:
        return None
    try:
        content = json.loads(next(iter(data.values())))
        if digest_of(content)[:16] == name:
            return content
    except (ValueError, RecursionError):
        pass
    raise CorruptRunError(
        f"{folder.label}: {environment_file(name)} is damaged; run: orderlens runs verify {folder.label}"
    )


def write_completion(folder: Folder, keys: Iterable[str]) -> None:
    """Write the completion record, the last file of a run: the keys of its committed units."""
    folder.put(COMPLETE, seal({"keys": sorted(set(keys))}))
