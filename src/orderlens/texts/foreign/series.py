"""Reads the log-probabilities of traces from any file or run, for ``orderlens theory``.

Rows with equal values in the naming columns form a trace. The naming columns are those of a run, or columns
that the caller names. A row with a list is one trace. If the rows might form several traces, the caller must
say so. Does not depend on the theory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import DataFileError, UserInputError
from orderlens.store.schema import SCHEMAS
from orderlens.texts.foreign.rows import read_truth
from orderlens.texts.rows import Row, kind_of, parse_json, read_lines, read_rows

NAMING_COLUMNS = ("run", "task", "sample_id", "order", "seed", "temperature", "sample_seed")
ROW = "row"
"""Naming column of traces in files whose rows are lists."""
FORMATS = ".json, .jsonl, .csv, .tsv, .txt (each also .gz or .xz), .parquet, or a run folder"


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """Names of the columns of a file.

    Attributes:
        logq: column of log q.
        hits: column that says whether the target was the argmax; optional.
        step: column by which the rows of a trace are sorted; without it, the order of the file is used.
        by: naming columns; () for a single trace, None for those of ``NAMING_COLUMNS`` that exist.
    """

    logq: str = "logq"
    hits: str = "is_argmax"
    step: str = "step"
    by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One trace: its name, its values [n], and, if known, whether each target was the argmax [n]."""

    name: dict[str, Any]
    values: NDArray[np.float64]
    hits: NDArray[np.bool_] | None

    @property
    def label(self) -> str:
        """The name on one line."""
        return ", ".join(f"{key}={value}" for key, value in self.name.items()) or "trace"


def read_series(
    path: Path, columns: SeriesColumns | None = None, sample: str | None = None, order: str | None = None
) -> Iterator[Series]:
    """Yield the traces at ``path``, optionally those of one sample or one order.

    Args:
        path: a run folder or a file.
        columns: names of the columns.
        sample: only this sample_id.
        order: only this order id.

    Raises:
        DataFileError: the file is missing, unreadable, or lacks the column; the message names it.
    """
    names, found = columns or SeriesColumns(), 0
    for rows in _run_rows(path, names) if path.is_dir() else iter([_file_rows(path, names)]):
        for trace in _split(rows, _kept(rows, sample, order), names, path):
            found += 1
            yield trace
    if not found:
        wanted = {"sample": sample, "order": order}
        which = "".join(f" with {key} {value!r}" for key, value in wanted.items() if value)
        raise UserInputError(f"{path} has no trace{which}")


def texts_of(traces: Sequence[Series]) -> NDArray[np.int64]:
    """Return the number of each trace's text; a trace without sample id counts as a separate text."""
    keys = [
        (trace.name.get("task"), trace.name["sample_id"]) if "sample_id" in trace.name else place
        for place, trace in enumerate(traces)
    ]
    numbers = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def _run_rows(path: Path, columns: SeriesColumns) -> Iterator[list[Row]]:
    from orderlens.store.reader import open_run

    known = SCHEMAS["reveals"].names
    for field, name in (("logq", columns.logq), ("step", columns.step)):
        if name not in known:
            allowed = ", ".join(known)
            raise UserInputError(f"--column {field}={name}: not a column of traces; allowed: {allowed}")
    if columns.by is not None:
        raise UserInputError(f"--by is for files only; {path} is a run, so leave it out")
    wanted = (*NAMING_COLUMNS, columns.step, "is_overflow", columns.logq, columns.hits)
    for chunk in open_run(path).iter_traces(list(dict.fromkeys(name for name in wanted if name in known))):
        yield chunk.to_pylist()


def _file_rows(path: Path, columns: SeriesColumns) -> list[Row]:
    if not path.exists():
        raise DataFileError(f"'{path}' does not exist; give {FORMATS}")
    values = _values(path)
    if all(isinstance(item, int | float) for item in values):
        return [{columns.logq: item} for item in values]
    if not all(isinstance(item, dict) for item in values):
        raise DataFileError(
            f"{path}: expected numbers, or objects with {columns.logq!r}; got {str(values)[:60]}"
        )
    if kind_of(path) in ("csv", "tsv"):
        return _typed(values, columns.logq)
    return _flat(values, columns.logq, path)


def _values(path: Path) -> list[Any]:
    """Return the numbers or rows of a file."""
    kind = kind_of(path)
    if kind == "json":
        value = parse_json("".join(line for _, line in read_lines(path)), str(path))
        return value if isinstance(value, list) else [value]
    if kind not in ("txt", "jsonl"):
        return [row for _, row in read_rows(path)]
    lines = ((f"{path}, line {number}", line) for number, line in read_lines(path) if line.strip())
    return [(_number if kind == "txt" else parse_json)(line, where) for where, line in lines]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataFileError(f"{where}: {text.strip()[:60]!r} is not a number") from None


