"""The small JSON files of a run: what was committed, by which units, in which parts.

A *bundle* is a set of work units whose rows lie in the same parts: one unit when it is committed, many after
compaction. A *snapshot* is the set of bundles a reader trusts. Files that no bundle lists do not exist for
readers. Knows the folder operations, not what rows mean.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from orderlens.errors import CorruptRunError
from orderlens.store.folder import TEMPORARY, Folder

SPEC = "spec.json"
COMPLETE = "complete.json"
_CATALOG = re.compile(r"catalog-(\d{6})\.json")
_SAFE_STEM = 80


def canonical(value: Any) -> bytes:
    """Return the one JSON spelling of ``value`` (sorted keys, no spaces, UTF-8)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest_of(value: Any) -> str:
    """Return the sha256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical(value)).hexdigest()


def unit_key(**content: Any) -> str:
    """Return a unit's key from what it computes (sample ids, order, seeds, …), never from its place."""
    return digest_of(content)[:32]


def stem(key: str) -> str:
    """Return a safe file name (no suffix) for ``key``, different for different keys."""
    safe = quote(key, safe="")
    if safe == key and len(key) <= _SAFE_STEM and not key.startswith("."):
        return key
    readable = safe[:_SAFE_STEM].replace("%", "_").replace(".", "_")
    return f"{readable}~{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def unit_file(key: str) -> str:
    """Return the name of the unit record of ``key``."""
    return f"units/{stem(key)}.json"


@dataclass(frozen=True, slots=True)
class Part:
    """One committed Parquet file."""

    table: str
    path: str
    rows: int
    size: int
    sha256: str
    layout: str
    """Digest of the physical schema: parts with the same layout can be read as one."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Bundle:
    """Work units that share parts.

    Attributes:
        units: unit key → rows per table.
        parts: the files that hold these rows and no others.
        samples: sample ids in them, or None when only ``first``…``last`` is known.
        first: smallest sample id.
        last: largest sample id.
        tasks: task values that occur (None for none).
        orders: orders that occur.
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("units", "parts")}
        lists = {name: list(item) if isinstance(item, tuple) else item for name, item in plain.items()}
        units = {key: dict(rows) for key, rows in self.units.items()}
        return {"units": units, "parts": [part.to_json() for part in self.parts], **lists}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Bundle:
        """Read the JSON form."""
        lists = ("tasks", "orders", "environments", "samples")
        plain = {name: tuple(value[name]) if value[name] is not None else None for name in lists}
        parts = tuple(Part(**item) for item in value["parts"])
        return cls(value["units"], parts, first=value["first"], last=value["last"], **plain)

    def may_hold(self, sample_id: str, order: str | None) -> bool:
        """Say whether a trace of ``sample_id`` under ``order`` can be in here."""
        if order is not None and order not in self.orders:
            return False
        if self.samples is not None:
            return sample_id in self.samples
        return self.first is not None and self.last is not None and self.first <= sample_id <= self.last


def seal(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as JSON that carries its own digest, so that damage is noticed."""
    body = dict(value)
    return json.dumps({**body, "digest": digest_of(body)}, ensure_ascii=False, allow_nan=False).encode()


def unseal(data: bytes) -> dict[str, Any] | None:
    """Return what ``seal`` was given, or None when the bytes are damaged or incomplete."""
    try:
        value = json.loads(data)
        digest = value.pop("digest")
    except (ValueError, KeyError, AttributeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) and digest_of(value) == digest else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is committed at one moment.

    Attributes:
        generation: number of the catalog this is based on (0 for none).
        bundles: everything readers may read, in an order that does not depend on who committed when.
        damaged: record files that are there but cannot be trusted.
    """

    generation: int
    bundles: tuple[Bundle, ...]
    damaged: tuple[str, ...] = ()

    def keys(self) -> set[str]:
        """Return all committed unit keys."""
        return {key for bundle in self.bundles for key in bundle.units}

    def parts(self, table: str | None = None) -> list[Part]:
        """Return the trusted parts, of one table or of all."""
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


def load_snapshot(folder: Folder) -> Snapshot:
    """Read the newest catalog and every unit record that it does not cover."""
    names = folder.sizes()
    generation, bundles, damaged = _load_catalog(folder, names)
    covered = {unit_file(key) for bundle in bundles for key in bundle.units}
    for name in sorted(names):
        if _is_record(name) and name not in covered:
            bundle = read_bundle(folder, name)
            if bundle is None:
                damaged.append(name)
            else:
                bundles.append(bundle)
    bundles.sort(key=lambda bundle: min(bundle.units, default=""))
    return Snapshot(generation, tuple(bundles), tuple(damaged))


def _is_record(name: str) -> bool:
    return name.startswith("units/") and name.endswith(".json") and TEMPORARY not in name


def _load_catalog(folder: Folder, names: Iterable[str]) -> tuple[int, list[Bundle], list[str]]:
    generations = catalogs(names)
    if not generations:
        return 0, [], []
    value = unseal(folder.read(catalog_file(generations[0])))
    if value is None:
        return generations[0], [], [catalog_file(generations[0])]
    return generations[0], [Bundle.from_json(item) for item in value["bundles"]], []


def read_bundle(folder: Folder, name: str) -> Bundle | None:
    """Return the bundle of a unit record, None when the record is gone or damaged."""
    try:
        value = unseal(folder.read(name))
    except FileNotFoundError:
        return None
    return None if value is None else Bundle.from_json(value)


def trusted(folder: Folder, snapshot: Snapshot) -> Snapshot:
    """Return ``snapshot`` if all its records can be trusted."""
    if snapshot.damaged:
        raise CorruptRunError(
            f"{folder.label}: {', '.join(snapshot.damaged)} is damaged; "
            f"run: orderlens runs verify {folder.label} --repair"
        )
    return snapshot


@dataclass(slots=True)
class Completion:
    """The last file of a run: the unit keys that were expected, all of them committed."""

    keys: list[str] = field(default_factory=list)


def read_completion(folder: Folder) -> Completion | None:
    """Return the completion record, None when the run is not (or no longer) complete."""
    try:
        value = unseal(folder.read(COMPLETE))
    except FileNotFoundError:
        return None
    return None if value is None else Completion(list(value["keys"]))
