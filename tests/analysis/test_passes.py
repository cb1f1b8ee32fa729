"""The passes behind a trace: committed, looked ahead, stated by the policy, or seen in its revisions."""

from __future__ import annotations

import pandas as pd
import pytest

from orderlens.analysis.passes import in_sets, total_passes, trace_rows
from orderlens.analysis.study import Study
from orderlens.analysis.tables_frontier import has_ladder
from orderlens.analysis.tables_policies import pace, policies
from orderlens.store.reader import open_run
from orderlens.testing import make_run, make_trace

KEY = {"sample_id": "a", "order": "max-prob+edit=0.9", "temperature": 0.0}


def one_trace(**tables):
    return make_run([make_trace(**KEY, logq=[-1.0] * 4, forward=[0, 0, 1, 2])], **tables)


def revision(forward, **key):
    return KEY | {"event": "edit", "forward": forward, "position": 1, "old_token": 3, "new_token": 4} | key


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, 3),
        ({"outputs": [KEY | {"text": "x"}]}, 3),
        ({"outputs": [KEY | {"text": "x", "n_forwards": 7}]}, 7),
        ({"outputs": [KEY | {"text": "x", "n_forwards": 2}]}, 3),
        ({"revisions": [revision(5), revision(3)]}, 6),
        ({"revisions": [revision(1)]}, 3),
        ({"revisions": [revision(9, sample_id="b")]}, 3),
        ({"revisions": [revision(5)], "outputs": [KEY | {"text": "x", "n_forwards": 8}]}, 8),
        ({"revisions": [revision(9)], "outputs": [KEY | {"text": "x", "n_forwards": 8}]}, 10),
    ],
)
def test_the_most_that_any_source_knows_counts(tables, expected):
    assert Study(one_trace(**tables)).samples["passes"].tolist() == [expected]


def test_looking_ahead_is_counted_beside_and_the_index_is_kept():
    run = one_trace()
    rows = [KEY | {"run": run.names[0], "n_passes": 3.0, "n_ahead": 5.0}]
    frame = pd.DataFrame(rows, index=[42]).assign(task=None, seed=None, sample_seed=None)
    found = total_passes(run, frame)
    assert found.to_dict() == {42: 8.0}


def test_each_run_answers_for_its_own_traces(tmp_path):
    for name, passes in (("one", 9), ("two", None)):
        run = make_run(
            [make_trace(**KEY, logq=[-1.0, -2.0])],
            spec={"model": name},
            outputs=[KEY | {"text": name, "n_forwards": passes}],
        )
        run.save(tmp_path / name)
    both = open_run([tmp_path / "one", tmp_path / "two"])
    frame = Study(both).every
    assert dict(zip(frame["run"], frame["passes"], strict=True)) == {"one": 9.0, "two": 2.0}


def test_rows_hold_the_key_and_what_was_asked_for():
    run = one_trace(outputs=[KEY | {"text": "x", "prompt_text": "p", "n_forwards": 3}])
    narrow = trace_rows(run, "outputs", "text", "not there")
    assert narrow["text"].tolist() == ["x"]
    assert "prompt_text" not in narrow.columns
    assert narrow["run"].tolist() == run.names
    assert "prompt_text" in trace_rows(run, "outputs").columns


def test_sets_show_where_the_tail_of_the_block_was_filled_first():
    """Two passes for two requested tokens, but they come after one that filled two places past them."""
    key = {"temperature": 0.0, "path": [3, 2, 1, 0], "n_requested": 2}
    sets = make_trace("a", "max-prob+top=2", [-1.0] * 4, forward=[0, 0, 1, 1], **key)
    alone = make_trace("a", "top-margin", [-1.0] * 4, **key)
    study = Study(make_run([sets, alone, make_trace("a", "max-prob", [-1.0] * 4, **key)]))
    frame = study.samples.set_index("order")
    assert (frame["n_forwards"] >= frame["n"]).all()  # so these two do not tell
    assert in_sets(frame).to_dict() == {"max-prob": False, "max-prob+top=2": True, "top-margin": False}
    assert has_ladder(study)
    speed = pace(study, study.samples[study.samples["order"] == "max-prob+top=2"])
    assert (speed["tokens_per_pass"].value, speed["passes_per_token"].value) == (2.0, 0.5)
    counts = {row["scope"]: row["n_policies"] for row in policies(study)[1].rows}
    assert (counts["one token per pass"], counts["several tokens per pass"]) == (2, 1)
