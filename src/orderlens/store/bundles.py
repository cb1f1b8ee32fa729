"""Making bundles: tables become parts with content-derived names, plus an index of what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orderlens.store.codec import encode
from orderlens.store.records import Bundle, Part

_LISTED_SAMPLES = 4096


def make_part(table_name: str, prefix: str, table: pa.Table, note: Mapping[str, Any]) -> tuple[Part, bytes]:
    """Return the part of ``table`` and its bytes.

    The name ends in the content's digest: two workers that compute the same unit write the same file, or two
    files of which the record names one. Nothing committed is ever overwritten with other bytes.
    """
    data, layout = encode(table_name, table, note)
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{prefix}-{sha256[:16]}.parquet"
    return Part(table_name, path, table.num_rows, len(data), sha256, layout), data


def describe(
    tables: Iterable[pa.Table],
    units: Mapping[str, Mapping[str, int]],
    parts: Iterable[Part],
    environments: Iterable[str],
) -> Bundle:
    """Return the bundle of some units with an index of the samples, orders and tasks in it."""
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