def _typed(rows: list[Row], logq: str) -> list[Row]:
    """Convert CSV columns to numbers or truth values if all non-empty cells allow it."""
    for name in rows[0]:
        cells = [row[name].strip() or None for row in rows]
        for read in (int, float, read_truth):
            try:
                cells = [None if cell is None else read(cell) for cell in cells]
                break
            except (ValueError, DataFileError):
                continue
        if name != logq:  # checked later, with its text in the message
            for row, cell in zip(rows, cells, strict=True):
                row[name] = cell
    return rows


def _flat(rows: list[Row], logq: str, path: Path) -> list[Row]:
    """Return one row per number; a row with lists is a trace."""
    if not any(isinstance(row.get(logq), list) for row in rows):
        return rows
    out: list[Row] = []
    for place, row in enumerate(rows):
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        if len({len(value) for value in lists.values()}) > 1:
            raise DataFileError(f"{path}: the lists of one row differ in length ({', '.join(lists)})")
        length = len(next(iter(lists.values()), [None]))
        out += [row | {ROW: place} | {name: lists[name][i] for name in lists} for i in range(length)]
    return out


def _kept(rows: Sequence[Row], sample: str | None, order: str | None) -> list[tuple[int, Row]]:
    """Return the numbered rows of a sample or an order, up to the requested length."""
    for name, value in (("sample_id", sample), ("order", order)):
        if value is not None and not any(name in row for row in rows):
            raise UserInputError(f"--{name.removesuffix('_id')} needs a column {name!r}, which the data lack")
    wanted = {name: value for name, value in (("sample_id", sample), ("order", order)) if value is not None}
    return [
        (place, row)
        for place, row in enumerate(rows)
        if not _is_true(row.get("is_overflow"))
        and all(str(row.get(name)) == value for name, value in wanted.items())
    ]


def _is_true(value: Any) -> bool:
    return bool(value) if isinstance(value, int | float) else value is not None and bool(read_truth(value))


def _split(
    rows: Sequence[Row], kept: Sequence[tuple[int, Row]], columns: SeriesColumns, path: Path
) -> Iterator[Series]:
    listed = list(dict.fromkeys(name for row in rows for name in row))
    for wanted in (columns.logq, *(columns.by or ())):
        if rows and wanted not in listed:
            raise DataFileError(f"{path} has no column {wanted!r}; it has {', '.join(listed)}")
    names = _naming(kept, listed, columns, path)
    groups: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
    for place, row in kept:
        key = tuple(None if _absent(row.get(name)) else row[name] for name in names)
        groups.setdefault(key, []).append((place, row))
    for key, members in groups.items():
        if columns.step in listed:
            members.sort(key=lambda item: _rank(item[1].get(columns.step)))
        flags = [row.get(columns.hits) for _, row in members]
        hits = None if any(map(_absent, flags)) else np.array([_is_true(flag) for flag in flags])
        name = {label: value for label, value in zip(names, key, strict=True) if value is not None}
        values = [
            _log_probability(row.get(columns.logq), place, columns.logq, path) for place, row in members
        ]
        yield Series(name, np.array(values), hits)


def _absent(value: Any) -> bool:
    return value is None or value != value


def _rank(step: Any) -> tuple[bool, Any]:
    return (True, 0) if _absent(step) else (False, step)


def _naming(
    kept: Sequence[tuple[int, Row]], listed: Sequence[str], columns: SeriesColumns, path: Path
) -> list[str]:
    """Return the naming columns; refuse files in which other columns might be naming columns."""
    if columns.by is not None:
        return list(columns.by)
    names = [name for name in (*NAMING_COLUMNS, ROW) if any(not _absent(row.get(name)) for _, row in kept)]
    if names:
        return names
    known = {*SCHEMAS["reveals"].names, columns.logq, columns.hits, columns.step}
    rivals = [name for name in listed if name not in known and _groups([row.get(name) for _, row in kept])]
    if rivals:
        raise UserInputError(
            f"{path} may contain several traces; name the columns that identify one, e.g. --by {rivals[0]}, "
            "or write --by none for a single trace"
        )
    return []


def _groups(values: Sequence[Any]) -> bool:
    """Whether a column may be a naming column: no fractions, and some but not all values are equal."""
    if any(isinstance(value, float) for value in values):
        return False
    return 1 < len(set(map(str, values))) < len(values)


def _log_probability(value: Any, place: int, column: str, path: Path) -> float:
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not -math.inf < number <= 0:
        rule = "a log-probability is finite and at most 0"
        raise DataFileError(f"{path}: {column} of row {place} is {str(value)!r}; {rule}")
    return number
