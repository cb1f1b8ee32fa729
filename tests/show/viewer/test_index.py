"""The list in SQL gives the rows that the views give, over several runs, with gaps and overflow."""

from __future__ import annotations

import pytest

from orderlens.analysis.study import Study
from orderlens.errors import CorruptRunError
from orderlens.show.viewer.index import Index, Query
from orderlens.show.views import plain_rows
from orderlens.store.reader import open_run
from orderlens.testing import make_run, make_trace

EOS_PATH = {"path": [5, 4, 0, 3, 2, 1], "tokens": [7, 7, 0, 0, 0, 0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    logq = [-0.1, -2.0, -0.3, -0.4, -1.5, -0.2]
    for name, orders in (("one", ("forced-ar", "max-prob", "oracle-max-q")), ("two", ("entropy",))):
        traces = [make_trace("a", order, logq, **EOS_PATH) for order in orders]
        traces += [make_trace("b", order, logq[::-1], n_requested=4, **EOS_PATH) for order in orders]
        traces += [
            make_trace("c", order, [-float("inf"), -1.0], temperature=0.7, forward=[0, 0]) for order in orders
        ]
        traces += [make_trace("d", order, [-1.0 - at], temperature=0.7) for at, order in enumerate(orders)]
        make_run(traces, spec={"name": name}).save(folder / name)
    return open_run(folder)


@pytest.fixture(scope="module")
def index(run):
    return Index(run)


def test_every_row_equals_that_of_its_view(run, index):
    found = {row["id"] + row["sample_id"]: row for row in index.page(Query())["rows"]}
    expected = [row for name in "abcd" for row in plain_rows(run.sample(name))]
    assert len(found) == len(expected) == 16
    for row in expected:
        assert found[row["id"] + row["sample_id"]] == row
    assert any(row["cascade"] == 2 for row in expected)
    assert any(row["gap"] is not None for row in expected)


def test_passes_past_the_requested_length_count_in_list_and_view(tmp_path):
    """Every order decodes the tail of a block; only its place in the path differs."""
    paths = {"forced-ar": [0, 1, 2, 3], "reverse-ar": [3, 2, 1, 0]}
    make_run(
        [make_trace("a", order, [-1.0] * 4, path=path, n_requested=2) for order, path in paths.items()]
    ).save(tmp_path)
    opened = open_run(tmp_path)
    listed = {row["order"]: row["passes"] for row in Index(opened).page(Query())["rows"]}
    assert listed == {row["order"]: row["passes"] for row in plain_rows(opened.sample("a"))}
    assert listed == dict.fromkeys(paths, 4)


def test_texts_whose_tail_was_filled_first_have_no_gap(tmp_path):
    """Positions past the requested two were revealed first, so no sum is the likelihood of the text."""
    tail = {"path": [3, 2, 1, 0], "n_requested": 2}
    traces = [
        make_trace("a", order, [-1.0 - at] * 4, **tail) for at, order in enumerate(("max-prob", "entropy"))
    ]
    traces.append(make_trace("a", "max-prob+top=2", [-9.0] * 4, forward=[0, 0, 1, 1], **tail))
    make_run(traces).save(tmp_path)
    opened = open_run(tmp_path)
    listed = {row["order"]: row["gap"] for row in Index(opened).page(Query())["rows"]}
    assert listed == {row["order"]: row["gap"] for row in plain_rows(opened.sample("a"))}
    assert listed == dict.fromkeys(("max-prob", "entropy", "max-prob+top=2"))


def test_list_view_and_tables_count_the_same_verdicts(tmp_path):
    """Three texts were graded by ``strict``; that one of them was graded again by ``loose`` moves nothing."""
    key = {"order": "max-prob", "temperature": 0.0, "task": "t"}
    strict = {"grader": "strict", "generation": 0, "correct": False}
    loose = {"grader": "loose", "generation": 1, "correct": True}
    for run, graded in (("one", [("a", strict), ("b", strict), ("a", loose)]), ("two", [("a", strict)])):
        names = sorted({name for name, _ in graded})
        traces = [make_trace(name, "max-prob", [-1.0], temperature=0.0, task="t") for name in names]
        rows = [{"sample_id": name} | key | verdict for name, verdict in graded]
        make_run(traces, spec={"name": run}, verdicts=rows).save(tmp_path / run)
    both = open_run(tmp_path)
    assert [row["correct"] for row in Index(both).page(Query())["rows"]] == [False] * 3
    for run in (both, open_run(tmp_path / "one")):
        assert {trace.verdict.grader for name in "ab" for trace in run.sample(name).traces} == {"strict"}
        assert not Study(run).verdicts["correct"].any()


def test_undefined_values_stand_last_either_way(index):
    for descending in (True, False):
        rows = index.page(Query(sort="var", descending=descending))["rows"]
        known = [row["var"] for row in rows if row["var"] is not None]
        assert known == sorted(known, reverse=descending)
        assert [row["var"] for row in rows[len(known) :]] == [None] * 4


def test_the_first_page_does_not_wait_for_the_rest(run):
    index = Index(run)
    index.wait("peek")
    assert index.page(Query(whole=False))["rows"]
    index.wait()
    assert index.page(Query(whole=False))["state"] == "whole"
    assert index.orders() == ["entropy", "forced-ar", "max-prob", "oracle-max-q"]


def test_a_damaged_run_is_told_to_whoever_asks(tmp_path):
    run = make_run([make_trace("a", "forced-ar", [-1.0])]).save(tmp_path / "run")
    part = next((tmp_path / "run").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    index = Index(run)
    with pytest.raises(CorruptRunError, match="orderlens runs verify"):
        index.page(Query())


def test_a_run_without_traces_is_an_empty_list():
    assert Index(make_run([make_trace("a", "x", [-1.0]).slice(0, 0)])).page(Query())["total"] == 0
