"""Reading runs of older major schemas.

Schema 0.1 (before the first release) kept one table per part with other column names, the seed inside the
order, 1-based steps, and one ``manifest.json`` instead of unit records. ``legacy_tables`` returns its rows in
today's schema; the old folder is never changed.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orderlens.errors import CorruptRunError
from orderlens.store.folder import Folder

_RENAMED = {"sample": "sample_id", "token": "token_id", "top_logprob": "max_logprob"}


def legacy_tables(folder: Folder) -> dict[str, pa.Table]:
    """Return the tables of a run with schema 0.x, migrated to the current one."""
    try:
        entries = json.loads(folder.read("manifest.json"))["parts"]
        parts = [_read(folder, entry["path"], entry["sha256"]) for entry in entries]
    except (FileNotFoundError, KeyError, TypeError, ValueError) as error:
        raise CorruptRunError(f"{folder.label} (schema 0.x) has no usable manifest.json: {error}") from error
    return {"reveals": pa.concat_tables([migrate_reveals_0(part) for part in parts])} if parts else {}


def _read(folder: Folder, path: str, sha256: str) -> pa.Table:
    data = folder.read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptRunError(f"{folder.label}: {path} does not match its digest in manifest.json")
    return pq.read_table(pa.BufferReader(data))


def migrate_reveals_0(table: pa.Table) -> pa.Table:
    """Return reveals of schema 0.1 with today's names, a separate seed and 0-based steps."""
    renamed = table.rename_columns([_RENAMED.get(name, name) for name in table.column_names])
    pieces = pc.split_pattern(renamed["order"], ":").to_pylist()
    order = pa.array([piece[0] for piece in pieces], pa.string())
    seed = pa.array([int(piece[1]) if len(piece) > 1 else None for piece in pieces], pa.int64())
    step = pa.array(np.asarray(renamed["step"]) - 1)
    columns = {name: renamed[name] for name in renamed.column_names}
    return pa.table({**columns, "order": order, "seed": seed, "step": step})
