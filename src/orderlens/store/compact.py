"""Compaction: merge many small parts into few large ones, atomically for readers.

New parts and their records are written first. One new catalog then switches readers to them, and only after
that the old files are removed. A crash at any point leaves either the old or the new state, plus unused files
that the next compaction removes. Tasks and orders with enough rows get separate parts, under
``parts/<table>/task=…/order=…/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from orderlens.errors import CorruptRunError, RunError
from orderlens.store.codec import read_groups, sort_rows, sort_traces, trace_starts
from orderlens.store.leases import maintenance
from orderlens.store.parts import make_bundle, make_part, opened
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    Bundle,
    Part,
    Snapshot,
    hive_folder,
    load_snapshot,
    merged_stem,
    read_completion,
    save_catalog,
    seal,
    trusted,
)
from orderlens.store.specfile import read_spec, writable
from orderlens.store.writer import remove_leftovers

TARGET_ROWS = 1 << 21
"""Reveals per merged bundle; they are sorted in memory (about 1 GB)."""
PARTITION_ROWS = 1 << 17
"""Minimum number of rows of a task and order for a separate part."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Number and bytes of the parts before and after a compaction."""

    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact_run(folder: Folder, *, target_rows: int = TARGET_ROWS) -> Compaction:
    """Merge the parts of a complete run into parts of about ``target_rows`` reveals.

    Raises:
        RunError: the run is not complete, or another process is compacting it.
        CorruptRunError: a part does not match its record; the run is unchanged.
    """
    digest = writable(folder, read_spec(folder)).digest
    if read_completion(folder) is None:
        raise RunError(f"{folder.label} is not complete; finish it before compacting it")
    with maintenance(folder):
        before = trusted(folder, load_snapshot(folder))
        after = _merge_all(folder, before, digest, target_rows)
        if after is not None and not save_catalog(folder, before, after):
            raise RunError(
                f"{folder.label} was changed by another process during compaction; run the command again"
            )
        remove_leftovers(folder, merged=True)
        return _summary(before, trusted(folder, load_snapshot(folder)))


def _summary(before: Snapshot, after: Snapshot) -> Compaction:
    old, new = before.parts(), after.parts()
    return Compaction(len(old), len(new), sum(part.size for part in old), sum(part.size for part in new))


def _merge_all(folder: Folder, snapshot: Snapshot, digest: str, target_rows: int) -> list[Bundle] | None:
    """Write the merged bundles; return the bundles of the next catalog, or None without any merge."""
    result: list[Bundle] = []
    changed = False
    for group in _groups(snapshot.bundles, target_rows):
        if len(group) == 1:
            result += group
            continue
        bundle = _merge(folder, group, digest)
        folder.put(bundle.record, seal(bundle.to_json()))
        result.append(bundle)
        changed = True
    return result if changed else None


def _groups(bundles: Iterable[Bundle], target_rows: int) -> Iterator[list[Bundle]]:
    """Yield groups of bundles to merge: same tasks and orders, adjacent samples, about the target size."""
    by_key: dict[tuple[tuple[str | None, ...], tuple[str, ...]], list[Bundle]] = {}
    for bundle in bundles:
        by_key.setdefault(_merge_key(bundle), []).append(bundle)
    for key in sorted(by_key, key=str):
        group: list[Bundle] = []
        rows = 0
        for bundle in sorted(by_key[key], key=lambda item: (item.first or "", min(item.units))):
            size = bundle.rows("reveals")
            if group and rows + size > target_rows:
                yield group
                group, rows = [], 0
            group.append(bundle)
            rows += size
        yield group


def _merge_key(bundle: Bundle) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Return the tasks and orders of a bundle; only bundles with the same ones are merged."""
    return bundle.tasks, bundle.orders


def _merge(folder: Folder, group: Sequence[Bundle], digest: str) -> Bundle:
    """Write the rows of several bundles as the parts of one bundle."""
    units = {key: rows for bundle in group for key, rows in bundle.units.items()}
    environments = [item for bundle in group for item in bundle.environments]
    note = {"run": digest, "units": sorted(units)}
    parts: list[Part] = []
    tables: list[pa.Table] = []
    for name in sorted({part.table for bundle in group for part in bundle.parts}):
        table = _read_all(
            folder, name, [part for bundle in group for part in bundle.parts if part.table == name]
        )
        tables.append(
            table.select([item for item in ("sample_id", "order", "task") if item in table.column_names])
        )
        for folders, rows in _partitions(table):
            prefix = "/".join(["parts", name, *folders, merged_stem(units)])
            part, data = make_part(name, prefix, rows, note)
            folder.put(part.path, data)
            parts.append(part)
    return make_bundle(tables, units, parts, environments)


def _partitions(table: pa.Table) -> Iterator[tuple[list[str], pa.Table]]:
    """Yield (hive folders, rows): one part per task and order if these have enough rows, else one part."""
    columns = [name for name in ("task", "order") if name in table.column_names]
    starts = trace_starts(table, columns).tolist()
    if len(starts) > 1 and table.num_rows < len(starts) * PARTITION_ROWS:
        yield [], table
        return
    for start, stop in pairwise([*starts, table.num_rows]):
        values = {name: table[name][start].as_py() for name in columns}
        folders = [hive_folder(name, value) for name, value in values.items() if value is not None]
        yield folders, table.slice(start, stop - start)


def _read_all(folder: Folder, name: str, parts: Sequence[Part]) -> pa.Table:
    """Return the sorted rows of parts, after comparing them with their records."""
    tables = []
    for part in parts:
        try:
            with opened(folder, part, recheck=True) as file:
                tables += list(read_groups(name, file))
        except FileNotFoundError as error:
            raise CorruptRunError(_damage(folder, f"{part.path} is missing")) from error
        except CorruptRunError as error:
            raise CorruptRunError(_damage(folder, str(error))) from error
    table = pa.concat_tables(tables, promote_options="permissive")
    if table.num_rows != sum(part.rows for part in parts):
        raise CorruptRunError(
            f"{folder.label}: the parts of '{name}' contain {table.num_rows} rows instead of the recorded "
            f"{sum(part.rows for part in parts)}; run: orderlens runs verify {folder.label} --repair"
        )
    return sort_traces(table) if name == "reveals" else sort_rows(table, name)


def _damage(folder: Folder, what: str) -> str:
    return f"{folder.label}: {what}; run: orderlens runs verify {folder.label} --repair"
