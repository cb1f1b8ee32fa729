"""Tables to Parquet bytes and back, compactly and without loss.

Two kinds of values are not stored: columns that contain only nulls, and values that follow from another
column. When scoring, the target's log-probability equals ``logq``; where the argmax was revealed, so does the
maximum. Such values are null in the file, and the file's metadata names the columns to fill. Reading restores
them bit for bit, in Arrow and in SQL. All other values are stored exactly. Row groups end where traces end.
Does not depend on folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orderlens.store.schema import REAL_COLUMNS, SCHEMA_VERSION, SCHEMAS, SORT_KEYS, TRACE_KEY

ROW_GROUP_ROWS = 1 << 15
GROUPS_PER_READ = 4
"""Row groups per read; limits the memory of a scan to about 100,000 rows."""
METADATA_KEY = b"orderlens"
_DELTA = ("block", "step", "forward", "position")
_SPLIT = ("token_id",)
ZSTD_LEVEL = 12  # a few µs per row; generating a row takes far longer


@dataclass(frozen=True, slots=True)
class Derived:
    """The rule by which one column follows from others.

    Attributes:
        columns: the input columns.
        function: computes the column from them.
        expression: the same as SQL, with one placeholder per input column.
    """

    columns: tuple[str, ...]
    function: Callable[..., pa.ChunkedArray]
    expression: str

    def value(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the implied column."""
        return self.function(*(table[name] for name in self.columns))

    def sql(self, column: Callable[[str], str]) -> str:
        """Return the implied column as SQL; ``column`` gives the SQL of an input column."""
        return self.expression.format(*map(column, self.columns))


_SAME_AS_LOGQ = Derived(("logq",), lambda logq: logq, "{}")
DERIVED = {
    "target_logprob": _SAME_AS_LOGQ,
    "max_logprob": _SAME_AS_LOGQ,
    "tempered_logq": _SAME_AS_LOGQ,
    "is_argmax": Derived(("logq", "max_logprob"), pc.equal, "({} = {})"),
    "competitor_logprob": Derived(
        ("is_argmax", "second_logprob", "max_logprob"), pc.if_else, "CASE WHEN {} THEN {} ELSE {} END"
    ),
}
"""Columns of ``reveals`` that a part need not store. A rule may use the columns before it."""


def sort_rows(table: pa.Table, name: str) -> pa.Table:
    """Return the rows sorted by trace, then by the sort keys of the table (``step``, …); stable."""
    keys = ["run", *TRACE_KEY, *SORT_KEYS.get(name, ())]
    present = _ascending(key for key in keys if key in table.column_names)
    return table.take(pc.sort_indices(table, sort_keys=present)) if present else table


def sort_traces(table: pa.Table) -> pa.Table:
    """Return reveals sorted by trace, if each trace is already complete, contiguous and sorted by step.

    The result is that of ``sort_rows``, but only one row per trace is compared.
    """
    starts = trace_starts(table)
    ranked = np.asarray(
        pc.sort_indices(table.select(TRACE_KEY).take(starts), sort_keys=_ascending(TRACE_KEY))
    )
    if np.array_equal(ranked, np.arange(len(starts))):
        return table
    lengths = np.diff(starts, append=table.num_rows)[ranked]
    ends = np.cumsum(lengths)
    return table.take(np.repeat(starts[ranked] - ends + lengths, lengths) + np.arange(table.num_rows))


def _ascending(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in names]


def trace_starts(table: pa.Table, columns: Sequence[str] = (*TRACE_KEY, "run")) -> NDArray[np.int64]:
    """Return the first row of each trace (or of each stretch of rows with equal ``columns``).

    The rows of a trace must be contiguous. Columns that the table lacks are ignored.
    """
    if not table.num_rows:
        return np.empty(0, np.int64)
    changed = np.zeros(table.num_rows, bool)
    changed[0] = True
    for name in columns:
        if name in table.column_names:
            changed[1:] |= _changes(table[name])
    return np.flatnonzero(changed)


def _changes(column: pa.ChunkedArray) -> NDArray[np.bool_] | np.bool_:
    """Return where a value differs from the previous one (null equals null), shape [rows − 1]."""
    if column.null_count == len(column):
        return np.bool_(False)
    plain = pa.types.is_primitive(column.type) and not column.null_count
    values = column.to_numpy() if plain else _codes(column)
    return np.asarray(values[1:] != values[:-1])


