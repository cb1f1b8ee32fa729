"""Parts: Parquet files named by their content, opened only if they match their records.

A part's size and sha256 are compared with its record before Arrow or DuckDB reads it. A process compares a
file again only when its stamp (identity, size and times) changes. Small queries over a large run therefore
cost one pass over the parts they read. Local parts are read with Arrow's native files. A Python file or
buffer that an Arrow thread releases while the interpreter exits would abort the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orderlens.errors import CorruptRunError, one_line
from orderlens.store.codec import encode, open_part
from orderlens.store.protocol import Folder, Stamp
from orderlens.store.records import Bundle, Part

_BLOCK = 1 << 20
_compared: set[tuple[str, Stamp, str]] = set()
"""(location, stamp, sha256) of the files that this process found equal to their records."""
_LISTED_SAMPLES = 4096


def make_part(table_name: str, prefix: str, table: pa.Table, note: Mapping[str, Any]) -> tuple[Part, bytes]:
    """Return the part of ``table`` and its bytes.

    The name ends in the content's digest. Two workers that compute the same unit write the same file, or two
    files of which the record names one. A committed file is never overwritten with other bytes.
    """
    data, layout = encode(table_name, table, note)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{prefix}-{sha256[:16]}.parquet"
    return Part(table_name, path, table.num_rows, len(data), sha256, layout), data


def make_bundle(
    tables: Iterable[pa.Table],
    units: Mapping[str, Mapping[str, int]],
    parts: Iterable[Part],
    environments: Iterable[str],
) -> Bundle:
    """Return the bundle of some units with an index of its samples, orders and tasks."""
    found: dict[str, set[Any]] = {"sample_id": set(), "order": set(), "task": set()}
    for table in tables:
        for column, values in found.items():
            if column in table.column_names:
                values.update(pc.unique(table[column]).to_pylist())
    samples = sorted(found["sample_id"])
    return Bundle(
        units,
        tuple(parts),
        samples=tuple(samples) if len(samples) <= _LISTED_SAMPLES else None,
        first=samples[0] if samples else None,
        last=samples[-1] if samples else None,
        tasks=tuple(sorted(found["task"], key=lambda task: (task is not None, task))),
        orders=tuple(sorted(found["order"])),
        environments=tuple(sorted(set(environments))),
    )


@contextmanager
def opened(
    folder: Folder, part: Part, *, dictionaries: bool = False, recheck: bool = False
) -> Iterator[pq.ParquetFile]:
    """Open a part after comparing it with its record.

    Args:
        folder: the run.
        part: the part as its record describes it.
        dictionaries: keep the key strings as dictionaries.
        recheck: compare the bytes even if this process has compared them before.

    Raises:
        FileNotFoundError: the file is missing.
        CorruptRunError: it was truncated, changed or swapped, or cannot be read.
    """
    stamp = folder.stamp(part.path)
    known = not recheck and _is_known(folder, part, stamp)
    try:
        with (folder.open if known else folder.fetch)(part.path) as handle:
            if not known:
                _compare(handle, part)
                if stamp is not None:
                    _compared.add((folder.location(part.path), stamp, part.sha256))
                handle.seek(0)
            yield open_part(handle, dictionaries=dictionaries)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise CorruptRunError(f"{part.path} is damaged ({one_line(error)})") from error


def compare(folder: Folder, parts: Iterable[Part]) -> None:
    """Compare parts with their records before another program (DuckDB) opens them.

    Raises:
        FileNotFoundError: a file is missing.
        CorruptRunError: a file was truncated, changed or swapped, or cannot be read.
    """
    for part in parts:
        if not _is_known(folder, part, folder.stamp(part.path)):
            with opened(folder, part):
                pass


def _is_known(folder: Folder, part: Part, stamp: Stamp | None) -> bool:
    return stamp is not None and (folder.location(part.path), stamp, part.sha256) in _compared


def _compare(handle: pa.NativeFile, part: Part) -> None:
    size = handle.size()
    if size != part.size:
        raise CorruptRunError(f"{part.path} is damaged ({size} bytes instead of {part.size})")
    digest = hashlib.sha256()
    while len(block := handle.read_buffer(_BLOCK)):
        digest.update(block)
    if digest.hexdigest() != part.sha256:
        raise CorruptRunError(f"{part.path} is damaged (its digest does not match its record)")
