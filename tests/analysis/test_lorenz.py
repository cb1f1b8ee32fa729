"""Lorenz curves of a run."""

from __future__ import annotations

import numpy as np
import pytest

from orderlens.analysis import Study
from orderlens.analysis.tables_fixed import first_block_curves, lorenz_curves
from orderlens.analysis.traces import sample_table
from orderlens.metrics import gini, lorenz
from orderlens.testing import make_run, make_trace


def test_lorenz_curves_average_block_0():
    rng = np.random.default_rng(0)
    logs = [-rng.gamma(0.5, size=40) for _ in range(3)]
    run = make_run([make_trace(f"s{i}", "forced-ar", y) for i, y in enumerate(logs)])
    curves = lorenz_curves(run, sample_table(run))
    assert curves["length"].unique().tolist() == [32]
    np.testing.assert_allclose(curves["lorenz"], np.mean([lorenz(-y[:32]) for y in logs], axis=0))
    assert curves["gini"].iloc[0] == pytest.approx(np.mean([gini(-y[:32]) for y in logs]))
    everything = lorenz_curves(run, sample_table(run), block=None)
    assert sorted(everything["length"].unique()) == [8, 32]
    broken = make_run([make_trace("s", "forced-ar", [-0.1, np.nan])])
    assert lorenz_curves(broken, sample_table(broken))["n_undefined"].iloc[0] == 1


@pytest.mark.parametrize("rows", [1, 1 << 18])
def test_only_the_traces_that_count_enter_however_they_are_read(monkeypatch, rows):
    monkeypatch.setattr("orderlens.store.samples.CHUNK_ROWS", rows)
    rng = np.random.default_rng(1)
    kinds = [
        ("a", "forced-ar", None),
        ("a", "max-prob", 0.0),
        ("b", "forced-ar", None),
        ("b", "max-prob", None),
    ]
    logs = {kind: -rng.gamma(0.5, size=8) for kind in kinds}
    traces = [
        make_trace(name, order, y, temperature=temperature, block_size=8)
        for (name, order, temperature), y in logs.items()
    ]
    run = make_run(traces)
    samples = sample_table(run)
    keep = np.array([(row.sample_id, row.order) != ("a", "forced-ar") for row in samples.itertuples()])
    curves = lorenz_curves(run, samples, keep=keep).groupby(["order", "scored"])
    expected = {("forced-ar", True): kinds[2], ("max-prob", False): kinds[1], ("max-prob", True): kinds[3]}
    assert set(curves.groups) == set(expected)
    for key, kind in expected.items():
        np.testing.assert_allclose(curves.get_group(key)["lorenz"], lorenz(-logs[kind]))
        assert set(curves.get_group(key)["n"]) == {1}


def test_the_most_frequent_length_counts_blocks_not_steps():
    rng = np.random.default_rng(2)
    lengths = (4, 4, 4, 8, 8)
    traces = [
        make_trace(f"s{i}", "forced-ar", -rng.gamma(0.5, size=n), block_size=8) for i, n in enumerate(lengths)
    ]
    found = first_block_curves(Study(make_run(traces)))
    assert (found["length"], found["n_other_lengths"]) == (4, 2)
    assert [curve["n"] for curve in found["curves"]] == [3]


def test_of_equally_frequent_lengths_the_longest_is_shown():
    rng = np.random.default_rng(3)
    traces = [make_trace(f"s{n}", "forced-ar", -rng.gamma(0.5, size=n), block_size=8) for n in (3, 8, 5)]
    found = first_block_curves(Study(make_run(traces)))
    assert (found["length"], found["n_other_lengths"]) == (8, 2)
