"""Where a run's rows come from: a folder of committed parts, or tables in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.store.codec import full_schema, open_part, read_groups, sort_rows, trace_starts
from orderlens.store.folder import Folder
from orderlens.store.records import load_snapshot, trusted
from orderlens.store.schema import SCHEMAS, conform
from orderlens.store.specfile import read_spec, refuse_edited

CHUNK_ROWS = 1 << 18


class Source(Protocol):
    """One run, whatever it is kept in."""

    label: str
    spec: dict[str, Any]

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table."""

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield a table in chunks."""

    def traces(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield reveals in chunks of whole traces, sorted by step."""

    def find(self, sample_id: str, order: str | None) -> Iterator[pa.Table]:
        """Yield the reveals of one sample."""


class FolderSource:
    """A run folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.label = folder.label
        self.spec = refuse_edited(folder, read_spec(folder)).spec
        self.snapshot = trusted(folder, load_snapshot(folder))

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table."""
        layouts = {part.layout: part for part in self.snapshot.parts(name)}
        found = []
        for part in layouts.values():
            with self.folder.open(part.path) as handle:
                found.append(full_schema(name, open_part(handle).schema_arrow))
        if not found:
            return full_schema(name, SCHEMAS[name]) if name in SCHEMAS else pa.schema([])
        return pa.unify_schemas(found, promote_options="permissive")

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield the table's row groups."""
        for part in self.snapshot.parts(name):
            with self.folder.open(part.path) as handle:
                yield from read_groups(name, open_part(handle), columns)

    def traces(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield row groups: the writer ends them where traces end."""
        yield from self.scan("reveals", columns)

    def find(self, sample_id: str, order: str | None) -> Iterator[pa.Table]:
        """Yield the rows of one sample from the parts that may hold it."""
        for bundle in self.snapshot.bundles:
            if bundle.may_hold(sample_id, order):
                for part in bundle.parts:
                    if part.table == "reveals":
                        with self.folder.open(part.path) as handle:
                            for table in read_groups("reveals", open_part(handle)):
                                yield _of_sample(table, sample_id, order)


class MemorySource:
    """Tables in memory."""

    label = "memory"

    def __init__(self, tables: Mapping[str, pa.Table], spec: dict[str, Any]) -> None:
        self.spec = spec
        ready = {name: conform(name, table) if name in SCHEMAS else table for name, table in tables.items()}
        self._tables = {name: sort_rows(table, name) for name, table in ready.items()}

    def _table(self, name: str) -> pa.Table:
        if name in self._tables:
            return self._tables[name]
        return full_schema(name, SCHEMAS[name]).empty_table() if name in SCHEMAS else pa.table({})

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table."""
        return pa.schema([pa.field(field.name, field.type) for field in self._table(name).schema])

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield the table."""
        table = self._table(name)
        if table.num_rows:
            yield table if columns is None else table.select(list(columns))

    def traces(self, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield slices that end where traces end."""
        table = self._table("reveals")
        cuts = [*trace_starts(table).tolist(), table.num_rows]
        chosen = table if columns is None else table.select(list(columns))
        start = 0
        for cut in cuts:
            if cut - start >= CHUNK_ROWS or (cut == table.num_rows and cut > start):
                yield chosen.slice(start, cut - start)
                start = cut

    def find(self, sample_id: str, order: str | None) -> Iterator[pa.Table]:
        """Yield the rows of one sample."""
        yield _of_sample(self._table("reveals"), sample_id, order)


def _of_sample(table: pa.Table, sample_id: str, order: str | None) -> pa.Table:
    mask = pc.equal(table["sample_id"], sample_id)
    return table.filter(mask if order is None else pc.and_(mask, pc.equal(table["order"], order)))
