"""Tables of graded samples from any library: verdicts, finite rows, groups and keys."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orderlens.analysis.frames import (
    as_frame,
    cells,
    finite_flags,
    finite_rows,
    graded_rows,
    joined_keys,
    same_kind,
)
from orderlens.errors import UserInputError

ROWS = {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize("kind", ["pandas", "arrow", "batch", "polars", "mapping", "records"])
def test_every_library_gives_the_same_frame(kind):
    polars = pytest.importorskip("polars")
    records = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    made = {
        "pandas": lambda: pd.DataFrame(ROWS, index=[7, 9]),
        "arrow": lambda: pa.table(ROWS),
        "batch": lambda: pa.RecordBatch.from_pydict(ROWS),
        "polars": lambda: polars.DataFrame(ROWS),
        "mapping": lambda: ROWS,
        "records": lambda: records,
    }[kind]()
    frame = as_frame(made, ["a"])
    assert frame.index.tolist() == [0, 1]
    assert frame.to_dict("list") == ROWS
    frame["a"] = 0
    assert as_frame(made, ["a"])["a"].tolist() == [1, 2], "the caller's table is not changed"
    back = same_kind(made)(frame)
    assert isinstance(back, pa.Table if kind in ("arrow", "batch") else pd.DataFrame)
    assert list(back.column_names if isinstance(back, pa.Table) else back.columns) == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "required", "said"),
    [
        (pd.DataFrame(ROWS), ["a", "c", "d"], r"lacks the column\(s\) c, d; needed are a, c, d"),
        (3, ["a"], "expected a pandas or Arrow table, got int"),
        (object(), ["a"], "expected a pandas or Arrow table, got object"),
    ],
)
def test_what_is_no_table_is_named(data, required, said):
    with pytest.raises(UserInputError, match=said):
        as_frame(data, required)


@pytest.mark.parametrize(
    ("correct", "known", "missing"),
    [
        ([True, False, None], [1.0, 0.0], 1),
        ([1, 0, 1], [1.0, 0.0, 1.0], 0),
        ([1.0, np.nan, 0.0], [1.0, 0.0], 1),
        (pd.array([True, None, False], "boolean"), [1.0, 0.0], 1),
        (["maybe", True, None], [1.0], 2),
        ([None, None, None], [], 3),
    ],
)
def test_verdicts_are_numbers_and_what_is_none_is_counted(correct, known, missing):
    frame = pd.DataFrame({"correct": correct, "place": [0, 1, 2]})
    found, count = graded_rows(frame)
    assert found["correct"].tolist() == known
    assert found["correct"].dtype == np.float64
    assert count == missing
    assert len(found) + count == 3
    assert found["place"].tolist() == list(found.index)


def test_finite_means_finite_in_every_column():
    frame = pd.DataFrame(
        {"a": [1.0, np.inf, 2.0, np.nan, 3.0], "b": [0.0, 0.0, -np.inf, 0.0, 1.0], "c": [np.nan] * 5}
    )
    assert finite_flags(frame, ["a", "b"]).tolist() == [True, False, False, False, True]
    assert finite_rows(frame, ["a"]).index.tolist() == [0, 2, 4]
    assert not finite_flags(frame, ["a", "c"]).any()
    null = pd.DataFrame({"a": pd.array([1, None, 3], "Int64")})
    assert finite_rows(null, ["a"]).index.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (("a", "b"), ("a", "b"), True),
        (("a/b", "c"), ("a", "b/c"), False),
        ((None, "c"), ("None", "c"), False),
        ((1, "c"), ("1", "c"), False),
        (("a'/'b", "c"), ("a", "b'/'c"), False),
        ((0.0, "x"), (0.5, "x"), False),
        ((np.nan, "x"), (np.nan, "x"), True),
    ],
)
def test_keys_are_equal_for_equal_rows_only(one, two, same):
    frame = pd.DataFrame([one, two], columns=["p", "q"], dtype=object)
    first, second = joined_keys(frame, ["p", "q"])
    assert (first == second) is same
    assert len(set(joined_keys(frame.assign(r=7), ["r"]))) == 1


def test_groups_come_as_first_seen_with_null_as_a_group():
    frame = pd.DataFrame({"t": ["z", None, "a", "z", None], "o": [1, 1, 2, 2, 1]})
    assert next(key for key, _ in cells(frame, ["t", "o"])) == ("z", 1)
    single = list(cells(frame, ["t"]))
    assert [rows.index.tolist() for _, rows in single] == [[0, 3], [1, 4], [2]]
    assert single[0][0] == ("z",)
    assert pd.isna(single[1][0][0])
