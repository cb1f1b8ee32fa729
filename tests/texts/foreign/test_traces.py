"""Rows sorted into traces: which belong together, how they are counted, and what does not add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderlens.errors import DataFileError
from orderlens.texts.foreign.rows import Header, Rows
from orderlens.texts.foreign.traces import check_same_text, per_trace, sort_traces


def rows_of(**columns):
    n = len(columns["logq"]) if "logq" in columns else len(next(iter(columns.values())))
    whole = {"sample_id": ["a"] * n, "order": ["mine"] * n, "logq": [-1.0] * n} | columns
    return Rows(Path("t.csv"), Header("t.csv", {}), list(range(2, n + 2)), whole)


def test_traces_stand_in_the_order_of_the_file_and_their_rows_by_step():
    rows = rows_of(sample_id=list("bababb"), step=[2, 1, 0, 0, 1, 3])
    found = sort_traces(rows)
    assert [key[-1] for key in found.keys] == ["b", "a"]
    assert found.by.tolist() == [2, 4, 0, 5, 3, 1]
    assert found.trace.tolist() == [0, 0, 0, 0, 1, 1]
    assert found.step.tolist() == found.forward.tolist() == found.position.tolist() == [0, 1, 2, 3, 0, 1]
    assert found.column("logq") == [-1.0] * 6
    assert found.column("entropy") is None
    assert found.where(2) == "t.csv, line 2 (sample 'b', order 'mine')"
    assert found.place(5) == "line 3"


@pytest.mark.parametrize(
    ("columns", "steps", "passes"),
    [
        ({"step": [1, 2, 3]}, [0, 1, 2], [0, 1, 2]),
        ({"forward": [5, 5, 7]}, [0, 1, 2], [5, 5, 7]),
        ({"forward": [1, 1, 3]}, [0, 1, 2], [0, 0, 2]),
        ({"step": [0, 1, 2], "forward": [0, 0, 1]}, [0, 1, 2], [0, 0, 1]),
        ({"position": [9, 4, 5]}, [0, 1, 2], [0, 1, 2]),
    ],
)
def test_what_is_not_given_is_counted_and_counts_begin_at_zero(columns, steps, passes):
    found = sort_traces(rows_of(**columns))
    assert found.step.tolist() == steps
    assert found.forward.tolist() == passes
    assert found.position.tolist() == columns.get("position", steps)


def test_one_trace_that_starts_at_zero_means_all_count_from_zero():
    with pytest.raises(DataFileError, match=r"line 4 .*: step 1 comes first"):
        sort_traces(rows_of(sample_id=list("aabb"), step=[0, 1, 1, 2]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": [0, 1, 1]}, "line 4 .*: step 1 also occurs in line 3; .* name the column forward"),
        ({"step": [0, 1, 3]}, "line 4 .*: step 3 comes after step 1; steps must start at 0 or 1"),
        ({"step": [1, 2, 4]}, "line 4 .*: step 4 comes after step 2"),
        ({"step": [2, 3, 4]}, "line 2 .*: step 2 comes first"),
        ({"step": [0, 1, 2], "forward": [0, 2, 1]}, "line 4 .*: forward is smaller than in line 3"),
        (
            {"position": [4, 5, 4]},
            "line 4 .*: position 4 also occurs in line 2; .*column event",
        ),
    ],
)
def test_what_does_not_add_up_is_refused_with_its_row(columns, message):
    with pytest.raises(DataFileError, match=message):
        sort_traces(rows_of(**columns))


def test_a_later_trace_may_start_before_the_pass_and_on_the_places_of_an_earlier_one():
    found = sort_traces(rows_of(sample_id=list("aabb"), forward=[0, 5, 0, 1], position=[7, 8, 7, 8]))
    assert found.forward.tolist() == [0, 5, 0, 1]


def test_seeds_and_temperatures_separate_traces_and_defaults_fill_gaps():
    rows = rows_of(order=["random:3", "random", "random"], seed=[None, 3, 4], temperature=[None, 0.5, 0.0])
    keys = [(key[1], key[2], key[3], key[4]) for key in sort_traces(rows, 0.5).keys]
    assert keys == [("random", 3, 0.5, 0), ("random", 4, 0.0, None)], "the first two rows are one trace"
    scored = sort_traces(rows_of(logq=[-1.0]))
    assert scored.keys[0][3:5] == (None, None)


def test_a_value_per_trace_must_not_change_within_it():
    rows = rows_of(sample_id=list("aab"), prompt=["x", None, "y"], correct=[True, False, None])
    found = sort_traces(rows)
    assert per_trace(found, "prompt") == ["x", "y"]
    assert per_trace(found, "task") is None
    with pytest.raises(DataFileError, match=r"line 3 .*: correct differs from earlier rows"):
        per_trace(found, "correct")


def test_scored_texts_must_agree_between_orders():
    two = {"order": ["x", "x", "y", "y"], "position": [4, 5, 5, 4]}
    check_same_text(sort_traces(rows_of(**two)), [1, 2, 2, 1])
    with pytest.raises(
        DataFileError, match=r"line 4 .*: the token differs from .*line 3 .* at position 5, so the texts"
    ):
        check_same_text(sort_traces(rows_of(**two)), [1, 2, 3, 1])
    check_same_text(sort_traces(rows_of(**two), 0.0), [1, 2, 3, 1])
    check_same_text(sort_traces(rows_of(**two, task=["s", "s", "t", "t"])), [1, 2, 3, 1])
