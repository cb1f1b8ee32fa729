"""Rows of a foreign file as columns of checked values: which column means what, and where each row is.

The fields of a trace are known under the names that other decoders give them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.errors import DataFileError, UserInputError
from orderlens.registry import suggest
from orderlens.texts.rows import kind_of, read_rows

ALIASES: dict[str, tuple[str, ...]] = {
    "sample_id": ("sample", "id", "doc", "docid", "document", "promptid", "requestid", "rid", "uid"),
    "order": ("policy", "algorithm", "alg", "remasking", "decoder", "method"),
    "logq": ("logprob", "logp", "logprobability", "tokenlogprob", "chosenlogprob"),
    "step": ("revealstep", "revealnumber"),
    "position": ("pos", "index", "place", "tokenposition"),
    "forward": ("pass", "forwardpass", "nfe", "iteration", "iter"),
    "token_id": ("tok",),
    "text": ("tokentext", "piece", "tokenstr", "tokenstring"),
    "prompt": ("prompttext",),
    "task": ("benchmark", "dataset"),
    "seed": ("orderseed",),
    "temperature": ("temp",),
    "sample_seed": ("samplingseed",),
    "block": ("blockid", "blockindex"),
    "correct": ("iscorrect",),
}
"""Field → further names it may have; case, blanks, ``_`` and ``-`` do not count."""
LOG_PROBS = (
    "max_logprob",
    "second_logprob",
    "entropy",
    "target_logprob",
    "competitor_logprob",
    "tempered_logq",
)
FLAGS = ("is_eos", "is_special", "is_overflow", "is_argmax")
COUNTS = ("n_tied", "n_committed", "n_lookahead")
FIELDS = (*ALIASES, *LOG_PROBS, *FLAGS, *COUNTS)
"""Every field that is read."""
EITHER = "token"
"""A column of this name holds ids where its first value is a number, and texts otherwise."""


def squeezed(name: str) -> str:
    """Return a column's name as it is compared."""
    return re.sub(r"[\s_\-.]", "", name).lower()


_FIELD_OF = {squeezed(name): field for field in FIELDS for name in (field, *ALIASES.get(field, ()))}


class Header:
    """Column → field, found out as columns turn up.

    Args:
        path: the file, for messages.
        given: field → column, as the user says; these win.
    """

    def __init__(self, path: object, given: Mapping[str, str]) -> None:
        for field in given:
            if field not in FIELDS:
                raise UserInputError(
                    f"--column: there is no field '{field}'{suggest(field, FIELDS)} "
                    f"(known: {', '.join(FIELDS)})"
                )
        self.path = path
        self.given = {column: field for field, column in given.items()}
        self.columns: dict[str, str] = {}
        self.unknown: list[str] = []
        self._field_of: dict[str, str | None] = {}

    def field(self, column: str, value: Any) -> str | None:
        """Return the field of a column, None where it has none; ``value`` is the first one seen."""
        if column not in self._field_of:
            self._field_of[column] = self._resolve(column, value)
        return self._field_of[column]

    def _resolve(self, column: str, value: Any) -> str | None:
        field = self.given.get(column) or _guess(column, value)
        if column not in self.given and field in self.given.values():
            field = None  # the user names another column for it
        if field is None:
            self.unknown.append(column)
            return None
        if field in self.columns:
            raise DataFileError(
                f"{self.path}: columns '{self.columns[field]}' and '{column}' both mean {field}; "
                f"say which with --column {field}={column}"
            )
        self.columns[field] = column
        return field

    def require(self) -> None:
        """Refuse a file without what every trace needs.

        Raises:
            DataFileError: names what is missing and what is there.
        """
        if absent := [column for column in self.given if column not in self._field_of]:
            raise DataFileError(f"{self.path} has no column '{absent[0]}'; it has {self._there()}")
        for field in ("sample_id", "order", "logq"):
            if field not in self.columns:
                self._missing(field)
        if not {"step", "position"} & set(self.columns):
            self._missing("step")

    def _missing(self, field: str) -> None:
        what = f"{field} (or position)" if field == "step" else field
        others = ", ".join(ALIASES[field][:3])
        raise DataFileError(
            f"{self.path} has no column {what}, nor one called {others}; it has {self._there()}; "
            f"name it with --column {field}=COLUMN"
        )

    def _there(self) -> str:
        return ", ".join(self._field_of)

    def notes(self) -> list[str]:
        """Return a line per column that was not read."""
        return [
            f"column '{name}' is not read{suggest(squeezed(name), _FIELD_OF) if len(name) > 3 else ''}"
            for name in self.unknown
        ]


def _guess(column: str, value: Any) -> str | None:
    name = squeezed(column)
    if name == EITHER:
        first = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value
        return "text" if isinstance(first, str) else "token_id"
    return _FIELD_OF.get(name)


ROUNDING = 1e-6
"""A log q of up to this is a rounded 0."""
LARGEST = 2**31 - 1
_REQUIRED = ("sample_id", "order", "logq")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Rows:
    """A file's rows: ``columns`` holds per field one value (or None) per row, ``numbers`` their places."""

    path: Path
    header: Header
    numbers: list[int]
    columns: dict[str, list[Any]]

    def where(self, row: int) -> str:
        """Return the place of a row for messages."""
        return f"{self.path}, {place_word(self.path)} {self.numbers[row]}"

    def __len__(self) -> int:
        return len(self.numbers)


