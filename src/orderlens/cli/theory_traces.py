"""Traces for ``orderlens theory``: from a run, or from a table, list or column of numbers in a file.

Rows that share the columns naming a trace (sample_id, order, …) belong together; a file without them is one
trace, and so is each row that holds a whole list. This module knows no theory.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import DataFileError, UserInputError

if TYPE_CHECKING:
    import pandas as pd

NAMING_COLUMNS = ("run", "task", "sample_id", "order", "seed", "temperature", "sample_seed")
FORMATS = ".json, .jsonl, .csv, .parquet or .txt (also .gz), or a run folder"


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace: what names it, its values [n], and whether each target was the argmax [n] where known."""

    name: dict[str, Any]
    values: NDArray[np.float64]
    hits: NDArray[np.bool_] | None

    @property
    def label(self) -> str:
        """The name on one line."""
        return ", ".join(f"{key}={value}" for key, value in self.name.items()) or "trace"


def read_traces(
    path: Path, column: str, hits: str = "is_argmax", sample: str | None = None, order: str | None = None
) -> Iterator[Trace]:
    """Yield the traces at ``path``, optionally those of one sample or one order.

    Args:
        path: a run folder or a file.
        column: the column that holds log q.
        hits: the column that says whether the target was the argmax, used where it exists.
        sample: keep this sample_id.
        order: keep this order id.

    Raises:
        DataFileError: the file is missing, unreadable, or lacks the column; the message names it.
    """
    if not path.exists():
        raise DataFileError(f"{path} does not exist; give {FORMATS}")
    tables = _run_tables(path, column, hits) if path.is_dir() else iter([_file_table(path, column)])
    found = 0
    for table in tables:
        kept = _kept(table, sample, order)
        for trace in _split(kept, column, hits, path):
            found += 1
            yield trace
    if not found:
        wanted = "".join(
            f" with {key} {value!r}" for key, value in (("sample", sample), ("order", order)) if value
        )
        raise UserInputError(f"{path} holds no trace{wanted}")


def _run_tables(path: Path, column: str, hits: str) -> Iterator[pd.DataFrame]:
    from orderlens.store.reader import open_run
    from orderlens.store.schema import SCHEMAS

    known = SCHEMAS["reveals"].names
    if column not in known:
        raise UserInputError(f"--column {column!r} is not a trace column; allowed: {', '.join(known)}")
    wanted = [name for name in (*NAMING_COLUMNS, "step", "is_overflow", column, hits) if name in known]
    for chunk in open_run(path).iter_traces(list(dict.fromkeys(wanted))):
        yield chunk.to_pandas()


def _file_table(path: Path, column: str) -> pd.DataFrame:
    import pandas as pd

    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if kind == "parquet":
            return pd.read_parquet(path)
        if kind == "csv":
            return pd.read_csv(path)
        if kind in ("json", "jsonl", "txt"):
            return _text_table(path, kind, column)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, UserInputError):
            raise
        raise DataFileError(f"cannot read {path}: {error}") from error
    raise DataFileError(f"{path} has no known ending; give {FORMATS}")


def _text_table(path: Path, kind: str, column: str) -> pd.DataFrame:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.name.lower().endswith(".gz") else raw).decode()
    if kind == "json":
        return _table_of(json.loads(text), column)
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    parse = json.loads if kind == "jsonl" else float
    rows = []
    for number, line in lines:
        try:
            rows.append(parse(line))
        except ValueError:
            raise DataFileError(f"{path}, line {number}: {line[:60]!r} is not {_expected(kind)}") from None
    return _table_of(rows, column)


def _expected(kind: str) -> str:
    return "JSON" if kind == "jsonl" else "a number"


def _table_of(data: Any, column: str) -> pd.DataFrame:
    """Return rows from a list of numbers, of objects, or one object whose column is a list."""
    import pandas as pd

    if isinstance(data, dict):
        data = [data]
    if isinstance(data, list) and all(isinstance(item, int | float) for item in data):
        return pd.DataFrame({column: data})
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise DataFileError(f"expected numbers, or objects with {column!r}; got {str(data)[:60]}")
    table = pd.DataFrame(data)
    if column in table and table[column].map(lambda item: isinstance(item, list)).any():
        if not set(NAMING_COLUMNS) & set(table.columns):
            table["sample_id"] = [str(row) for row in range(len(table))]
        longer = [name for name in table if isinstance(table[name].iloc[0], list)]
        table = table.explode(longer, ignore_index=True)
    return table


def _kept(table: pd.DataFrame, sample: str | None, order: str | None) -> pd.DataFrame:
    for name, value in (("sample_id", sample), ("order", order)):
        if value is not None and name not in table:
            raise UserInputError(f"--{name.removesuffix('_id')} needs a column {name!r}, which the data lack")
        if value is not None:
            table = table[table[name].astype(str) == value]
    if "is_overflow" in table:
        table = table[~table["is_overflow"].fillna(False).astype(bool)]
    return table


def _split(table: pd.DataFrame, column: str, hits: str, path: Path) -> Iterator[Trace]:
    if column not in table:
        raise DataFileError(f"{path} has no column {column!r}; it has {', '.join(map(str, table.columns))}")
    names = [name for name in NAMING_COLUMNS if name in table and table[name].notna().any()]
    groups = table.groupby(names, sort=False, dropna=False) if names else [((), table)]
    for key, rows in groups:
        if not len(rows):
            continue
        ordered = rows.sort_values("step", kind="stable") if "step" in rows else rows
        pairs = zip(names, key, strict=True)
        name = {label: value for label, value in pairs if value is not None and value == value}
        known = hits in ordered and bool(ordered[hits].notna().all())
        flags = ordered[hits].to_numpy().astype(bool) if known else None
        yield Trace(name, _numbers(ordered, column, path), flags)


def _numbers(rows: pd.DataFrame, column: str, path: Path) -> NDArray[np.float64]:
    import pandas as pd

    values = pd.to_numeric(rows[column], errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values <= 0)))
    if wrong.size:
        place = int(wrong[0])
        bad = rows[column].iloc[place]
        rule = "a log-probability is finite and at most 0"
        raise DataFileError(f"{path}: {column} of row {rows.index[place]} is {str(bad)!r}; {rule}")
    return values
