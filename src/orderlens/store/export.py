"""Writing a table of a run to one file that other programs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from orderlens.common.files import refuse_place, replacing
from orderlens.errors import UserInputError
from orderlens.store.reader import Run

Chunks = Iterator[pa.Table]


def export_table(
    run: Run,
    name: str,
    target: Path,
    kind: str | None = None,
    *,
    tokens: bool = False,
    overwrite: bool = False,
) -> int:
    """Write table ``name`` to the file ``target`` and return its number of rows.

    Args:
        run: the run or runs.
        name: a table, ``samples`` included.
        target: the file; it appears only when it is whole.
        kind: parquet, csv, jsonl or arrow; None takes it from the file's suffix.
        tokens: add the text of each token; only ``reveals`` have tokens.
        overwrite: replace a file that is there.
    """
    chosen = kind or target.suffix.removeprefix(".")
    if chosen not in WRITERS:
        raise UserInputError(f"cannot export as '{chosen}' (known: {', '.join(WRITERS)})")
    refuse_place(target, overwrite=overwrite)
    if tokens and name != "reveals":
        raise UserInputError(f"--tokens goes with --table reveals, not {name}")
    frame = run.reveals(text=True) if tokens else run.table(name)
    chunks = run.iter_traces(text=tokens) if name == "reveals" else iter([frame.to_arrow()])
    with replacing(target) as fresh, fresh.open("wb") as sink:
        return WRITERS[chosen](sink, frame.schema, chunks)


def _parquet(sink: IO[bytes], schema: pa.Schema, chunks: Chunks) -> int:
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        return _written(writer, chunks)


def _arrow(sink: IO[bytes], schema: pa.Schema, chunks: Chunks) -> int:
    with pa.ipc.new_file(sink, schema) as writer:
        return _written(writer, chunks)


def _written(writer: Any, chunks: Chunks) -> int:
    rows = 0
    for chunk in chunks:
        writer.write_table(chunk)
        rows += chunk.num_rows
    return rows


def _csv(sink: IO[bytes], schema: pa.Schema, chunks: Chunks) -> int:
    """Lists become JSON text, since CSV has none."""
    flat = pa.schema(
        [pa.field(item.name, pa.string() if pa.types.is_list(item.type) else item.type) for item in schema]
    )

    def flattened(chunk: pa.Table) -> pa.Table:
        columns = [
            _as_text(chunk[item.name]) if pa.types.is_list(item.type) else chunk[item.name] for item in schema
        ]
        return pa.table(columns, schema=flat)

    with pa.csv.CSVWriter(sink, flat) as writer:
        return _written(writer, (flattened(chunk) for chunk in chunks))


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    values = column.to_pylist()
    return pa.array([None if value is None else json.dumps(_finite(value)) for value in values], pa.string())


def _jsonl(sink: IO[bytes], schema: pa.Schema, chunks: Chunks) -> int:
    """One JSON object per row; NaN and infinities become null, as JSON has none."""
    del schema
    rows = 0
    for chunk in chunks:
        for row in chunk.to_pylist():
            sink.write(
                json.dumps({name: _finite(value) for name, value in row.items()}, ensure_ascii=False).encode()
            )
            sink.write(b"\n")
        rows += chunk.num_rows
    return rows


def _finite(value: object) -> object:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not -float("inf") < value < float("inf") else value


WRITERS: dict[str, Callable[[IO[bytes], pa.Schema, Chunks], int]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "arrow": _arrow,
}
"""File formats by name."""
