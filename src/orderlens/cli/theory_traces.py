"""Traces for ``orderlens theory``: from a run, or from a table, list or column of numbers in a file.

Rows that share the columns naming a trace belong together: those of a run's traces where the file has them,
or the columns that the caller names. A row that holds a whole list is a trace of its own. Rows that might
belong to several traces are never merged silently. This module knows no theory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import DataFileError, UserInputError
from orderlens.texts.rows import kind_of, parse_json, read_lines, read_rows

if TYPE_CHECKING:
    import pandas as pd

NAMING_COLUMNS = ("run", "task", "sample_id", "order", "seed", "temperature", "sample_seed")
ROW = "row"
"""Names the traces of a file whose rows hold whole lists."""
FORMATS = ".json, .jsonl, .csv, .tsv, .txt (each also .gz or .xz), .parquet, or a run folder"


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Which columns of a file mean what.

    Attributes:
        logq: log q.
        hits: whether the target was the argmax; used where it exists.
        step: what rows of a trace are sorted by, where it exists; else the file's order counts.
        by: columns that name a trace; () is one trace in all, None those of ``NAMING_COLUMNS`` that exist.
    """

    logq: str = "logq"
    hits: str = "is_argmax"
    step: str = "step"
    by: tuple[str, ...] | None = None


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
    path: Path, columns: TraceColumns | None = None, sample: str | None = None, order: str | None = None
) -> Iterator[Trace]:
    """Yield the traces at ``path``, optionally those of one sample or one order.

    Args:
        path: a run folder or a file.
        columns: what the file's columns are called.
        sample: keep this sample_id.
        order: keep this order id.

    Raises:
        DataFileError: the file is missing, unreadable, or lacks the column; the message names it.
    """
    names = columns or TraceColumns()
    tables = _run_tables(path, names) if path.is_dir() else iter([_file_table(path, names)])
    found = 0
    for table in tables:
        kept = _kept(table, sample, order)
        for trace in _split(kept, names, path):
            found += 1
            yield trace
    if not found:
        wanted = "".join(
            f" with {key} {value!r}" for key, value in (("sample", sample), ("order", order)) if value
        )
        raise UserInputError(f"{path} holds no trace{wanted}")


def _run_tables(path: Path, columns: TraceColumns) -> Iterator[pd.DataFrame]:
    from orderlens.store.reader import open_run
    from orderlens.store.schema import SCHEMAS

    known = SCHEMAS["reveals"].names
    for option, name in (("--column", columns.logq), ("--step", columns.step)):
        if name not in known:
            raise UserInputError(f"{option} {name!r} is not a trace column; allowed: {', '.join(known)}")
    if columns.by is not None:
        raise UserInputError(f"--by is for files; the run {path} knows its traces")
    wanted = [
        name
        for name in (*NAMING_COLUMNS, columns.step, "is_overflow", columns.logq, columns.hits)
        if name in known
    ]
    for chunk in open_run(path).iter_traces(list(dict.fromkeys(wanted))):
        yield chunk.to_pandas()


def _file_table(path: Path, columns: TraceColumns) -> pd.DataFrame:
    import pandas as pd

    if not path.exists():
        raise DataFileError(f"'{path}' does not exist; give {FORMATS}")
    kind = kind_of(path)
    if kind == "txt":
        return pd.DataFrame({columns.logq: [_number(line, f"{path}, line {n}") for n, line in _filled(path)]})
    if kind == "json":
        text = "".join(line for _, line in read_lines(path))
        return _table_of(parse_json(text, str(path)), columns.logq, path)
    if kind == "jsonl":
        return _table_of(
            [parse_json(line, f"{path}, line {n}") for n, line in _filled(path)], columns.logq, path
        )
    table = pd.DataFrame([row for _, row in read_rows(path)])
    return _typed(table) if kind in ("csv", "tsv") else table


def _filled(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in read_lines(path) if line.strip())


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataFileError(f"{where}: {text.strip()[:60]!r} is not a number") from None