def _codes(column: pa.ChunkedArray) -> NDArray[np.int32]:
    """Return a number per value, −1 for null."""
    coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    indices = coded.unify_dictionaries().combine_chunks().indices
    return np.asarray(indices.fill_null(-1) if indices.null_count else indices)


def encode(name: str, table: pa.Table, metadata: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the Parquet bytes of a sorted table of ``name``, and a digest of their layout."""
    slim, filled = _compacted(name, table)
    note = {"schema_version": SCHEMA_VERSION, "table": name, "filled": filled, **metadata}
    sink = pa.BufferOutputStream()
    # Parquet's schema is enough for the types of reveals; an Arrow schema would add 2 kB per part.
    arrow_schema = name != "reveals"
    with pq.ParquetWriter(sink, slim.schema, store_schema=arrow_schema, **_options(slim.schema)) as writer:
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(note, sort_keys=True).encode()})
        for start, stop in _groups(table if name == "reveals" else None, slim.num_rows):
            writer.write_table(slim.slice(start, stop - start), row_group_size=stop - start)
    return sink.getvalue().to_pybytes(), _layout(slim.schema, filled)


def _layout(schema: pa.Schema, filled: Sequence[str]) -> str:
    text = "\n".join(f"{field.name}:{field.type}" for field in schema) + "|" + ",".join(filled)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _options(schema: pa.Schema) -> dict[str, Any]:
    encoding = {field.name: kind for field in schema if (kind := _encoding(field)) is not None}
    codes = [f"{field.name}.list.element" for field in schema if field.type == pa.list_(pa.uint16())]
    encoding |= dict.fromkeys(codes, "BYTE_STREAM_SPLIT")
    return {
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": [
            field.name for field in schema if field.name not in encoding and _plain(field.type)
        ],
        "column_encoding": encoding,
        "write_statistics": [item for item in (*TRACE_KEY, "logq") if item in schema.names],
        "write_page_checksum": True,
        "version": "2.6",
        "data_page_version": "2.0",
    }


def _encoding(field: pa.Field) -> str | None:
    """Return the encoding of a column that does not benefit from a dictionary."""
    if field.name in _DELTA and field.type == pa.int32():
        return "DELTA_BINARY_PACKED"
    real = field.type in (pa.float32(), pa.float64()) and field.name != "temperature"
    return "BYTE_STREAM_SPLIT" if real or (field.name in _SPLIT and field.type == pa.int32()) else None


def _plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_boolean(kind))


def _groups(table: pa.Table | None, rows: int) -> Iterator[tuple[int, int]]:
    """Yield row-group bounds of about ROW_GROUP_ROWS rows; no group ends inside a trace."""
    cuts = np.arange(0, rows, ROW_GROUP_ROWS) if table is None else trace_starts(table)
    start = 0
    while start < rows:
        later = cuts[np.searchsorted(cuts, start + ROW_GROUP_ROWS) :]
        stop = int(later[0]) if len(later) else rows
        yield start, stop
        start = stop


def _compacted(name: str, table: pa.Table) -> tuple[pa.Table, list[str]]:
    """Return the table without implied values and empty columns, and the columns to fill when reading."""
    filled: list[str] = []
    slim = table
    for column, rule in DERIVED.items() if name == "reveals" else ():
        thinned = _nulled(table, column, rule)
        if thinned is not None:
            slim = slim.set_column(slim.column_names.index(column), column, thinned)
            filled.append(column)
    optional = [field.name for field in slim.schema if field.nullable]
    empty = [item for item in optional if slim[item].null_count == slim.num_rows and _restorable(name, item)]
    return slim.drop_columns(empty), filled


def _restorable(name: str, column: str) -> bool:
    """Return whether a reader can restore a missing column: only those of the schema; key columns never."""
    return name in SCHEMAS and column in SCHEMAS[name].names and column not in TRACE_KEY


def _nulled(table: pa.Table, column: str, rule: Derived) -> pa.ChunkedArray | None:
    """Return ``column`` with nulls where the rule implies its value, or None if this saves nothing."""
    if any(table[item].null_count for item in (column, *rule.columns)) or not table.num_rows:
        return None
    same = _same_bits(table[column], rule.value(table))
    if same.mean() < 0.05:  # below this share the null flags cost more than they save
        return None
    return pc.if_else(pa.array(same), pa.scalar(None, table[column].type), table[column])


def _same_bits(left: pa.ChunkedArray, right: pa.ChunkedArray) -> NDArray[np.bool_]:
    bits = {pa.float32(): np.int32, pa.float64(): np.int64, pa.bool_(): np.int8}[left.type]
    return np.asarray(left.to_numpy().view(bits) == right.to_numpy().view(bits))


def stored_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns stored in a part, with the file's metadata."""
    return file.schema_arrow.with_metadata(file.metadata.metadata)


def part_note(schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata that ``encode`` wrote to a part; empty for other files."""
    raw = (schema.metadata or {}).get(METADATA_KEY)
    try:
        note = json.loads(raw) if raw else {}
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def filled_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a part with values to restore."""
    return list(part_note(schema).get("filled", []))


def full_schema(name: str, stored: pa.Schema) -> pa.Schema:
    """Return the schema of the restored table: declared columns first, then additional ones of the file."""
    real = _real(stored)
    declared = [] if name not in SCHEMAS else [_declared(field, real) for field in SCHEMAS[name]]
    names = {field.name for field in declared}
    additional = [pa.field(field.name, field.type) for field in stored if field.name not in names]
    return pa.schema([*declared, *additional])


def _real(stored: pa.Schema) -> pa.DataType | None:
    """Return the float type of a part's log-probabilities; None when it stores none."""
    return next((field.type for field in stored if field.name in REAL_COLUMNS), None)


def _declared(field: pa.Field, real: pa.DataType | None) -> pa.Field:
    kind = real if real is not None and field.name in REAL_COLUMNS else field.type
    return pa.field(field.name, kind)


def columns_needed(columns: Iterable[str], filled: Sequence[str]) -> list[str]:
    """Return the columns to read so that ``columns`` can be restored."""
    result = list(dict.fromkeys(columns))
    for column in result:  # the list grows during the loop: rules may use columns of other rules
        if column in filled:
            result += [item for item in DERIVED[column].columns if item not in result]
    return result


def restore(name: str, stored: pa.Table, columns: Sequence[str], file_schema: pa.Schema) -> pa.Table:
    """Return ``columns`` of the full table from the stored columns."""
    filled = filled_columns(file_schema)
    schema = full_schema(name, file_schema)
    table = stored
    for column in columns_needed(columns, filled):
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, schema.field(column).type))
    for column, rule in DERIVED.items():
        if column in filled and column in table.column_names:
            value = pc.coalesce(table[column], rule.value(table))
            table = table.set_column(table.column_names.index(column), column, value)
    return table.select(list(columns)).cast(
        pa.schema([_as_read(table, schema.field(item)) for item in columns])
    )


