"""Reads the rows of another decoder's file as checked columns.

Columns are recognised by the names that other decoders use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.common.plaintext import UNSAFE
from orderlens.errors import DataFileError, UserInputError
from orderlens.registry import suggest
from orderlens.store.schema import EVENTS
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
    "event": ("eventtype", "action"),
}
"""Field → other accepted names; case, spaces, ``_`` and ``-`` are ignored."""
LOG_PROBS = (
    "max_logprob",
    "second_logprob",
    "entropy",
    "target_logprob",
    "competitor_logprob",
    "tempered_logq",
)
FLAGS = ("is_eos", "is_special", "is_overflow", "is_argmax", "is_seed")
COUNTS = ("n_tied", "n_committed", "n_lookahead")
OF_EVENTS = ("old_logq", "n_passes")
"""Fields of traces that revise: log p of the token before an event; all passes of the trace."""
FIELDS = (*ALIASES, *LOG_PROBS, *FLAGS, *COUNTS, *OF_EVENTS)
"""Every field that is read."""
REVEAL = "reveal"
EITHER = "token"
"""A column with this name contains ids if its first value is a number, else texts."""


def normalised_name(name: str) -> str:
    """Return a column's name in lower case, without separators, for comparison."""
    return re.sub(r"[\s_\-.]", "", name).lower()


_FIELD_OF = {normalised_name(name): field for field in FIELDS for name in (field, *ALIASES.get(field, ()))}


class Header:
    """Maps columns to fields while rows are read.

    Args:
        path: the file, for messages.
        given: field → column from the user; these take precedence.
    """

    def __init__(self, path: object, given: Mapping[str, str]) -> None:
        for field in given:
            if field not in FIELDS:
                raise UserInputError(
                    f"--column: unknown field '{field}'{suggest(field, FIELDS)} (known: {', '.join(FIELDS)})"
                )
        self.path = path
        self.given = {column: field for field, column in given.items()}
        self.columns: dict[str, str] = {}
        self.unknown: list[str] = []
        self._field_of: dict[str, str | None] = {}

    def field(self, column: str, value: Any) -> str | None:
        """Return the field of a column, or None; ``value`` is its first value."""
        if column not in self._field_of:
            self._field_of[column] = self._resolve(column, value)
        return self._field_of[column]

    def _resolve(self, column: str, value: Any) -> str | None:
        field = self.given.get(column) or _field_by_name(column, value)
        if column not in self.given and field in self.given.values():
            field = None  # the user chose another column for it
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
        """Refuse a file without the required columns.

        Raises:
            DataFileError: names the missing column and the columns of the file.
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
        """Return a line per column that was ignored."""
        return [
            f"column '{name}' is ignored{suggest(normalised_name(name), _FIELD_OF) if len(name) > 3 else ''}"
            for name in self.unknown
        ]


def _field_by_name(column: str, value: Any) -> str | None:
    name = normalised_name(column)
    if name == EITHER:
        first = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else value
        return "text" if isinstance(first, str) else "token_id"
    return _FIELD_OF.get(name)


ROUNDING = 1e-6
"""A positive log q up to this value counts as 0."""
LARGEST = 2**31 - 1
LARGEST_NATS, LARGEST_PASS = 1e6, 1_000_000
"""Largest size of a value in nats, and largest number of a step or pass; anything beyond is a mistake."""
_CONTROL = re.compile(rf"{UNSAFE.pattern}|[\t\n]")
_REQUIRED = ("sample_id", "order", "logq")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Rows:
    """A file's rows: ``columns`` has one value (or None) per row and field, ``numbers`` the row numbers."""

    path: Path
    header: Header
    numbers: list[int]
    columns: dict[str, list[Any]]

    def where(self, row: int) -> str:
        """Return the place of a row for messages."""
        return f"{self.path}, {place_word(self.path)} {self.numbers[row]}"

    def add(self, number: int, values: Mapping[str, Any]) -> None:
        """Add a row of checked values; fields that it lacks become None."""
        for field in values:
            self.columns.setdefault(field, [None] * len(self.numbers))
        for field, column in self.columns.items():
            column.append(values.get(field))
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.numbers)


def place_word(path: Path) -> str:
    """Return the noun for row numbers: ``line`` for text files, ``row`` for Parquet."""
    return "row" if kind_of(path) == "parquet" else "line"


