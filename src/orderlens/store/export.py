"""Export a table of a run to one file for other programs, or its traces in the format of ``runs import``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from orderlens.common.files import refuse_place, replacing
from orderlens.errors import UserInputError
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, Passes, revising_passes
from orderlens.store.schema import conform
from orderlens.store.sources import TokenTexts, add_text

Chunks = Iterator[pa.Table]


def export_table(
    run: Run,
    name: str | None,
    target: Path,
    kind: str | None = None,
    *,
    tokens: bool = False,
    overwrite: bool = False,
) -> int:
    """Write table ``name`` to the file ``target`` and return its number of rows.

    Args:
        run: the run or runs.
        name: a table, or ``samples``. None writes what ``runs import`` reads: ``reveals`` and, in runs that
            revise, the rows of ``revisions``, with a column ``event``.
        target: the file; it appears only when it is complete.
        kind: parquet, csv, jsonl or arrow; None: from the file's suffix.
        tokens: add the text of each token; only for ``reveals`` and None.
        overwrite: replace an existing file.
    """
    chosen = kind or target.suffix.removeprefix(".")
    if chosen not in WRITERS:
        raise UserInputError(f"cannot export as '{chosen}'; use one of: {', '.join(WRITERS)}")
    refuse_place(target, overwrite=overwrite)
    if tokens and name not in ("reveals", None):
        raise UserInputError(f"--tokens does not apply to --table {name}; use --table reveals")
    schema, chunks = _chunks(run, name, tokens)
    with replacing(target) as fresh, fresh.open("wb") as sink:
        return WRITERS[chosen](sink, schema, chunks)


def _chunks(run: Run, name: str | None, tokens: bool) -> tuple[pa.Schema, Chunks]:
    if name is None and revises(run):
        return event_chunks(run, tokens=tokens)
    if name in ("reveals", None):
        return run.reveals(text=tokens).schema, run.iter_traces(text=tokens)
    frame = run.table(name)
    return frame.schema, iter([frame.to_arrow()])


def revises(run: Run) -> bool:
    """Return whether a run has traces of policies that revise, with or without a revision."""
    return any(revising_passes(source) for source in run.sources.values())


_OF_EVENTS = (("event", pa.string()), ("old_logq", pa.float64()), ("n_passes", pa.int32()))
"""Columns that events have besides those of reveals."""


def event_chunks(run: Run, *, tokens: bool = False) -> tuple[pa.Schema, Chunks]:
    """Return the rows of a run that revises: reveals that stay, then all other events.

    ``event`` is reveal, edit or remask; ``token_id`` is the token after the event, null for a remask.
    """
    reveals = run.reveals(text=tokens).schema
    schema = reveals.empty_table().schema
    for name, kind in _OF_EVENTS:
        schema = schema.append(pa.field(name, kind))
    schema = pa.schema([pa.field(item.name, item.type) for item in schema])
    passes = {name: revising_passes(source) for name, source in run.sources.items()}

    def chunks() -> Chunks:
        for chunk in run.iter_traces(text=tokens):
            event = pa.repeat(pa.scalar("reveal"), chunk.num_rows)
            yield _with_passes(chunk.append_column("event", event), schema, passes)
        for name, source in run.sources.items():
            texts = TokenTexts(source) if tokens else None
            for stored in source.scan("revisions", None):
                part = conform("revisions", stored)  # a part does not store columns that are all null
                if "run" in schema.names:
                    part = part.append_column("run", pa.repeat(pa.scalar(name), part.num_rows))
                part = part.append_column("token_id", part["new_token"])
                part = add_text(part, texts) if texts is not None else part
                yield _with_passes(part, schema, passes)

    return schema, chunks()


def _with_passes(table: pa.Table, schema: pa.Schema, passes: Mapping[str, Passes]) -> pa.Table:
    """Return rows with the columns of ``schema``; ``n_passes`` is that of their trace."""
    names = table["run"].to_pylist() if "run" in table.column_names else [next(iter(passes))] * len(table)
    keys = zip(*(table[name].to_pylist() for name in KEYS), strict=True)
    counts = [passes[name].get(key) for name, key in zip(names, keys, strict=True)]
    table = table.append_column("n_passes", pa.array(counts, pa.int32()))
    columns = [
        table[item.name].cast(item.type)
        if item.name in table.column_names
        else pa.nulls(len(table), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


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
    """Write CSV; lists are written as JSON text."""
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
    """Write one JSON object per row; NaN and infinities become null, because JSON cannot represent them."""
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