def _as_read(table: pa.Table, field: pa.Field) -> pa.Field:
    """Return the field with its dictionary type if it was read as a dictionary."""
    kind = table.schema.field(field.name).type
    return pa.field(field.name, kind if pa.types.is_dictionary(kind) else field.type)


def open_part(handle: pa.NativeFile, *, dictionaries: bool = False) -> pq.ParquetFile:
    """Open a part for reading with checksums; ``dictionaries`` keeps the key strings as dictionaries."""
    coded = ["sample_id", "task", "order"] if dictionaries else None
    return pq.ParquetFile(handle, page_checksum_verification=True, read_dictionary=coded, memory_map=False)


def read_groups(
    name: str, file: pq.ParquetFile, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the row groups of a part as restored tables, a few at a time."""
    schema = stored_schema(file)
    wanted = list(columns) if columns is not None else full_schema(name, schema).names
    stored = [item for item in columns_needed(wanted, filled_columns(schema)) if item in schema.names]
    chosen = list(range(file.num_row_groups)) if groups is None else list(groups)
    for start in range(0, len(chosen), GROUPS_PER_READ):
        batch = chosen[start : start + GROUPS_PER_READ]
        rows = sum(file.metadata.row_group(group).num_rows for group in batch)
        table = file.read_row_groups(batch, columns=stored) if stored else _no_columns(rows)
        yield restore(name, table, wanted, schema)


def groups_with_sample(file: pq.ParquetFile, sample_id: str) -> list[int]:
    """Return the row groups whose range of sample ids includes ``sample_id``."""
    column = file.schema_arrow.names.index("sample_id")  # all columns before it are flat
    found = []
    for group in range(file.num_row_groups):
        range_ = file.metadata.row_group(group).column(column).statistics
        if range_ is None or not range_.has_min_max or range_.min <= sample_id <= range_.max:
            found.append(group)
    return found


def _no_columns(rows: int) -> pa.Table:
    """Return a table with rows and no columns (all requested columns contain only nulls)."""
    return pa.table({"_": pa.nulls(rows)}).select([]) if rows == 0 else pa.table({"_": pa.nulls(rows)})
