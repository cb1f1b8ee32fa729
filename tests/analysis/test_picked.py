"""Picking traces by a seed, and reading exactly those out of a run in any chunks."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis.picked import pick, picked_traces
from orderlens.analysis.sample_table import sample_table
from orderlens.testing import make_run, make_trace


def test_few_values_are_all_taken_and_many_are_drawn_by_the_seed():
    values = [3, 1, 3, 2, 1]
    assert pick(values, 3, 0, "x") == {1, 2, 3}
    assert pick(values, 9, 0, "x") == {1, 2, 3}
    many = list(range(100))
    drawn = pick(many, 10, 5, "x")
    assert len(drawn) == 10
    assert drawn <= set(many)
    assert drawn == pick(many * 2, 10, 5, "x"), "how often a value comes does not matter"
    assert drawn != pick(many, 10, 6, "x")
    assert drawn != pick(many, 10, 5, "y")
    assert pick([], 3, 0, "x") == set()


@pytest.fixture(scope="module")
def run():
    traces = []
    for sample in range(5):
        for order in ("forced-ar", "max-prob"):
            n = 2 + sample
            logq = -np.arange(1, n + 1) - 10.0 * sample - (100 if order == "max-prob" else 0)
            tokens = np.r_[np.full(n - 1, 5), 0]
            traces.append(
                make_trace(
                    f"s{sample}", order, logq, tokens=tokens, n_requested=n - 1 if sample == 4 else None
                )
            )
    return make_run(traces)


@pytest.mark.parametrize("rows", [[], [0], [9], [3, 1, 7], list(range(10)), [2, 2]])
@pytest.mark.parametrize("at_once", [None, 3])
def test_the_wanted_rows_come_with_their_own_reveals(run, rows, at_once, monkeypatch):
    if at_once:
        monkeypatch.setattr("orderlens.analysis.traces.CHUNK_ROWS", at_once)
    samples = sample_table(run, ())
    found = {}
    for row, traces, at in picked_traces(run, samples, rows, ["logq", "position"]):
        found[row] = traces.columns["logq"][at], traces.content[at]
    assert sorted(found) == sorted(set(rows))
    for row, (logq, content) in found.items():
        trace = samples.iloc[row]
        sample, n = int(trace["sample_id"][1:]), int(trace["n"])
        start = -10.0 * sample - (100 if trace["order"] == "max-prob" else 0)
        assert logq.tolist() == [start - k for k in range(1, n + 1)], "overflow is left out"
        assert len(logq) == (5 if sample == 4 else 2 + sample)
        assert content.tolist() == [True] * (n if sample == 4 else n - 1) + [False] * (sample != 4)
