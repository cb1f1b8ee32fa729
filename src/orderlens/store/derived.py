"""Columns of ``reveals`` that follow from others, so that parts need not store them.

A rule gives the value a column usually has. Where it holds, the part stores null; reading restores it,
in Arrow and in SQL. Values that do not follow are stored, so nothing is ever approximated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

Expression = Callable[[str], str]
"""Gives the SQL of a column."""


class Derived(Protocol):
    """How one column follows from others."""

    def columns(self) -> list[str]:
        """Return the columns that are read."""

    def value(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the implied column."""

    def sql(self, column: Expression) -> str:
        """Return the implied column as SQL."""


@dataclass(frozen=True, slots=True)
class SameAs:
    """The value of another column."""

    base: str

    def columns(self) -> list[str]:
        return [self.base]

    def value(self, table: pa.Table) -> pa.ChunkedArray:
        return table[self.base]

    def sql(self, column: Expression) -> str:
        return column(self.base)


@dataclass(frozen=True, slots=True)
class Equal:
    """Whether two columns are equal."""

    left: str
    right: str

    def columns(self) -> list[str]:
        return [self.left, self.right]

    def value(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.equal(table[self.left], table[self.right])

    def sql(self, column: Expression) -> str:
        return f"({column(self.left)} = {column(self.right)})"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two columns, chosen by a flag."""

    flag: str
    if_true: str
    if_false: str

    def columns(self) -> list[str]:
        return [self.flag, self.if_true, self.if_false]

    def value(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.if_else(table[self.flag], table[self.if_true], table[self.if_false])

    def sql(self, column: Expression) -> str:
        return f"CASE WHEN {column(self.flag)} THEN {column(self.if_true)} ELSE {column(self.if_false)} END"


DERIVED: dict[str, Derived] = {
    "target_logprob": SameAs("logq"),
    "max_logprob": SameAs("logq"),
    "tempered_logq": SameAs("logq"),
    "is_argmax": Equal("logq", "max_logprob"),
    "competitor_logprob": Choice("is_argmax", "second_logprob", "max_logprob"),
}
"""What a part need not store. A rule may read columns of rules above it."""
