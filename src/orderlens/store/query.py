"""SQL over runs: DuckDB views that restore what parts do not store.

Parts with the same layout are read by one ``read_parquet``; the view fills implied columns, adds absent ones
as typed nulls, names the run, and joins layouts and runs with ``UNION ALL BY NAME``. DuckDB is imported only
here and only when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.errors import CorruptRunError, MissingPackageError, OrderLensError, UserInputError, one_line
from orderlens.store.codec import filled_columns, full_schema
from orderlens.store.frame import Frame, import_duckdb
from orderlens.store.rules import RESTORED
from orderlens.store.samples import KEYS, likelihood, order_labels
from orderlens.store.schema import SCHEMAS
from orderlens.store.sources import FolderSource, MemorySource, Source

_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.int32()): "INTEGER[]",
    pa.list_(pa.float64()): "DOUBLE[]",
}

_READING = {"SELECT", "EXPLAIN", "MULTI"}
"""Kinds of statements that return rows and change nothing; a PIVOT is several in one."""
_LISTED = ", ".join(f'"{name}"' for name in KEYS)
_SAME_TRACE = " AND ".join(
    f'grouped."{name}" IS NOT DISTINCT FROM stated."{name}"' for name in ("run", *KEYS)
)
_COUNTED = "NOT coalesce(is_overflow, false)"
_CONTENT = f"{_COUNTED} AND NOT coalesce(is_eos, false) AND NOT coalesce(is_special, false)"

SAMPLES_VIEW = f"""
WITH marked AS (
    SELECT run, {_LISTED}, is_eos, forward, n_lookahead,
        CASE WHEN {_COUNTED} THEN logq::DOUBLE END AS counted,
        CASE WHEN {_CONTENT} THEN logq::DOUBLE END AS content
    FROM reveals
),
grouped AS (
SELECT run, {_LISTED},
    count(counted) AS n,
    coalesce(avg(counted), 'nan'::DOUBLE) AS mean,
    CASE WHEN bool_and(isfinite(counted)) THEN var_pop(counted) ELSE 'nan'::DOUBLE END AS var,
    count(content) AS n_content,
    coalesce(avg(content), 'nan'::DOUBLE) AS content_mean,
    CASE WHEN bool_and(isfinite(content)) THEN var_pop(content) ELSE 'nan'::DOUBLE END AS content_var,
    coalesce(sum(counted), 'nan'::DOUBLE) AS log_prob,
    count(CASE WHEN is_eos THEN counted END) AS n_eos,
    count(*) - count(counted) AS n_overflow,
    coalesce(max(CASE WHEN counted IS NOT NULL THEN forward END) + 1, 0)::BIGINT AS n_forwards,
    coalesce(sum(CASE WHEN counted IS NOT NULL THEN n_lookahead END), 0)::BIGINT AS n_lookahead
FROM marked GROUP BY ALL
)
SELECT grouped.* REPLACE (coalesce(stated.n_forwards, grouped.n_forwards)::BIGINT AS n_forwards), likelihood
FROM grouped LEFT JOIN likelihoods
    ON of_run = grouped.run AND label = grouped."order" AND drawn = (coalesce(grouped.temperature, 0) > 0)
LEFT JOIN (SELECT run, {_LISTED}, n_forwards FROM outputs WHERE n_forwards IS NOT NULL) AS stated
    ON {_SAME_TRACE}
