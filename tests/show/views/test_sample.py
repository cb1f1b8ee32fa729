"""A sample's traces: their names, texts, verdicts, and how far their orders lie apart."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from orderlens.errors import RunError
from orderlens.show.views.plain import plain_row, plain_rows
from orderlens.show.views.sample import sample_view
from orderlens.show.views.trace import Reveals, TraceKey, revisions_of
from orderlens.testing import make_run, make_table, make_trace

LOGQ = [-0.5, -1.5]


def tables(*traces, **others):
    return {"reveals": pa.concat_tables(traces, promote_options="permissive")} | {
        name: make_table(name, rows) for name, rows in others.items()
    }


@pytest.mark.parametrize(
    ("key", "spec", "name", "link"),
    [
        ({}, "random", "random", "random"),
        ({"seed": 3}, "random:3", "random:3", "random:3"),
        ({"temperature": 0.0}, "random", "random", "random t=0.0"),
        ({"seed": 1, "temperature": 0.7}, "random:1", "random:1, T = 0.7", "random:1 t=0.7"),
        (
            {"run": "r", "task": "cmath", "sample_seed": 2},
            "random",
            "random",
            "random draw=2 task=cmath run=r",
        ),
    ],
)
def test_names_of_a_trace(key, spec, name, link):
    one = TraceKey("a", "random", **key)
    assert (one.spec, one.name, one.id) == (spec, name, link)


def test_the_gap_is_between_likelihoods_of_one_fixed_text():
    kinds = {"a": "exact", "b": "estimate", "c": "none", "d": "exact"}
    traces = [make_trace("s", order, [mean, mean]) for order, mean in zip("abc", (-1, -3, -9), strict=True)]
    traces += [
        make_trace("s", order, [mean, mean], temperature=0.5) for order, mean in (("d", -20.0), ("a", -5.0))
    ]
    view = sample_view("s", tables(*traces), lambda key, _: kinds[key.order])
    gaps = {(trace.key.order, trace.key.temperature): view.gap(trace) for trace in view.traces}
    assert [gaps[order, None] for order in "abc"] == [2.0, 2.0, 2.0]
    assert math.isnan(gaps["d", 0.5]), "generated texts differ, so their means are not compared"
    assert math.isnan(gaps["a", 0.5])
    assert math.isnan(sample_view("s", tables(*traces)).gap(view.traces[0]))


def test_sets_of_tokens_do_not_widen_the_gap():
    """Under one joint distribution the sum of a set's tokens differs from that of one token per pass."""
    traces = [make_trace("s", order, [mean, mean]) for order, mean in zip("ab", (-1, -3), strict=True)]
    traces.append(make_trace("s", "c", [-9.0, -9.0], forward=[0, 0]))
    view = sample_view("s", tables(*traces), lambda *_: "exact")
    assert [view.gap(trace) for trace in view.traces] == [2.0, 2.0, 2.0]


def test_labels_name_what_differs_and_nothing_else():
    by_task = [make_trace("s", "max-prob", LOGQ, task=task) for task in ("cmath", "ifeval")]
    view = sample_view("s", tables(*by_task, make_trace("s", "entropy", LOGQ, task="cmath")))
    assert view.labels == ["max-prob, cmath", "max-prob, ifeval", "entropy, cmath"]
    assert view.trace("entropy").key.task == "cmath"
    with pytest.raises(RunError, match=r"2 traces of 'max-prob' \(known: max-prob, cmath, max-prob, ifeval"):
        view.trace("max-prob")
    with pytest.raises(RunError, match=r"no trace 'entropi'.*did you mean"):
        view.trace("entropi")
    draws = [make_trace("s", "x", LOGQ, temperature=1.0, sample_seed=seed) for seed in (0, 4)]
    assert sample_view("s", tables(*draws)).labels == ["x, draw 0", "x, draw 4"]


def test_a_sample_without_traces_is_named():
    empty = make_trace("s", "x", LOGQ).slice(0, 0)
    with pytest.raises(RunError, match="there is no trace of sample 's'"):
        sample_view("s", {"reveals": empty})


def test_texts_come_from_the_output_of_the_same_trace():
    key = {"sample_id": "s", "temperature": 0.0}
    traces = [make_trace("s", order, LOGQ, temperature=0.0) for order in ("a", "b")]
    outputs = [
        key | {"order": "b", "text": "bee", "finish_reason": "eos", "n_passes": 7},
        key | {"order": "a", "text": "ay", "prompt_text": "say", "suffix_text": "end"},
    ]
    view = sample_view("s", tables(*traces, outputs=outputs))
    assert [trace.text for trace in view.traces] == ["ay", "bee"]
    assert [trace.finish_reason for trace in view.traces] == [None, "eos"]
    assert [trace.n_passes for trace in view.traces] == [2, 7]
    assert (view.prompt, view.suffix) == ("say", "end")


def test_tokens_are_spelled_where_they_occur_and_unknown_ones_are_question_marks():
    trace = make_trace("s", "x", LOGQ, tokens=[-1, 5])
    words = [
        {"token_id": 5, "piece": "five"},
        {"token_id": 6, "piece": "six"},
        {"token_id": 7, "piece": None},
    ]
    view = sample_view("s", tables(trace, tokens=words))
    assert view.pieces == {"": {-1: "?", 5: "five"}}
    assert [view.piece(view.traces[0], token) for token in (-1, 5, 6)] == ["?", "five", "#6"]


def test_revisions_are_sorted_and_what_is_unknown_is_nan():
    same = {"event": "edit", "old_token": 1, "new_token": 2, "old_logq": None}
    places = ((2, 1, -1.0), (0, 9, None), (2, 0, -3.0))
    rows = [same | {"forward": f, "position": p, "logq": q} for f, p, q in places]
    found = revisions_of(rows)
    assert [(item.forward, item.position) for item in found] == [(0, 9), (2, 0), (2, 1)]
    assert math.isnan(found[0].logq)
    assert found[1].logq == -3.0
    assert math.isnan(found[2].old_logq)


def test_columns_that_an_old_run_lacks_are_unknown():
    trace = make_trace("s", "x", LOGQ).select(["sample_id", "order", "step", "position", "token_id", "logq"])
    shown = Reveals.of(trace.take([1, 0]))
    assert shown.step.tolist() == [0, 1]
    assert shown.logq.tolist() == LOGQ
    assert np.isnan(shown.entropy).all()
    assert (shown.n_tied.tolist(), shown.is_eos.tolist()) == ([0, 0], [False, False])


def test_rows_of_a_list_are_short_safe_and_rounded():
    row = plain_row(
        TraceKey("s\x1b", "x", task="t\u202e"), mean=-1 / 3, gap=math.nan, text="a  b\n" + "c" * 300
    )
    assert row["mean"] == -0.333333
    assert row["gap"] is None
    assert row["text"].startswith("a b c")
    assert len(row["text"]) <= 160
    assert row["sample_id"] == "s\x1b"
    assert "\x1b" not in row["name"]
    assert "\u202e" not in row["task"]
    assert plain_row(TraceKey("s", "x"), text=None)["text"] is None


def test_a_list_shows_the_prompt_where_there_is_no_text():
    run = make_run(
        [make_trace("s", "x", LOGQ)], outputs=[{"sample_id": "s", "order": "x", "prompt_text": "ask"}]
    )
    (row,) = plain_rows(run.sample("s"))
    assert (row["text"], row["n"], row["mean"], row["passes"], row["correct"]) == ("ask", 2, -1.0, 2, None)