def texts_of(traces: Sequence[Trace]) -> NDArray[np.int64]:
    """Return a number per trace that traces of one text share; a trace that names no sample stands alone."""
    keys = [
        (trace.name.get("task"), trace.name["sample_id"]) if "sample_id" in trace.name else place
        for place, trace in enumerate(traces)
    ]
    numbers = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Turn columns of CSV cells into numbers or truth values where every filled cell is one."""
    import pandas as pd

    for name in table.columns:
        cells = table[name].where(table[name].str.strip() != "")
        numbers = pd.to_numeric(cells, errors="coerce")
        truths = cells.str.strip().str.lower().map({"true": True, "false": False})
        for found in (numbers, truths):
            if found.notna().equals(cells.notna()):
                cells = found
                break
        table[name] = cells
    return table


def _table_of(data: Any, column: str, path: Path) -> pd.DataFrame:
    """Return rows from a list of numbers, of objects, or one object whose column is a list."""
    import pandas as pd

    if isinstance(data, dict):
        data = [data]
    if isinstance(data, list) and all(isinstance(item, int | float) for item in data):
        return pd.DataFrame({column: data})
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise DataFileError(f"{path}: expected numbers, or objects with {column!r}; got {str(data)[:60]}")
    table = pd.DataFrame(data)
    lists = [str(name) for name in table if table[name].map(lambda item: isinstance(item, list)).any()]
    if column not in lists:
        return table
    table[ROW] = range(len(table))
    try:
        return table.explode(lists, ignore_index=True)
    except ValueError:
        raise DataFileError(f"{path}: the lists of one row differ in length ({', '.join(lists)})") from None


def _kept(table: pd.DataFrame, sample: str | None, order: str | None) -> pd.DataFrame:
    for name, value in (("sample_id", sample), ("order", order)):
        if value is not None and name not in table:
            raise UserInputError(f"--{name.removesuffix('_id')} needs a column {name!r}, which the data lack")
        if value is not None:
            table = table[table[name].astype(str) == value]
    if "is_overflow" in table:
        table = table[~table["is_overflow"].fillna(False).astype(bool)]
    return table


def _split(table: pd.DataFrame, columns: TraceColumns, path: Path) -> Iterator[Trace]:
    listed = ", ".join(map(str, table.columns))
    for wanted in (columns.logq, *(columns.by or ())):
        if wanted not in table:
            raise DataFileError(f"{path} has no column {wanted!r}; it has {listed}")
    names = _naming(table, columns, path)
    groups = table.groupby(names, sort=False, dropna=False) if names else [((), table)]
    for key, rows in groups:
        if not len(rows):
            continue
        ordered = rows.sort_values(columns.step, kind="stable") if columns.step in rows else rows
        pairs = zip(names, key, strict=True)
        name = {label: value for label, value in pairs if value is not None and value == value}
        known = columns.hits in ordered and bool(ordered[columns.hits].notna().all())
        flags = ordered[columns.hits].to_numpy().astype(bool) if known else None
        yield Trace(name, _numbers(ordered, columns.logq, path), flags)


def _naming(table: pd.DataFrame, columns: TraceColumns, path: Path) -> list[str]:
    """Return the columns that name a trace; refuse to guess where other columns look as if they did."""
    if columns.by is not None:
        return list(columns.by)
    names = [name for name in (*NAMING_COLUMNS, ROW) if name in table and table[name].notna().any()]
    if names:
        return names
    from orderlens.store.schema import SCHEMAS

    known = {*SCHEMAS["reveals"].names, columns.logq, columns.hits, columns.step}
    rivals = [str(name) for name in table if name not in known and _groups(table[name])]
    if rivals:
        raise UserInputError(
            f"{path} may hold several traces: say which columns name one, e.g. --by {rivals[0]}, "
            f"or --by none for one trace in all"
        )
    return []


def _groups(column: pd.Series[Any]) -> bool:
    """Whether a column looks like a name: no fractions, and some values repeat while others differ."""
    return column.dtype.kind != "f" and 1 < column.astype(str).nunique() < len(column)


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
