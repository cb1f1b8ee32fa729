"""Whether two runs hold the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from orderlens.store.codec import sort_rows

if TYPE_CHECKING:
    from orderlens.store.reader import Run


def assert_same_rows(run: Run, other: Run, *, ordered: bool = True, atol: float = 0.0) -> None:
    """Refuse a complete run whose tables are not those of another.

    Args:
        run: the one in question.
        other: what it should be.
        ordered: also ask for the same order of rows, which depends on how the work was cut into units.
        atol: how far numbers may lie apart; 0 asks for the same bits.
    """
    assert run.is_complete, "the run is not complete"
    for name in other.tables:
        mine, theirs = (found.table(name).to_arrow() for found in (run, other))
        if not ordered:
            mine, theirs = _sorted(mine, name), _sorted(theirs, name)
        if atol:
            from pandas.testing import assert_frame_equal

            assert_frame_equal(mine.to_pandas(), theirs.to_pandas(), check_exact=False, rtol=0, atol=atol)
        else:
            assert mine.equals(theirs), f"other rows in {name}"


def _sorted(table: pa.Table, name: str) -> pa.Table:
    """Return the rows by trace; a token's text is stored once per unit, and wanted once."""
    if name == "tokens":
        table = table.group_by(table.column_names).aggregate([])
        return table.sort_by([(column, "ascending") for column in table.column_names])
    return sort_rows(table, name)
