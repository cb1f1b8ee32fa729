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
    graded_samples,
    joined_keys,
    same_kind,
    with_reason,
)
from orderlens.analysis.identity import order_labels, var_about
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Estimate
from orderlens.store.samples import KEYS

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
        (pd.DataFrame(ROWS), ["a", "c", "d"], r"lacks the columns c, d; needed are a, c, d"),
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


NAN = float("nan")


def test_a_seed_stands_in_the_label_where_the_model_has_several():
    rows = [("a", "random", 0.0), ("a", "random", 3.0), ("a", "max-prob", None), ("b", "random", 3.0)]
    frame = pd.DataFrame(rows, columns=["model", "order", "seed"])
    assert order_labels(frame) == ["random:0", "random:3", "max-prob", "random"]


def held_out(rows):
    """Rows: model, order, prompt, mean, var, n."""
    frame = pd.DataFrame(rows, columns=["model", "order", "prompt", "mean", "var", "n"])
    return frame.assign(
        task=None, temperature=NAN, content_mean=frame["mean"] - 1, content_var=0.0, n_content=1
    )


def test_the_reference_weighs_tokens_of_other_prompts_of_the_same_cell():
    frame = held_out(
        [
            ("m", "o", "p", -1.0, 0.5, 2),
            ("m", "o", "q", -2.0, 0.0, 3),
            ("m", "o", "r", -4.0, 0.0, 1),
            ("m", "other", "q", -100.0, 0.0, 50),
            ("m2", "o", "q", -100.0, 0.0, 50),
        ]
    )
    found = var_about(frame, "").tolist()
    others = [-(2 * 3 + 4) / 4, -(1 * 2 + 4) / 3, -(1 * 2 + 2 * 3) / 5]
    own = [(-1.0, 0.5), (-2.0, 0.0), (-4.0, 0.0)]
    assert found[:3] == pytest.approx([v + (m - r) ** 2 for (m, v), r in zip(own, others, strict=True)])
    assert np.isnan(found[3:]).all(), "alone in its cell: no reference"


def test_both_traces_of_a_prompt_are_held_out_and_undefined_means_do_not_count():
    frame = held_out(
        [
            ("m", "o", "p", -1.0, 0.0, 2),
            ("m", "o", "p", -9.0, 0.0, 2),
            ("m", "o", "q", -3.0, 0.0, 4),
            ("m", "o", "r", NAN, NAN, 5),
        ]
    )
    found = var_about(frame, "").tolist()
    assert found[:3] == pytest.approx([4.0, 36.0, 4.0])
    assert np.isnan(found[3])
    content = var_about(frame, "content_").tolist()
    assert content[:3] == pytest.approx([4.0, 36.0, (-4.0 - (-2.0 - 10.0) / 2) ** 2])


def test_reasons_are_counted_apart():
    rows = [(1.0, 0, 5), (NAN, 1, 9), (NAN, 2, 0), (NAN, 0, 0), (NAN, 0, 2), (NAN, 0, 1), (NAN, 0, 3)]
    frame = pd.DataFrame(rows, columns=["content_x", "n_nonfinite", "n_content"])
    found = with_reason(Estimate(1.0, 0.5, 1.5, 1, 6), frame, "content_x")
    assert found.why == (
        "2 with NaN or −inf in the trace, 1 without content tokens, 2 too short, 1 not recorded"
    )
    assert (found.value, found.low, found.high, found.n, found.n_undefined) == (1.0, 0.5, 1.5, 1, 6)
    complete = Estimate(1.0, 0.5, 1.5, 1)
    assert with_reason(complete, frame, "content_x") is complete


def test_graded_samples_have_content_statistics_in_the_papers_order():
    key = {"run": "r", "task": None, "seed": None, "sample_seed": 0, "temperature": 0.0}
    content = {f"content_{name}": 5.0 for name in ("mean", "var", "min", "bottleneck_rate")}
    plain = dict.fromkeys(("mean", "var", "n", "min", "bottleneck_rate"), -1.0)
    rows = [
        key
        | content
        | plain
        | {"sample_id": s, "order": o, "label": o, "prompt_key": f"k{s}", "n_content": 9}
        for o in ("random", "forced-ar")
        for s in ("a", "b", "c")
    ]
    decoded = pd.DataFrame(rows)
    marks = [row | {"correct": row["sample_id"] == "a"} for row in rows if row["sample_id"] != "c"]
    verdicts = pd.DataFrame(marks)[["run", *KEYS, "correct"]]
    found = graded_samples(decoded, verdicts)
    assert found["order"].tolist() == ["forced-ar", "forced-ar", "random", "random"]
    assert found["item_id"].tolist() == ["ka", "kb"] * 2
    assert found["correct"].tolist() == [True, False] * 2
    assert set(found["task"]) == {"(none)"}
    assert (found[["mean", "var", "min", "bottleneck_rate"]] == 5.0).all(axis=None)
    assert set(found["n"]) == {9}
