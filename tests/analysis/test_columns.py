"""Labels, Var about a held-out mean, reasons, and which verdict counts, on frames written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.frames import chosen_verdicts, graded_samples, order_labels, var_about, with_reason
from orderlens.errors import UserInputError
from orderlens.store.samples import KEYS

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


def verdict(sample, grader, correct, generation=None, task="t"):
    key = {"sample_id": sample, "order": "max-prob", "task": task, "temperature": 0.0}
    return key | {"grader": grader, "correct": correct, "generation": generation}


def kept(builders, rows, grader=None):
    trace = builders.trace("a", "max-prob", [-1.0], temperature=0.0, task="t")
    run = builders.make_run([trace], verdicts=rows)
    found = chosen_verdicts(run, grader)
    return [(row.sample_id, row.grader, bool(row.correct)) for row in found.itertuples()]


def test_the_first_grader_by_name_counts_unless_another_is_asked_for(builders):
    rows = [
        verdict("a", "strict", False),
        verdict("a", "loose", True),
        verdict("b", "strict", True, task="u"),
    ]
    assert kept(builders, rows) == [("a", "loose", True), ("b", "strict", True)]
    with pytest.raises(UserInputError, match=r"no verdicts of grader 'loose' \(present: strict\)"):
        kept(builders, rows, "loose")
    assert kept(builders, rows, "strict") == [("a", "strict", False), ("b", "strict", True)]


def test_a_later_grading_replaces_the_earlier_one(builders):
    rows = [verdict("a", "g", False, 0), verdict("a", "h", True, 1), verdict("b", "g", True, 0)]
    assert kept(builders, rows) == [("a", "g", False), ("b", "g", True)], "one rule per task, no text lost"
    assert kept(builders, [*rows, verdict("b", "h", False, 1)]) == [("a", "h", True), ("b", "h", False)]
    assert kept(builders, rows, "g") == [("a", "g", False), ("b", "g", True)], "asked by name: its newest"
    again = [verdict("a", "g", False, 0), verdict("a", "g", True, 2), verdict("a", "g", False, 1)]
    assert kept(builders, again) == [("a", "g", True)]


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
    verdicts = pd.DataFrame(marks + marks[:1])[["run", *KEYS, "correct"]]
    found = graded_samples(decoded, verdicts)
    assert found["order"].tolist() == ["forced-ar", "forced-ar", "random", "random"]
    assert found["item_id"].tolist() == ["ka", "kb"] * 2
    assert found["correct"].tolist() == [True, False] * 2
    assert set(found["task"]) == {"(none)"}
    assert (found[["mean", "var", "min", "bottleneck_rate"]] == 5.0).all(axis=None)
    assert set(found["n"]) == {9}
