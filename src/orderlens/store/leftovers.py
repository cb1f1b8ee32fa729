"""Housekeeping: what killed workers left behind in a complete run.

Removes only files that this package wrote and that nothing can need any more: parts of units that are
committed in other parts, records and catalogs that a newer catalog replaces, claims and failed attempts on
committed units, and writes in progress of dead processes. Foreign files are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orderlens.runs.failures import failed_stem
from orderlens.store.folder import is_abandoned
from orderlens.store.leases import leased_stem
from orderlens.store.protocol import Folder
from orderlens.store.records import MERGED, Snapshot, catalog_file, catalogs, load_snapshot, stem

_PART = re.compile(r"parts/.*?([^/]+)-[0-9a-f]{16}\.parquet")


def leftovers(names: Iterable[str], snapshot: Snapshot, *, merged: bool) -> list[str]:
    """Return the files of a run that are ours and useless; ``merged`` includes those of compactions."""
    kept = {part.path for part in snapshot.parts()} | {bundle.record for bundle in snapshot.bundles}
    done = {stem(key) for key in snapshot.unit_keys()}
    replaced = {catalog_file(number) for number in catalogs(names) if number < snapshot.generation}
    replaced |= set(snapshot.obsolete)

    def useless(name: str) -> bool:
        if _is_merged(name):
            return merged
        return (
            name in replaced
            or is_abandoned(name)
            or not done.isdisjoint((leased_stem(name), failed_stem(name), _part_stem(name)))
        )

    return sorted(name for name in names if name not in kept and useless(name))


def _part_stem(name: str) -> str | None:
    """Return the bundle (as file stem) that a part was written for; None for other files."""
    match = _PART.fullmatch(name)
    return match[1] if match else None


def _is_merged(name: str) -> bool:
    """Say whether a part or record was written by a compaction."""
    return name.rsplit("/", 1)[-1].startswith(MERGED)


def remove_leftovers(folder: Folder, *, merged: bool = False) -> list[str]:
    """Remove the leftovers of a run whose catalog is sound; return what was removed.

    Args:
        folder: the run.
        merged: also remove unused files of compactions; only for the one who holds the maintenance claim,
            because the files of a compaction in progress look the same.
    """
    names = folder.names()
    snapshot = load_snapshot(folder)
    gone = [] if snapshot.damaged else leftovers(names, snapshot, merged=merged)
    folder.remove_many(gone)
    return gone
