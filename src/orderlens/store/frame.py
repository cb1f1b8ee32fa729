"""``Frame``: a lazy table that loads its rows when it is converted to Arrow, pandas or Polars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orderlens.common.plaintext import first_rows
from orderlens.common.templating import first_rows_html
from orderlens.errors import MissingPackageError
from orderlens.registry import refuse_unknown

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

PREVIEW_ROWS = 5
"""Rows in the text or HTML form of a frame."""
Loader = Callable[[Sequence[str] | None], pa.Table]
"""Returns the table with the given columns; None: with all columns."""
Peek = Callable[[int], tuple[pa.Table, int]]
"""Takes n; returns the first n rows and the total number of rows, without reading the other rows."""


class Frame:
    """A lazy table.

    Attributes:
        schema: names and types of its columns.
    """

    def __init__(
        self,
        schema: pa.Schema,
        load: Loader,
        relation: Callable[[], Any] | None = None,
        peek: Peek | None = None,
    ) -> None:
        self.schema = schema
        self._load = load
        self._relation = relation
        self._peek = peek

    @classmethod
    def of(cls, table: pa.Table) -> Frame:
        """Wrap a table that is already in memory."""
        return cls(table.schema, lambda columns: table if columns is None else table.select(list(columns)))

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return an Arrow table of all or some columns."""
        chosen_columns(self.schema, columns)
        return self._load(columns)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a pandas frame of all or some columns."""
        frame: pd.DataFrame = self.to_arrow(columns).to_pandas()
        return frame

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return a Polars frame of all or some columns."""
        try:
            import polars as pl
        except ImportError as error:
            raise MissingPackageError("to_polars needs polars (pip install 'orderlens[polars]')") from error
        frame = pl.from_arrow(self.to_arrow(columns))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(self) -> Any:
        """Return a lazy DuckDB relation: over the files of a stored run, else over the table in memory."""
        if self._relation is not None:
            return self._relation()
        return import_duckdb().from_arrow(self.to_arrow())

    def __len__(self) -> int:
        first = self.columns[:1]
        return int(self.to_arrow(first).num_rows)

    def head(self, n: int = 5) -> Frame:
        """Return the first ``n`` rows."""
        return Frame.of(self._first_rows(n)[0])

    def _first_rows(self, n: int) -> tuple[pa.Table, int]:
        if self._peek is not None:
            return self._peek(n)
        table = self._load(None)
        return table.slice(0, n), table.num_rows

    def __repr__(self) -> str:
        table, n_rows = self._first_rows(PREVIEW_ROWS)
        return first_rows(table.to_pydict(), n_rows)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        table, n_rows = self._first_rows(PREVIEW_ROWS)
        return first_rows_html(table.to_pydict(), n_rows)


def import_duckdb() -> Any:
    """Return the duckdb module; an error says how to install it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingPackageError("SQL over runs needs duckdb (pip install duckdb)") from error
    return duckdb


def chosen_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns, all by default; for an unknown name the error suggests another."""
    for name in columns or ():
        refuse_unknown("column", name, schema.names)
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def with_schema(chunk: pa.Table, schema: pa.Schema, run: str) -> pa.Table:
    """Return the chunk with exactly the columns and types of ``schema``."""
    columns = []
    for field in schema:
        if field.name in chunk.column_names:
            columns.append(chunk[field.name].cast(field.type))
        elif field.name == "run":
            columns.append(pa.repeat(run, chunk.num_rows))
        else:
            columns.append(pa.nulls(chunk.num_rows, field.type))
    return pa.table(columns, schema=schema)
