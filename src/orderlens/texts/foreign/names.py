"""Which column of a foreign file means what: the fields of a trace under the names people give them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orderlens.errors import DataFileError, UserInputError
from orderlens.registry import suggest

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
