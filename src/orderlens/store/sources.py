"""Sources of a run's rows: a folder of committed parts, or tables in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orderlens.errors import CorruptRunError, RunError, UserInputError, one_line
from orderlens.store.codec import (
    full_schema,
    groups_with_sample,
    read_groups,
    sort_rows,
    stored_schema,
    trace_starts,
)
from orderlens.store.frame import with_schema
from orderlens.store.parts import compare, opened
from orderlens.store.protocol import Folder
from orderlens.store.records import (
    COMPLETE,
    Part,
    completion_damaged,
    load_snapshot,
    trusted,
)
from orderlens.store.schema import SCHEMAS, TRACE_KEY, conform
from orderlens.store.specfile import SpecFile, current_spec, expected_units, read_spec, refuse_edited

CHUNK_ROWS = 1 << 16


class RunSource(Protocol):
    """One run, stored in a folder or in memory."""

    label: str
    spec: dict[str, Any]

    def tables(self) -> list[str]:
        """Return the names of the tables that have rows."""

    def rows(self) -> dict[str, int]:
        """Return the number of rows by table."""

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table."""

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Yield a table in chunks."""

    def traces(self, columns: Sequence[str] | None, *, dictionaries: bool = False) -> Iterator[pa.Table]:
        """Yield reveals in chunks of complete traces sorted by step; ``dictionaries`` encodes key strings."""

    def find(self, sample_id: str, order: str | None = None, name: str = "reveals") -> Iterator[pa.Table]:
        """Yield the rows of one sample in a table of traces, under one order or under all."""

    def is_complete(self) -> bool:
        """Return whether all requested units are committed."""

    def n_units(self) -> tuple[int, int | None]:
        """Return the number of stored units and of requested units; None where the request is not known."""


def folder_source(folder: Folder) -> RunSource:
    """Return the source of a run folder."""
    return FolderSource(folder, refuse_edited(folder, read_spec(folder)))


class FolderSource:
    """A run folder, in the state at the time of opening."""

    def __init__(self, folder: Folder, spec: SpecFile) -> None:
        self.folder = folder
        self.label = folder.label
        self.spec = current_spec(folder, spec.spec)
        self.snapshot = trusted(folder, load_snapshot(folder))
        self._schemas: dict[str, pa.Schema] = {}

    def is_complete(self) -> bool:
        expected = expected_units(self.folder)
        if expected is None and completion_damaged(self.folder):
            raise CorruptRunError(
                f"{self.label}/{COMPLETE} is damaged; run: orderlens runs verify {self.label} --repair"
            )
        return expected is not None and expected <= self.snapshot.unit_keys()

    def n_units(self) -> tuple[int, int | None]:
        expected = expected_units(self.folder)
        return len(self.snapshot.unit_keys()), None if expected is None else len(expected)

    def tables(self) -> list[str]:
        return sorted(self.snapshot.rows())

    def rows(self) -> dict[str, int]:
        return dict(self.snapshot.rows())

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table; reads one part per layout."""
        if name not in self._schemas:
            found = [full_schema(name, stored) for stored in self.layouts(name).values()]
            empty = full_schema(name, SCHEMAS[name]) if name in SCHEMAS else pa.schema([])
            self._schemas[name] = pa.unify_schemas(found, promote_options="permissive") if found else empty
        return self._schemas[name]

    def layouts(self, name: str) -> dict[str, pa.Schema]:
        """Return layout digest → physical schema of the parts of a table."""
        examples = {part.layout: part for part in reversed(self.snapshot.parts(name))}
        found = {}
        for layout in sorted(examples):
            with self._opened(examples[layout]) as file:
                found[layout] = stored_schema(file)
        return found

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        for part in self.snapshot.parts(name):
            with self._opened(part) as file:
                yield from read_groups(name, file, _present(name, file, columns))

    def traces(self, columns: Sequence[str] | None, *, dictionaries: bool = False) -> Iterator[pa.Table]:
        """Yield row groups; the writer ends them where traces end."""
        for part in self.snapshot.parts("reveals"):
            with self._opened(part, dictionaries=dictionaries) as file:
                yield from read_groups("reveals", file, _present("reveals", file, columns))

    def find(self, sample_id: str, order: str | None = None, name: str = "reveals") -> Iterator[pa.Table]:
        """Yield the rows of one sample, from the row groups that may contain it."""
        candidates = [bundle for bundle in self.snapshot.bundles if bundle.may_hold(sample_id, order)]
        parts = [part for bundle in candidates for part in bundle.parts if part.table == name]
        for part in [part for part in parts if part.may_hold(order)]:
            with self._opened(part) as file:
                for table in read_groups(name, file, groups=groups_with_sample(file, sample_id)):
                    yield rows_of_sample(table, sample_id, order)

    @contextmanager
    def _opened(self, part: Part, *, dictionaries: bool = False) -> Iterator[pq.ParquetFile]:
        """Open a part; a difference from its record is reported as damage."""
        with self._damage_errors(), opened(self.folder, part, dictionaries=dictionaries) as file:
            yield file

    def compare(self, name: str) -> None:
        """Compare the parts of a table with their records, before DuckDB opens them."""
        with self._damage_errors():
            compare(self.folder, self.snapshot.parts(name))

    @contextmanager
    def _damage_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CorruptRunError(self._absence(error)) from error
        except CorruptRunError as error:
            raise CorruptRunError(
                f"{self.label}: {error}; run: orderlens runs verify {self.label}"
            ) from error

    def _absence(self, error: FileNotFoundError) -> str:
        if load_snapshot(self.folder).generation != self.snapshot.generation:
            return f"{self.label} was compacted or repaired during reading; open it again"
        name = Path(error.filename).name if error.filename else one_line(error)
        return f"{self.label}: the file {name} is missing; run: orderlens runs verify {self.label}"


