"""One value at a time: what each kind of column takes, how it is understood, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest

from orderlens.errors import DataFileError
from orderlens.texts.foreign.rows import LARGEST, place_word, read_columns

ROW = {"id": "a", "order": "mine", "step": 0, "logq": -1.0}


def read(tmp_path, *rows):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_columns(path, {})


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("logq", -1, -1.0),
        ("logq", "-2.5", -2.5),
        ("logq", 0, 0.0),
        ("logq", 1e-6, 0.0),
        ("step", 3.0, 3),
        ("step", "4", 4),
        ("position", LARGEST, LARGEST),
        ("seed", -5, -5),
        ("seed", 2**40, 2**40),
        ("seed", None, None),
        ("temp", "", None),
        ("temp", 0, 0.0),
        ("entropy", "1e-3", 1e-3),
        ("entropy", math.nan, None),
        ("id", 7, "7"),
        ("id", 7.0, "7"),
        ("id", " x ", "x"),
        ("text", " x ", " x "),
        ("text", "", ""),
        ("text", 3.0, "3"),
        ("task", "  ", None),
        ("is_eos", "Yes", True),
        ("is_eos", " 0 ", False),
        ("is_eos", 1, True),
        ("correct", False, False),
        ("correct", "", None),
    ],
)
def test_a_value_is_understood(tmp_path, column, value, expected):
    rows = read(tmp_path, ROW | {column: value})
    found = rows.columns[rows.header.field(column, value)]
    assert found == [expected]
    assert type(found[0]) is type(expected)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("logq", 2e-6, "logq is 2e-06; .* at most 0; write the natural log of the probability"),
        ("logq", 0.9, "at most 0; write the natural log"),
        ("logq", "-inf", "logq is -inf; a log-probability is finite and at most 0$"),
        ("logq", "high", "logq is 'high', not a number"),
        ("logq", True, "logq is True, not a number"),
        ("logq", None, "line 1: logq is missing"),
        ("id", " ", "line 1: sample_id is missing"),
        ("step", 0.5, r"step is 0\.5, not a whole number from 0 to 2,147,483,647"),
        ("step", -1, "step is -1, not a whole number"),
        ("step", LARGEST + 1, "step is 2147483648, not a whole number"),
        ("step", 1_000_001, "step is 1,000,001; it must be at most 1,000,000"),
        ("forward", 10**7, "forward is 10,000,000; it must be at most 1,000,000"),
        ("logq", -1e7, r"logq is -1e\+07; values beyond ±1,000,000 nats are refused"),
        ("entropy", 1e300, r"entropy is 1e\+300; values beyond"),
        ("order", "a\x1b[31m", r"order contains the control character '\\x1b'; remove it"),
        ("id", "a\nb", r"sample_id contains the control character '\\n'; remove it"),
        ("task", "a\u202eb", r"task contains the control character '\\u202e'"),
        ("step", True, "step is True, not a whole number"),
        ("step", "inf", "step is 'inf', not a whole number"),
        ("seed", True, "seed is True, not a whole number"),
        ("seed", 2**63, "not a whole number"),
        ("temp", -0.1, "temperature is -0.1; it is 0"),
        ("temp", "inf", "temperature is inf; it is 0"),
        ("is_eos", "perhaps", "is_eos is 'perhaps', neither true nor false"),
        ("is_eos", 2, "is_eos is 2, neither true nor false"),
    ],
)
def test_a_value_is_refused_with_its_place(tmp_path, column, value, message):
    with pytest.raises(DataFileError, match=message) as caught:
        read(tmp_path, ROW | {column: value})
    assert "t.jsonl, line 1: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_that_appear_late_are_empty_before_and_half_given_ranks_are_refused(tmp_path):
    rows = read(tmp_path, ROW, ROW | {"step": 1, "entropy": 0.5})
    assert rows.columns["entropy"] == [None, 0.5]
    assert (len(rows), rows.numbers, rows.where(1)) == (2, [1, 2], f"{tmp_path / 't.jsonl'}, line 2")
    for name in ("position", "forward"):
        with pytest.raises(DataFileError, match=f"line 1: {name} is missing; other rows have it"):
            read(tmp_path, ROW, ROW | {"step": 1, name: 0})


def test_a_row_of_lists_is_a_trace_and_single_values_hold_for_all_of_it(tmp_path):
    rows = read(tmp_path, ROW | {"step": [0, 1], "logq": [-1, -2], "temp": 0.5}, ROW | {"id": "b"})
    assert rows.columns["logq"] == [-1.0, -2.0, -1.0]
    assert rows.columns["temperature"] == [0.5, 0.5, None]
    assert rows.columns["sample_id"] == ["a", "a", "b"]
    assert rows.numbers == [1, 1, 2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"step": [0, 1], "logq": [-1]}, r"equal lengths \(step 2, logq 1\)"),
        ({"step": [0]}, r"with logq among them, must have equal lengths \(step 1\)"),
        ({"step": [], "logq": []}, "has no reveals: its lists are empty"),
    ],
)
def test_lists_that_are_no_trace_are_refused(tmp_path, row, message):
    with pytest.raises(DataFileError, match=message):
        read(tmp_path, ROW | row)


def test_rows_of_parquet_are_not_lines(tmp_path):
    assert [place_word(tmp_path / name) for name in ("t.parquet", "t.csv", "t.jsonl.gz")] == [
        "row",
        "line",
        "line",
    ]
