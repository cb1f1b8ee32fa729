"""SQL over runs: DuckDB views that restore the values which parts do not store.

Parts with the same layout are read by one ``read_parquet``. The view fills implied columns, adds missing ones
as typed nulls, adds the run's name, and joins layouts and runs with ``UNION ALL BY NAME``. ``samples`` is not
computed in SQL: it is the table of ``store.samples``, computed when a query reads it. DuckDB is imported only
here, and only for a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from orderlens.errors import CorruptRunError, MissingPackageError, OrderLensError, UserInputError, one_line
from orderlens.store.codec import DERIVED, filled_columns, full_schema
from orderlens.store.frame import Frame, import_duckdb
from orderlens.store.samples import sample_chunks, samples_schema
from orderlens.store.schema import SCHEMAS
from orderlens.store.sources import FolderSource, MemorySource, RunSource

_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int32()): "INTEGER[]",
    pa.list_(pa.uint16()): "USMALLINT[]",
    pa.list_(pa.float32()): "FLOAT[]",
    pa.list_(pa.float64()): "DOUBLE[]",
}

_READING = {"SELECT", "EXPLAIN", "MULTI"}
"""Kinds of statements that return rows without changes; a PIVOT has the kind MULTI."""


def _recent_duckdb() -> Any:
    """Return the duckdb module if it can read byte-stream-split integers (2.0 or newer)."""
    duckdb = import_duckdb()
    if int(duckdb.__version__.split(".")[0]) < 2:
        raise MissingPackageError(
            f"SQL over runs needs duckdb 2.0 or newer, found {duckdb.__version__} (pip install -U duckdb)"
        )
    return duckdb


def connect(sources: Mapping[str, RunSource]) -> Any:
    """Return a DuckDB connection with one view per table over all runs, and ``samples``.

    Only one part per layout is compared with its record here; ``compare_tables`` compares the others.
    """
    connection = _recent_duckdb().connect()
    try:
        _create_views(connection, sources)
    except import_duckdb().Error as error:
        raise _translated(error) from error
    return connection


def _create_views(connection: Any, sources: Mapping[str, RunSource]) -> None:
    for name in sorted({*SCHEMAS, *(table for source in sources.values() for table in source.tables())}):
        pieces = [
            piece for run, source in sources.items() for piece in _pieces(connection, name, run, source)
        ]
        connection.execute(f"CREATE VIEW {_quoted(name)} AS {' UNION ALL BY NAME '.join(pieces)}")
    connection.register("samples", _Samples(sources))


class _Samples:
    """The table ``samples`` for DuckDB: computed at the first query that reads it, then cached."""

    def __init__(self, sources: Mapping[str, RunSource]) -> None:
        self._sources = sources
        self._schema = samples_schema(run=True)

    @cached_property
    def _table(self) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *sample_chunks(self._sources)])

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def compare_tables(sources: Iterable[RunSource], names: Iterable[str]) -> None:
    """Compare the parts of some tables with their records; DuckDB checks neither digests nor pages.

    Raises:
        CorruptRunError: a part differs from its record.
    """
    for source in sources:
        if isinstance(source, FolderSource):
            for name in names:
                source.compare(name)


def named_tables(query: str, sources: Iterable[RunSource]) -> list[str]:
    """Return the stored tables whose names occur in a query; all tables if none does."""
    stored = sorted({name for source in sources for name in source.tables()})
    text = query.lower()
    named = [
        name for name in stored if name in text or (name in ("reveals", "outputs") and "samples" in text)
    ]
    return named or stored


def _pieces(connection: Any, name: str, run: str, source: RunSource) -> Iterable[str]:
    """Yield the SELECT statements whose union is the table of one run."""
    if isinstance(source, FolderSource) and source.snapshot.parts(name):
        yield from _folder_pieces(connection, name, run, source)
        return
    table = source.table(name) if isinstance(source, MemorySource) else source.schema(name).empty_table()
    label = f"memory_{name}_{run}"
    connection.register(label, table)
    yield f"SELECT {_literal(run)} AS run, * FROM {_quoted(label)}"  # noqa: S608  quoted


def _folder_pieces(connection: Any, name: str, run: str, source: FolderSource) -> Iterable[str]:
    _register_filesystem(connection, source.folder.filesystem())
    for layout, stored in source.layouts(name).items():
        files = [part.path for part in source.snapshot.parts(name) if part.layout == layout]
        listed = ", ".join(_literal(source.folder.location(path)) for path in files)
        names = full_schema(name, stored).names
        columns = [f"{_expression(name, item, stored)} AS {_quoted(item)}" for item in names]
        yield (
            f"SELECT {_literal(run)} AS run, {', '.join(columns)} "  # noqa: S608  all parts are quoted
            f"FROM read_parquet([{listed}], hive_partitioning = false)"
        )


def _register_filesystem(connection: Any, filesystem: Any) -> None:
    """Let DuckDB read through a Python file system; registered once per connection."""
    if filesystem is None:
        return
    names = filesystem.protocol
    first = names if isinstance(names, str) else names[0]
    if not connection.filesystem_is_registered(first):
        connection.register_filesystem(filesystem)


def _expression(name: str, column: str, stored: pa.Schema) -> str:
    """Return the SQL that restores a column: the stored value, the implied value, or a typed null."""
    value = _quoted(column) if column in stored.names else None
    if column in filled_columns(stored):
        implied = DERIVED[column].sql(lambda other: _expression(name, other, stored))
        return implied if value is None else f"coalesce({value}, {implied})"
    return value or f"NULL::{_TYPES[full_schema(name, stored).field(column).type]}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def view_of(connection: Any, name: str, columns: Sequence[str]) -> Any:
    """Return a lazy relation of some columns of a view."""
    return connection.table(name).project(", ".join(_quoted(item) for item in columns))


def run_query(connection: Any, query: str, check: Callable[[], None]) -> Frame:
    """Return the result of a query as a frame over a lazy relation.

    Args:
        connection: of ``connect``.
        query: one SELECT.
        check: compares the parts of the query with their records; called before each read.

    Raises:
        UserInputError: the query is invalid; DuckDB's message says where.
        CorruptRunError: a part could not be read.
    """
    check()
    try:
        kinds = {str(statement.type.name) for statement in connection.extract_statements(query)}
        if not kinds or kinds - _READING:
            kind = f"a {', '.join(sorted(kinds))} statement" if kinds else "empty"
            raise UserInputError(f"the query is {kind}; only SELECT is allowed")
        relation = connection.sql(query)
    except import_duckdb().Error as error:
        raise _translated(error) from error

    def load(columns: Sequence[str] | None) -> pa.Table:
        check()
        return _fetch(relation, columns)

    return Frame(_fetch(relation.limit(0)).schema, load, lambda: relation)


def _fetch(relation: Any, columns: Sequence[str] | None = None) -> pa.Table:
    chosen = relation if columns is None else relation.project(", ".join(_quoted(item) for item in columns))
    try:
        return chosen.to_arrow_table()
    except import_duckdb().Error as error:
        raise _translated(error) from error


def _translated(error: Exception) -> OrderLensError:
    """Return the error for a damaged file or for an invalid query."""
    text = one_line(error)
    if isinstance(error, import_duckdb().IOException) or "parquet" in text.lower():
        return CorruptRunError(f"a part could not be read ({text}); run: orderlens runs verify RUN")
    return UserInputError(f"the query failed: {text}")