"""  # noqa: S608  constants only


def _recent_duckdb() -> Any:
    """Return the duckdb module if it reads byte-stream-split integers (older ones do not)."""
    duckdb = import_duckdb()
    if int(duckdb.__version__.split(".")[0]) < 2:
        raise MissingPackageError(
            f"SQL over runs needs duckdb 2.0 or newer, found {duckdb.__version__} (pip install -U duckdb)"
        )
    return duckdb


def connect(sources: Mapping[str, Source]) -> Any:
    """Return a DuckDB connection with one view per table over all runs, and ``samples``.

    Only one part per layout is compared with its record here; ``compare_tables`` does the rest.
    """
    connection = _recent_duckdb().connect()
    try:
        _create_views(connection, sources)
    except import_duckdb().Error as error:
        raise _translated(error) from error
    return connection


def _create_views(connection: Any, sources: Mapping[str, Source]) -> None:
    for name in sorted({*SCHEMAS, *(table for source in sources.values() for table in source.tables())}):
        pieces = [
            piece for run, source in sources.items() for piece in _pieces(connection, name, run, source)
        ]
        connection.execute(f"CREATE VIEW {_quoted(name)} AS {' UNION ALL BY NAME '.join(pieces)}")
    connection.register("likelihoods", _likelihoods(sources))
    connection.execute(f"CREATE VIEW samples AS {SAMPLES_VIEW}")


def compare_tables(sources: Iterable[Source], names: Iterable[str]) -> None:
    """Compare the parts of some tables with their records: DuckDB checks neither digests nor pages.

    Raises:
        CorruptRunError: a part is not as it was committed.
    """
    for source in sources:
        if isinstance(source, FolderSource):
            for name in names:
                source.compare(name)


def named_tables(query: str, sources: Iterable[Source]) -> list[str]:
    """Return the stored tables whose names occur in a query; all of them when none does."""
    stored = sorted({name for source in sources for name in source.tables()})
    text = query.lower()
    named = [
        name for name in stored if name in text or (name in ("reveals", "outputs") and "samples" in text)
    ]
    return named or stored


def _likelihoods(sources: Mapping[str, Source]) -> pa.Table:
    """Return what the summed log q of each order in each run is, for scored (or greedy) and drawn texts."""
    rows: list[tuple[str, str, bool, str | None]] = []
    for run, source in sources.items():
        stated = source.spec.get("likelihood")
        for label in _order_labels(source) if stated is None else stated:
            rows.append((run, label, False, likelihood(stated, label, None)))
            rows.append((run, label, True, likelihood(stated, label, 1.0)))
    kinds = (pa.string(), pa.string(), pa.bool_(), pa.string())
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    return pa.table(columns, names=["of_run", "label", "drawn", "likelihood"])


def _order_labels(source: Source) -> list[str]:
    """Return the labels in a run that does not state likelihoods; reads the column only if it must."""
    if source.spec.get("orders"):
        return order_labels(source.spec["orders"])
    found: set[str] = set()
    for chunk in source.scan("reveals", ["order"]):
        found.update(pc.unique(chunk["order"].cast(pa.string())).to_pylist())
    return sorted(found)


def _pieces(connection: Any, name: str, run: str, source: Source) -> Iterable[str]:
    """Yield the SELECT statements that together are one run's table."""
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
    """Let DuckDB read through a file system of Python's, once per connection."""
    if filesystem is None:
        return
    names = filesystem.protocol
    first = names if isinstance(names, str) else names[0]
    if not connection.filesystem_is_registered(first):
        connection.register_filesystem(filesystem)


def _expression(name: str, column: str, stored: pa.Schema) -> str:
    """Return the SQL that restores a column: what is stored, what a rule implies, or a typed null."""
    value = _quoted(column) if column in stored.names else None
    if column in filled_columns(stored):
        implied = RESTORED[column].sql(lambda other: _expression(name, other, stored))
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
        check: compares the parts concerned with their records; called before each reading.

    Raises:
        UserInputError: the query is wrong; DuckDB's message says where.
        CorruptRunError: a part could not be read.
    """
    check()
    try:
        kinds = {str(statement.type.name) for statement in connection.extract_statements(query)}
        if not kinds or kinds - _READING:
            raise UserInputError(f"the query must be a SELECT, not {', '.join(sorted(kinds)) or 'empty'}")
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
    """Tell damaged files from wrong queries."""
    text = one_line(error)
    if isinstance(error, import_duckdb().IOException) or "parquet" in text.lower():
        return CorruptRunError(f"a part could not be read ({text}); run: orderlens runs verify RUN")
    return UserInputError(f"the query failed: {text}")