def place_word(path: Path) -> str:
    """Return what a row's number counts: lines of text files, rows of Parquet."""
    return "row" if kind_of(path) == "parquet" else "line"


def read_columns(path: Path, given: Mapping[str, str]) -> Rows:
    """Read a file; a row whose log q is a list holds a whole trace, with lists of that length beside it.

    Raises:
        DataFileError: a column is missing or a value is not what its column needs.
    """
    rows = Rows(path, Header(path, given), [], {})
    for number, row in read_rows(path):
        where = f"{path}, {place_word(path)} {number}"
        known = {field: row[name] for name in row if (field := rows.header.field(name, row[name]))}
        for flat in _flat(known, where):
            _add(rows, number, {field: _READ[field](value, field, where) for field, value in flat.items()})
    rows.header.require()
    if not rows.numbers:
        raise DataFileError(f"{path} holds no reveals: its lists are empty")
    _refuse_holes(rows)
    return rows


def _flat(row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield the reveals of a row."""
    lists = {field: value for field, value in row.items() if isinstance(value, list)}
    if not lists:
        yield row
        return
    lengths = {field: len(value) for field, value in lists.items()}
    if len(set(lengths.values())) > 1 or "logq" not in lists:
        shown = ", ".join(f"{field} {n}" for field, n in lengths.items())
        raise DataFileError(f"{where}: lists of one trace, logq among them, must be equally long ({shown})")
    for i in range(lengths["logq"]):
        yield row | {field: value[i] for field, value in lists.items()}


def _add(rows: Rows, number: int, values: dict[str, Any]) -> None:
    n = len(rows.numbers)
    for field in values:
        rows.columns.setdefault(field, [None] * n)
    for field, column in rows.columns.items():
        column.append(values.get(field))
    rows.numbers.append(number)


def _refuse_holes(rows: Rows) -> None:
    for field in _REQUIRED:
        column = rows.columns.get(field, [])
        if None in column:
            raise DataFileError(f"{rows.where(column.index(None))}: {field} is missing")
    for field in ("step", "position", "forward"):
        column = rows.columns.get(field, [])
        if None in column and any(value is not None for value in column):
            raise DataFileError(f"{rows.where(column.index(None))}: {field} is missing; other rows have it")


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _string(value: Any, field: str, where: str) -> str | None:
    del field, where
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)


def _name(value: Any, field: str, where: str) -> str | None:
    text = None if _absent(value) else _string(value, field, where)
    return (text.strip() or None) if text is not None else None


def _whole(value: Any, field: str, where: str) -> int | None:
    if _absent(value):
        return None
    try:
        number = float(value) if not isinstance(value, int) else value
        if number == int(number) and 0 <= number <= LARGEST and not isinstance(value, bool):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataFileError(f"{where}: {field} is {_shown(value)}, not a whole number from 0 to {LARGEST:,}")


def _seed(value: Any, field: str, where: str) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    return _whole(value, field, where)


def _real(value: Any, field: str, where: str) -> float | None:
    if _absent(value):
        return None
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataFileError(f"{where}: {field} is {_shown(value)}, not a number")


def _logq(value: Any, field: str, where: str) -> float | None:
    number = math.nan if isinstance(value, float) and math.isnan(value) else _real(value, field, where)
    if number is None or -math.inf < number <= 0:
        return number
    if 0 < number <= ROUNDING:
        return 0.0
    why = "; write the natural log of the probability" if number > 0 else ""
    raise DataFileError(f"{where}: logq is {number:g}; a log-probability is finite and at most 0{why}")


def _temperature(value: Any, field: str, where: str) -> float | None:
    number = _real(value, field, where)
    if number is not None and not 0 <= number < math.inf:
        raise DataFileError(f"{where}: temperature is {number:g}; it is 0 (greedy) or more")
    return number


def read_truth(value: Any, field: str = "value", where: str = "") -> bool | None:
    """Return a truth value given as such or as a word, None where it is absent."""
    if _absent(value):
        return None
    found = value if isinstance(value, bool) else _TRUTHS.get(str(value).strip().lower())
    if found is None:
        raise DataFileError(f"{where}: {field} is {_shown(value)}, neither true nor false")
    return found


def _shown(value: Any) -> str:
    return repr(value)[:60]


Reader = Callable[[Any, str, str], Any]
_READ: dict[str, Reader] = {
    **dict.fromkeys(("sample_id", "order", "task"), _name),
    **dict.fromkeys(("text", "prompt"), _string),
    **dict.fromkeys(("step", "position", "forward", "token_id", "block", *COUNTS), _whole),
    **dict.fromkeys(("seed", "sample_seed"), _seed),
    **dict.fromkeys(LOG_PROBS, _real),
    **dict.fromkeys((*FLAGS, "correct"), read_truth),
    "logq": _logq,
    "temperature": _temperature,
}
