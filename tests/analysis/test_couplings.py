"""Couplings per set and per trace: means over paths, sums scaled up, and the parts of Var."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from orderlens.analysis.study import Study
from orderlens.analysis.tables_couplings import TRACE, measured_sets, traced
from orderlens.metrics.passes import pass_variance
from orderlens.testing import make_run, make_trace

FORWARD = np.array([0, 0, 0, 1, 2, 2])
ORDER = "max-prob+top=3"


def run_of(measured=(0, 2), paths=3, seed=0):
    """Return a run of two texts: y by passes, z of the same path token by token, some sets measured."""
    rng = np.random.default_rng(seed)
    traces, rows, truth = [], [], {}
    for sample in "ab":
        y = -rng.gamma(1.0, 1.0, 6)
        first = np.r_[True, np.diff(FORWARD) > 0]
        z = np.where(first, y, -rng.gamma(1.0, 1.0, 6))
        place = rng.permutation(6)
        traces.append(make_trace(sample, ORDER, y, path=place, forward=FORWARD))
        truth[sample] = (y, z)
        for number, path in itertools.product(measured, range(paths)):
            at = np.flatnonzero(number == FORWARD)
            sequential = z[at] if path == 0 else z[at] + 0.1 * path
            rows.append(
                {
                    "sample_id": sample,
                    "order": ORDER,
                    "forward": number,
                    "path": path,
                    "size": len(at),
                    "n_sets": 2,
                    "positions": place[at].tolist(),
                    "logq": y[at].tolist(),
                    "sequential": sequential.tolist(),
                    "coupling": float(sequential.sum() - y[at].sum()),
                    "entropy_bound": 1.5,
                }
            )
    return make_run(traces, couplings=rows), truth


def test_a_sets_coupling_is_the_mean_over_paths_and_its_incoherence_their_range():
    run, truth = run_of()
    sets = measured_sets(run)
    assert len(sets) == 4
    for row in sets.itertuples():
        y, z = (values[row.forward == FORWARD] for values in truth[row.sample_id])
        own, size = z.sum() - y.sum(), len(y)
        assert row.own == pytest.approx(own)
        assert row.coupling == pytest.approx(own + size * 0.1)  # paths add 0, 0.1 and 0.2 per token
        assert row.incoherence == pytest.approx(size * 0.2)
        assert row.squares == pytest.approx((z**2).sum() - (y**2).sum())
        assert row.pass_squares == pytest.approx(size * (z.mean() ** 2 - y.mean() ** 2))
        assert (row.size, row.paths, row.bound) == (size, 3, 1.5)


def test_the_gap_is_the_smallest_distance_of_two_positions():
    key = {"sample_id": "a", "order": ORDER, "forward": 0, "n_sets": 1}
    for positions, gap in (([9, 2, 5], 3), ([4, 5], 1), ([7, 1], 6)):
        values = [-1.0] * len(positions)
        more = {"path": 0, "size": len(values), "positions": positions, "logq": values, "sequential": values}
        run = make_run([make_trace("a", ORDER, [-1.0])], couplings=[key | more | {"coupling": 0.0}])
        assert measured_sets(run)["gap"].tolist() == [gap]


def test_the_parts_of_var_are_those_of_the_whole_trace():
    run, truth = run_of()
    study = Study(run)
    found = traced(measured_sets(run), study.scored).set_index("sample_id")
    for sample, (y, z) in truth.items():
        parts, row = pass_variance(y, FORWARD, z), found.loc[sample]
        assert row["coupling"] == pytest.approx(z.sum() - y.sum())
        for name in ("between", "inside", "coupling_between", "coupling_inside"):
            assert row[name] == pytest.approx(getattr(parts, name), abs=1e-12), name
        assert row["var_one_token_per_pass"] == pytest.approx(np.var(z))
        assert row["between"] + row["inside"] == pytest.approx(np.var(y))


def test_of_some_sets_the_sum_is_scaled_up_and_there_are_no_parts():
    run, truth = run_of(measured=(0,))
    found = traced(measured_sets(run), Study(run).scored).set_index("sample_id")
    for sample, (y, z) in truth.items():
        at = FORWARD == 0
        assert found.loc[sample, "coupling"] == pytest.approx(2 * (z[at].sum() - y[at].sum()))
    assert found[["between", "inside", "coupling_between", "coupling_inside"]].isna().all(axis=None)
    assert found["var_one_token_per_pass"].isna().all()


def test_one_token_per_pass_has_no_coupling_and_an_unmeasured_trace_none_that_is_known():
    traces = [make_trace("a", "max-prob", [-1.0, -2.0]), make_trace("a", ORDER, [-1.0, -3.0], forward=[0, 0])]
    run = make_run(traces)
    empty = pd.DataFrame(columns=[*TRACE, "own", "squares", "pass_squares", "n_sets"])
    found = traced(empty, Study(run).scored).set_index("order")
    plain = found.loc["max-prob"]
    assert (plain["coupling"], plain["coupling_between"], plain["coupling_inside"]) == (0.0, 0.0, 0.0)
    assert plain["var_one_token_per_pass"] == pytest.approx(0.25)
    assert np.isnan(found.loc[ORDER, "coupling"])
    assert np.isnan(found.loc[ORDER, "between"])


def test_a_table_of_couplings_without_rows_has_its_columns():
    run = make_run([make_trace("a", "max-prob", [-1.0])], couplings=[])
    sets = measured_sets(run)
    assert len(sets) == 0
    assert {"coupling", "incoherence", "size", "gap"} <= set(sets.columns)