def read_columns(path: Path, given: Mapping[str, str]) -> Rows:
    """Read a file; a row whose log q is a list holds a whole trace, in lists of equal length.

    Raises:
        DataFileError: a column is missing or a value is not valid.
    """
    rows = Rows(path, Header(path, given), [], {})
    for number, row in read_rows(path):
        where = f"{path}, {place_word(path)} {number}"
        known = {field: row[name] for name in row if (field := rows.header.field(name, row[name]))}
        for flat in map(_plain_remask, _flat(known, where)):
            rows.add(number, {field: _READ[field](value, field, where) for field, value in flat.items()})
    rows.header.require()
    if not rows.numbers:
        raise DataFileError(f"{path} has no reveals: its lists are empty")
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
        raise DataFileError(
            f"{where}: the lists of a trace, with logq among them, must have equal lengths ({shown})"
        )
    for i in range(lengths["logq"]):
        yield row | {field: value[i] for field, value in lists.items()}


def _plain_remask(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the fields that mean nothing where a token becomes a mask."""
    if str(row.get("event")).strip().lower() != "remask":
        return row
    return {field: value for field, value in row.items() if field not in ("logq", "token_id", "text")}


def _refuse_holes(rows: Rows) -> None:
    for field in _REQUIRED:
        if hole := _hole(rows, field, besides=("remask",) if field == "logq" else ()):
            raise DataFileError(f"{hole}: {field} is missing")
    ranked = any(value is not None for value in rows.columns.get("forward", ()))
    for field in ("step", "position", "forward"):
        if field == "step" and ranked and "event" in rows.columns:
            continue  # only reveals that stay have one
        if any(value is not None for value in rows.columns.get(field, ())) and (hole := _hole(rows, field)):
            raise DataFileError(f"{hole}: {field} is missing; other rows have it")


def _hole(rows: Rows, field: str, besides: Sequence[str] = ()) -> str:
    """Return the place of the first row without a value, empty if there is none; some events need none."""
    events = rows.columns.get("event") or [None] * len(rows)
    pairs = zip(rows.columns.get(field, ()), events, strict=False)
    found = (row for row, (value, event) in enumerate(pairs) if value is None and event not in besides)
    return next((rows.where(row) for row in found), "")


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _string(value: Any, field: str, where: str) -> str | None:
    del field, where
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)


def _name(value: Any, field: str, where: str) -> str | None:
    text = None if _absent(value) else _string(value, field, where)
    if text is not None and (found := _CONTROL.search(text.strip())):
        raise DataFileError(f"{where}: {field} contains the control character {found[0]!a}; remove it")
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


def _in_nats(value: Any, field: str, where: str) -> float | None:
    number = _real(value, field, where)
    if number is not None and LARGEST_NATS < abs(number) < math.inf:
        raise DataFileError(
            f"{where}: {field} is {number:g}; values beyond ±{LARGEST_NATS:,.0f} nats are refused"
        )
    return number


def _pass(value: Any, field: str, where: str) -> int | None:
    number = _whole(value, field, where)
    if number is not None and number > LARGEST_PASS:
        raise DataFileError(f"{where}: {field} is {number:,}; it must be at most {LARGEST_PASS:,}")
    return number


def _logq(value: Any, field: str, where: str) -> float | None:
    number = math.nan if isinstance(value, float) and math.isnan(value) else _real(value, field, where)
    if number is None or -math.inf < number <= 0:
        return _in_nats(number, field, where)
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
    """Return a truth value, given as such or as a word; None if it is missing."""
    if _absent(value):
        return None
    found = value if isinstance(value, bool) else _TRUTHS.get(str(value).strip().lower())
    if found is None:
        raise DataFileError(f"{where}: {field} is {_shown(value)}, neither true nor false")
    return found


def _event(value: Any, field: str, where: str) -> str:
    found = REVEAL if _absent(value) else str(value).strip().lower()
    if found not in EVENTS:
        raise DataFileError(f"{where}: {field} is {_shown(value)}; it is reveal, edit or remask")
    return found


def _shown(value: Any) -> str:
    return repr(value)[:60]


Reader = Callable[[Any, str, str], Any]
_READ: dict[str, Reader] = {
    **dict.fromkeys(("sample_id", "order", "task"), _name),
    **dict.fromkeys(("text", "prompt"), _string),
    **dict.fromkeys(("position", "token_id", "block", *COUNTS), _whole),
    **dict.fromkeys(("step", "forward", "n_passes"), _pass),
    **dict.fromkeys(("seed", "sample_seed"), _seed),
    **dict.fromkeys((*LOG_PROBS, "old_logq"), _in_nats),
    **dict.fromkeys((*FLAGS, "correct"), read_truth),
    "logq": _logq,
    "temperature": _temperature,
    "event": _event,
}
