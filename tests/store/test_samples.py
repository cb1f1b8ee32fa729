"""Path statistics of awkward traces: Arrow, SQL and a plain loop say the same."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from orderlens.store.reader import Run, open_run
from orderlens.store.samples import DRAWN, label_and_seed, likelihood, order_labels
from orderlens.testing import make_run, make_trace

EOS, SPECIAL = 0, 1
TRACES = {
    "plain": {"logq": [-0.5, -1.0, -3.0]},
    "one": {"logq": [-0.25]},
    "zero": {"logq": [0.0, 0.0]},
    "impossible": {"logq": [-1.0, -math.inf]},
    "undefined": {"logq": [-1.0, math.nan, -2.0]},
    "ended": {"logq": [-1.0, -2.0, -4.0, -8.0], "tokens": [5, SPECIAL, 6, EOS]},
    "only-eos": {"logq": [-1.0, -3.0], "tokens": [EOS, EOS]},
    "overflow": {"logq": [-1.0, -2.0, -9.0, -9.0], "n_requested": 2, "forward": [0, 0, 3, 4]},
    "all-overflow": {"logq": [-1.0, -2.0], "n_requested": 0},
    "sets": {"logq": [-1.0, -2.0, -4.0], "forward": [0, 0, 2]},
    "backwards": {"logq": [-1.0, -2.0, -9.0], "path": [2, 0, 1], "n_requested": 2},
}


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run([make_trace(name, "max-prob", **given) for name, given in TRACES.items()])


def by_loop(name: str) -> dict[str, float]:
    """Return the statistics of one trace, reveal by reveal."""
    given = TRACES[name]
    n = len(given["logq"])
    path, tokens = given.get("path", range(n)), given.get("tokens", [9] * n)
    limit, forward = given.get("n_requested", n), given.get("forward", range(n))
    counted = [place for place in range(n) if path[place] < limit]
    content = [place for place in counted if tokens[path[place]] not in (EOS, SPECIAL)]
    out: dict[str, float] = {"n": len(counted), "n_content": len(content), "n_overflow": n - len(counted)}
    for prefix, places in (("", counted), ("content_", content)):
        values = np.array([given["logq"][place] for place in places])
        out[f"{prefix}mean"] = values.mean() if len(values) else math.nan
        finite = len(values) and np.isfinite(values).all()
        out[f"{prefix}var"] = float(np.mean((values - values.mean()) ** 2)) if finite else math.nan
    out["log_prob"] = sum(given["logq"][place] for place in counted) if counted else math.nan
    out["n_eos"] = sum(tokens[path[place]] == EOS for place in counted)
    out["n_passes_requested"] = max((forward[place] for place in counted), default=-1) + 1
    out["n_passes"] = max(forward) + 1
    return out


@pytest.mark.parametrize("name", TRACES)
def test_statistics_equal_a_loop_over_the_reveals(run: Run, name: str) -> None:
    (row,) = (row for row in run.samples().to_arrow().to_pylist() if row["sample_id"] == name)
    expected = by_loop(name)
    np.testing.assert_equal({key: row[key] for key in expected}, expected)


def test_flags_that_were_not_recorded_count_as_false() -> None:
    trace = make_trace("a", "max-prob", [-1.0, -2.0], tokens=[5, EOS])
    bare = trace.drop_columns(["is_eos", "is_special", "is_overflow"])
    (row,) = make_run([bare]).samples().to_arrow().to_pylist()
    assert (row["n"], row["n_content"], row["n_eos"], row["n_overflow"]) == (2, 2, 0, 0)
    half = trace.set_column(trace.column_names.index("is_eos"), "is_eos", pa.array([None, True]))
    (row,) = make_run([half]).samples().to_arrow().to_pylist()
    assert (row["n_content"], row["n_eos"]) == (1, 1)


def test_states_tried_ahead_are_summed_over_all_passes() -> None:
    trace = make_trace("a", "lookahead-gain", [-1.0, -2.0, -3.0], n_requested=2)
    place = trace.column_names.index("n_lookahead")
    ahead = trace.set_column(place, "n_lookahead", pa.array([4, None, 7], trace.schema.field(place).type))
    (row,) = make_run([ahead]).samples().to_arrow().to_pylist()
    assert row["n_passes_lookahead"] == 11
    (row,) = make_run([trace]).samples().to_arrow().to_pylist()
    assert row["n_passes_lookahead"] == 0


KEY = {"sample_id": "a", "order": "max-prob", "temperature": 0.0}


def test_passes_that_an_output_states_replace_those_that_reveals_tell() -> None:
    rows = [KEY | {"n_passes": 9}, KEY | {"sample_id": "b", "n_passes": None}]
    traces = [make_trace(name, "max-prob", [-1.0, -2.0], temperature=0.0) for name in "ab"]
    run = make_run(traces, outputs=rows)
    assert run.samples().to_pandas().set_index("sample_id")["n_passes"].to_dict() == {"a": 9, "b": 2}


@pytest.mark.parametrize(
    ("stated", "label", "temperature", "expected"),
    [
        ({"max-prob": "exact"}, "max-prob", None, "exact"),
        ({"max-prob": "exact"}, "max-prob", 0.7, "exact"),
        ({"max-prob": "exact", f"max-prob{DRAWN}": "none"}, "max-prob", 0.7, "none"),
        ({"max-prob": "exact", f"max-prob{DRAWN}": "none"}, "max-prob", 0.0, "exact"),
        ({"max-prob": "exact", f"max-prob{DRAWN}": "none"}, "max-prob", math.nan, "exact"),
        ({}, "max-prob", None, None),
        (None, "max-prob", None, "exact"),
        (None, "random", None, "estimate"),
        (None, "oracle-max-q", None, "none"),
        (None, "not-installed-here", None, None),
    ],
)
def test_what_a_sum_is_comes_from_the_spec_or_follows_from_the_policy(
    stated: dict[str, str] | None, label: str, temperature: float | None, expected: str | None
) -> None:
    assert likelihood(stated, label, temperature) == expected


@pytest.mark.parametrize(
    ("spec", "label", "seed"),
    [
        ("random:3", "random", 3),
        ("random:3+top=2", "random+top=2", 3),
        ("max-prob+top=2", "max-prob+top=2", None),
        ("max-prob", "max-prob", None),
        ("their own:3", "their own:3", None),
    ],
)
def test_orders_are_named_as_traces_name_them(spec: str, label: str, seed: int | None) -> None:
    assert label_and_seed(spec) == (label, seed)
    assert order_labels([spec, spec]) == [label]


def test_runs_read_together_keep_their_own_statements(tmp_path) -> None:
    for name, kind in (("one", "exact"), ("two", "none")):
        trace = make_trace("a", "mine", [-1.0])
        make_run([trace], spec={"name": name, "likelihood": {"mine": kind}}).save(tmp_path / name)
    run = open_run([tmp_path / "one", tmp_path / "two"])
    expected = {"one": "exact", "two": "none"}
    frame = run.samples().to_pandas()
    assert dict(zip(frame["run"], frame["likelihood"], strict=True)) == expected