def _present(name: str, file: pq.ParquetFile, columns: Sequence[str] | None) -> list[str] | None:
    """Return the requested columns that this part has (parts of custom tables may differ)."""
    if columns is None:
        return None
    known = full_schema(name, stored_schema(file)).names
    return [column for column in columns if column in known]


class MemorySource:
    """Tables in memory.

    Attributes:
        units: the tables of each work unit by its key, if the run was computed in this process.
    """

    def __init__(
        self,
        tables: Mapping[str, pa.Table],
        spec: dict[str, Any],
        label: str = "memory",
        units: Mapping[str, Mapping[str, pa.Table]] | None = None,
    ) -> None:
        self.label = label
        self.spec = spec
        self.units = units
        ready = {name: conform(name, table) for name, table in tables.items()}
        self._tables = {name: sort_rows(table, name) for name, table in ready.items()}

    def is_complete(self) -> bool:
        return True

    def n_units(self) -> tuple[int, int | None]:
        return len(self.units or ()), None

    def tables(self) -> list[str]:
        return sorted(name for name, table in self._tables.items() if table.num_rows)

    def rows(self) -> dict[str, int]:
        return {name: self._tables[name].num_rows for name in self.tables()}

    def table(self, name: str) -> pa.Table:
        """Return a complete table; empty if the run has none of this name."""
        if name in self._tables:
            table = self._tables[name]
            return table.cast(pa.schema([pa.field(field.name, field.type) for field in table.schema]))
        return full_schema(name, SCHEMAS[name]).empty_table() if name in SCHEMAS else pa.table({})

    def schema(self, name: str) -> pa.Schema:
        return self.table(name).schema

    def scan(self, name: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        table = self.table(name)
        if table.num_rows:
            yield table if columns is None else table.select(list(columns))

    @cached_property
    def _starts(self) -> list[int]:
        return [int(row) for row in trace_starts(self.table("reveals"))]

    def traces(self, columns: Sequence[str] | None, *, dictionaries: bool = False) -> Iterator[pa.Table]:
        del dictionaries  # plain strings are already in memory
        table = self.table("reveals")
        chosen = table if columns is None else table.select(list(columns))
        start = 0
        for cut in [*self._starts, table.num_rows]:
            if cut - start >= CHUNK_ROWS or (cut == table.num_rows and cut > start):
                yield chosen.slice(start, cut - start)
                start = cut

    def find(self, sample_id: str, order: str | None = None, name: str = "reveals") -> Iterator[pa.Table]:
        yield rows_of_sample(self.table(name), sample_id, order)


def rows_of_sample(table: pa.Table, sample_id: str, order: str | None) -> pa.Table:
    """Return the rows of one sample under one order, or under all."""
    wanted = pc.equal(table["sample_id"], sample_id)
    return table.filter(wanted if order is None else pc.and_(wanted, pc.equal(table["order"], order)))


_SEEDED = re.compile(r"(?P<name>[^:+]+):(?P<seed>[0-9]{1,18})(?P<rest>(\+.*)?)")


def find_trace(
    sources: Mapping[str, RunSource], schema: pa.Schema, sample_id: str, order: str, key: Mapping[str, Any]
) -> pa.Table:
    """Return the reveals of one trace with the columns of ``schema``; see ``Run.trace``."""
    name, seed = _order_and_seed(order)
    narrowed = {**({} if seed is None else {"seed": seed}), **key}
    table = _find(sources, schema, sample_id, name, narrowed)
    starts = trace_starts(table)
    if len(starts) != 1:
        raise RunError(_not_one_trace(sample_id, order, table.take(starts)))
    return table


def _find(
    sources: Mapping[str, RunSource], schema: pa.Schema, sample_id: str, order: str, key: Mapping[str, Any]
) -> pa.Table:
    unknown = set(key) - {*TRACE_KEY, "run"}
    if unknown:
        raise UserInputError(
            f"'{min(unknown)}' is not part of a trace's key; use {', '.join(TRACE_KEY)} or run"
        )
    found = []
    for run, source in sources.items():
        if key.get("run", run) == run:
            found += [with_schema(chunk, schema, run) for chunk in source.find(sample_id, order)]
    table = pa.concat_tables(found) if found else schema.empty_table()
    for name, value in key.items():
        if name != "run":
            table = table.filter(pc.is_null(table[name]) if value is None else pc.equal(table[name], value))
    return table


def _order_and_seed(order: str) -> tuple[str, int | None]:
    """Split ``random:3+top=4`` into the label of its traces, ``random+top=4``, and the seed."""
    found = _SEEDED.fullmatch(order)
    return (found["name"] + found["rest"], int(found["seed"])) if found else (order, None)


def _not_one_trace(sample_id: str, order: str, found: pa.Table) -> str:
    if not found.num_rows:
        return f"there is no trace of sample '{sample_id}' under order '{order}'"
    names = [name for name in ("run", *TRACE_KEY) if name in found.column_names]
    differing = [name for name in names if len(pc.unique(found[name])) > 1]
    return (
        f"sample '{sample_id}' has {found.num_rows} traces under order '{order}'; "
        f"they differ in {', '.join(differing)}; give a value for it"
    )


TEXT = pa.field("text", pa.string())
"""The column that follows ``token_id``."""


class TokenTexts:
    """The texts of one run's tokens by id.

    Raises:
        RunError: the run does not store token texts.
    """

    def __init__(self, source: RunSource) -> None:
        if "tokens" not in source.tables():
            raise RunError(
                f"{source.label} does not store token texts; leave them out, or decode them with the model: "
                "orderlens.load_model(…).tokenizer.decode([token_id])"
            )
        found: dict[Any, Any] = {}
        for chunk in source.scan("tokens", ["token_id", "piece"]):
            found |= dict(zip(chunk["token_id"].to_pylist(), chunk["piece"].to_pylist(), strict=True))
        self._ids = pa.array(list(found), pa.int32())
        self._texts = pa.array(list(found.values()), pa.string())

    def of(self, ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the texts of token ids; null for an unknown id."""
        return self._texts.take(pc.index_in(ids.combine_chunks(), value_set=self._ids))


def with_text(schema: pa.Schema) -> pa.Schema:
    """Return the schema of reveals with the text after ``token_id``."""
    return schema.insert(schema.get_field_index("token_id") + 1, TEXT)


def add_text(chunk: pa.Table, token_texts: TokenTexts) -> pa.Table:
    """Return reveals with the column ``text``."""
    place = chunk.column_names.index("token_id") + 1
    return chunk.add_column(place, TEXT, token_texts.of(chunk["token_id"]))
