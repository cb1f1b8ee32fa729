"""The table of statistics per trace against the one-trace functions; passes; picked traces."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orderlens import metrics
from orderlens.analysis.frontier import has_ladder
from orderlens.analysis.study import Study
from orderlens.analysis.tables_policies import pace, policies
from orderlens.analysis.traces import (
    all_passes,
    in_sets,
    matched_distinct,
    pick,
    picked_traces,
    sample_table,
    trace_rows,
)
from orderlens.store.reader import memory_run, open_run
from orderlens.testing import make_run, make_trace

EOS = 0
PATH_COLUMNS = [
    *("n", "mean", "var", "log_prob", "min", "q05", "bottleneck_rate", "mad", "gini_mean"),
    *("abs_delta_reveal", "sq_delta_reveal", "abs_delta_text", "sq_delta_text"),
]


@pytest.fixture
def run(builders):
    rng = np.random.default_rng(0)
    tables = []
    for sample in range(8):
        for order in ("forced-ar", "reverse-ar", "max-prob"):
            n = int(rng.integers(40, 100))
            tokens = rng.integers(1, 12, n)
            tokens[n - int(rng.integers(0, 12)) :] = EOS
            path = builders.random_path(rng, n, order)
            tables.append(
                builders.trace(f"s{sample}", order, -rng.gamma(0.5, size=n), path=path, tokens=tokens)
            )
    return builders.make_run(tables)


def one_trace(run, row):
    frame = run.trace(row.sample_id, row.order).to_pandas()
    return frame[~frame["is_overflow"]]


def test_every_column_equals_the_one_trace_function(run):
    table = sample_table(run)
    assert len(table) == 24
    for row in table.itertuples():
        frame = one_trace(run, row)
        content = frame[~frame["is_eos"] & ~frame["is_special"]]
        for prefix, part in (("", frame), ("content_", content)):
            stats = metrics.path_stats(part["logq"], part["position"], part["block"])
            for name in PATH_COLUMNS:
                expected = getattr(stats, name)
                column = "n_content" if prefix + name == "content_n" else prefix + name
                assert getattr(row, column) == pytest.approx(expected, abs=1e-10, nan_ok=True), prefix + name
            for sigma, loss in stats.jensen_loss.items():
                assert table.at[row.Index, f"{prefix}jensen_{sigma:g}"] == pytest.approx(loss, abs=1e-9)
        block0 = content[content["block"] == 0]
        assert row.spearman_l2r_block0 == pytest.approx(metrics.spearman_l2r(block0["position"]), abs=1e-12)
        assert row.concordance_block0 == pytest.approx(metrics.concordance(block0["position"]), abs=1e-12)
        assert row.global_arness_block0 == pytest.approx(metrics.global_arness(block0["position"]), abs=1e-12)
        assert row.local_arness_block0 == pytest.approx(metrics.local_arness(block0["position"]), abs=1e-12)
        everywhere = [metrics.spearman_l2r(part["position"]) for _, part in frame.groupby("block")]
        assert row.all_spearman_l2r_mean == pytest.approx(np.nanmean(everywhere), abs=1e-12)
        cascade = metrics.eos_cascade(
            frame["position"], frame["is_eos"], ~frame["is_eos"] & ~frame["is_special"]
        )
        assert row.eos_cascade == cascade.length
        assert row.eos_cascade_start == pytest.approx(cascade.start, nan_ok=True)
        assert row.eos_cascade_resume == pytest.approx(cascade.resume, nan_ok=True)
        text = frame.sort_values("position")
        kept = text.loc[~text["is_eos"], "token_id"]
        assert row.distinct_3 == pytest.approx(metrics.distinct_n(kept, 3), nan_ok=True)
        assert row.token_entropy == pytest.approx(metrics.token_entropy(kept), abs=1e-12)
        assert row.eos_fraction == pytest.approx(frame["is_eos"].mean())
        assert row.n_text == len(metrics.cut_at_eos(text["token_id"].tolist(), {EOS}))
        assert row.argmax_accuracy == pytest.approx(frame["is_argmax"].mean())
        margin = np.exp(frame["max_logprob"]) - np.exp(frame["second_logprob"])
        assert row.mean_margin == pytest.approx(margin.mean())


def test_frontier_counts_eos_as_context_but_averages_over_content(builders):
    tokens = [5, 6, 7, EOS]
    run = builders.make_run([builders.trace("a", "max-prob", [-0.1] * 4, path=[3, 0, 2, 1], tokens=tokens)])
    row = sample_table(run).iloc[0]
    assert row.frontier_distance == pytest.approx((1 + 2 + 1) / 3)
    assert row.frontier_adjacent == pytest.approx(2 / 3)


def test_chunk_size_and_threads_do_not_matter(run, monkeypatch):
    whole = sample_table(run)
    monkeypatch.setattr("orderlens.store.samples.CHUNK_ROWS", 1)
    monkeypatch.setattr("orderlens.store.sources.CHUNK_ROWS", 100)
    pd.testing.assert_frame_equal(sample_table(run), whole)


NAMES = [
    *("n", "mean", "var", "n_content", "content_mean", "content_var"),
    *("log_prob", "n_eos", "n_overflow", "n_overflow_before"),
    *("n_passes", "n_passes_requested", "n_passes_lookahead", "likelihood"),
]


def awkward(builders):
    made = [
        builders.trace("impossible", "forced-ar", [-0.1, -np.inf, -0.3]),
        builders.trace("only", "forced-ar", [-np.inf]),
        builders.trace("nan", "max-prob", [-0.1, np.nan]),
        builders.trace("eos", "max-prob", [-0.1, -0.2], tokens=[EOS, EOS]),
        builders.trace("past", "random", [-0.1, -0.2, -9.0], n_requested=2, seed=3),
        builders.trace("drawn", "max-prob", [-0.5, -0.25], temperature=0.7),
        builders.trace("oracle", "oracle-min-q", [-0.5]),
        builders.trace("elsewhere", "unheard-of", [-0.5]),
        builders.trace("pairs", "max-prob+top=2", [-0.5, -0.25, -0.125, -1.0], forward=[0, 0, 1, 1]),
    ]
    ahead = builders.trace(
        "ahead", "lookahead-gain+top=2", [-0.5, -0.25, -1.0], forward=[0, 0, 1], n_requested=2
    )
    place = ahead.schema.get_field_index("n_lookahead")
    made.append(ahead.set_column(place, ahead.schema.field(place), [pa.array([5, 0, 3], pa.int32())]))
    return builders.make_run(made)


def test_the_store_and_the_analysis_give_the_same_statistics(run, builders):
    for one in (run, awkward(builders)):
        keys = ["sample_id", "order"]
        frames = (one.samples().to_pandas(), sample_table(one, ()))
        arrow, ours = (
            frame.fillna({"likelihood": "?"}).set_index(keys).sort_index()[NAMES] for frame in frames
        )
        pd.testing.assert_frame_equal(ours, arrow, check_dtype=False, rtol=1e-12)


def test_impossible_tokens_passes_and_what_the_sum_means(builders):
    table = awkward(builders).samples().to_pandas().set_index("sample_id")
    for name in ("impossible", "only"):
        assert (table.loc[name, "mean"], table.loc[name, "log_prob"]) == (-np.inf, -np.inf)
        assert np.isnan(table.loc[name, "var"])
    assert table.loc["pairs", "n_passes"] == 2
    assert table["n_passes_lookahead"].to_dict() == dict.fromkeys(table.index, 0) | {"ahead": 8}
    assert table.loc["past", ["n_passes", "n_passes_requested"]].tolist() == [3, 2]
    assert table["likelihood"].fillna("not known").to_dict() == {
        **dict.fromkeys(("impossible", "only", "nan", "eos", "pairs"), "exact"),
        **dict.fromkeys(("past", "ahead"), "estimate"),
        "drawn": "none",  # the position was chosen among draws
        "oracle": "none",
        "elsewhere": "not known",
    }


def test_a_spec_that_states_likelihoods_is_believed(builders):
    reveals = builders.trace("a", "mine", [-0.5], temperature=0.7)
    run = memory_run({"reveals": reveals}, {"likelihood": {"mine": "exact", "mine|drawn": "none"}})
    assert run.samples().to_arrow()["likelihood"].to_pylist() == ["none"]
    assert sample_table(run, ())["likelihood"].tolist() == ["none"]


def test_overflow_rows_are_counted_and_left_out(builders):
    run = builders.make_run([builders.trace("a", "forced-ar", [-0.1, -0.2, -9.0], n_requested=2)])
    row = sample_table(run).iloc[0]
    assert (row.n, row.n_overflow) == (2, 1)
    assert row.log_prob == pytest.approx(-0.3)


def test_awkward_traces_leave_undefined_values_not_zeros(builders):
    run = builders.make_run(
        [
            builders.trace("all-eos", "max-prob", [-0.1, -0.2], tokens=[EOS, EOS]),
            builders.trace("nan", "max-prob", [-0.1, np.nan, -0.3]),
            builders.trace("one", "max-prob", [-0.4]),
        ]
    )
    table = sample_table(run).set_index("sample_id")
    empty = table.loc["all-eos"]
    assert empty.n_content == 0
    assert np.isnan(
        [empty.content_mean, empty.content_var, empty.spearman_l2r_block0, empty.distinct_3]
    ).all()
    assert empty.eos_fraction == 1.0
    assert table.loc["nan", "n_nonfinite"] == 1
    assert np.isnan(table.loc["nan", ["mean", "var", "gini_mean", "jensen_0.5"]].astype(float)).all()
    assert table.loc["one", "var"] == 0.0
    assert np.isnan(table.loc["one", "spearman_l2r_block0"])


def test_first_block_without_content_has_no_block0_value(builders):
    tokens = [EOS] * 32 + [5, 6, 7]
    run = builders.make_run([builders.trace("a", "max-prob", [-0.1] * 35, tokens=tokens)])
    row = sample_table(run).iloc[0]
    assert np.isnan(row.spearman_l2r_block0)
    assert np.isnan(row.content_gini_block0)
    assert row.spearman_l2r_mean == 1.0


def test_a_trace_that_does_not_start_at_step_0_is_not_merged(builders):
    first = builders.trace("a", "forced-ar", [-0.1, -0.2])
    second = builders.trace("b", "forced-ar", [-0.3] * 5).slice(2)
    table = sample_table(builders.make_run([first, second]))
    assert table["n"].tolist() == [2, 3]


def test_length_matched_distinct(builders):
    long, short = [2, 3, 4, 2, 3, 4, 2, 3, 4], [2, 3, 4, 5, EOS]
    run = builders.make_run(
        [
            builders.trace("a", "forced-ar", [-0.1] * 9, tokens=long),
            builders.trace("a", "max-prob", [-0.1] * 5, tokens=short),
        ]
    )
    table = sample_table(run)
    shortest = table.groupby("sample_id")["n_tokens"].transform("min")
    assert matched_distinct(run, table, shortest).tolist() == metrics.length_matched_distinct_n(
        [long, short], 3, {EOS}
    )


def test_an_empty_run_gives_an_empty_table(builders):
    run = builders.make_run([builders.trace("a", "forced-ar", [])])
    assert len(sample_table(run)) == 0


def test_passes_that_a_run_states_win_over_those_that_reveals_tell(builders):
    """A rule that revises spends passes after the last reveal; without a statement the last reveal counts."""
    traces = [
        builders.trace(name, "max-prob", [-1.0, -2.0, -3.0], forward=[0, 0, 1], temperature=0.0)
        for name in ("stated", "silent")
    ]
    key = {"order": "max-prob", "temperature": 0.0}
    outputs = [
        key | {"sample_id": "stated", "n_passes": 7},
        key | {"sample_id": "silent", "n_passes": None},
    ]
    run = builders.make_run(traces, outputs=outputs)
    told = dict(zip(*(sample_table(run)[name] for name in ("sample_id", "n_passes")), strict=True))
    assert told == {"stated": 7, "silent": 2}
    rows = run.samples().to_arrow().to_pylist()
    assert {row["sample_id"]: row["n_passes"] for row in rows} == told
    assert {name: run.sample(name).traces[0].n_passes for name in told} == told


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
def steps():
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
def test_the_wanted_rows_come_with_their_own_reveals(steps, rows, at_once, monkeypatch):
    if at_once:
        monkeypatch.setattr("orderlens.store.samples.CHUNK_ROWS", at_once)
    samples = sample_table(steps, ())
    found = {}
    for row, traces, at in picked_traces(steps, samples, rows, ["logq", "position"]):
        found[row] = traces.columns["logq"][at], traces.content[at]
    assert sorted(found) == sorted(set(rows))
    for row, (logq, content) in found.items():
        trace = samples.iloc[row]
        sample, n = int(trace["sample_id"][1:]), int(trace["n"])
        start = -10.0 * sample - (100 if trace["order"] == "max-prob" else 0)
        assert logq.tolist() == [start - k for k in range(1, n + 1)], "overflow is left out"
        assert len(logq) == (5 if sample == 4 else 2 + sample)
        assert content.tolist() == [True] * (n if sample == 4 else n - 1) + [False] * (sample != 4)


KEY = {"sample_id": "a", "order": "max-prob+edit=0.9", "temperature": 0.0}


def revised(**tables):
    return make_run([make_trace(**KEY, logq=[-1.0] * 4, forward=[0, 0, 1, 2])], **tables)


def revision(forward, **key):
    return KEY | {"event": "edit", "forward": forward, "position": 1, "old_token": 3, "new_token": 4} | key


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, 3),
        ({"outputs": [KEY | {"text": "x"}]}, 3),
        ({"outputs": [KEY | {"text": "x", "n_passes": 7}]}, 7),
        ({"outputs": [KEY | {"text": "x", "n_passes": 2}]}, 3),
        ({"revisions": [revision(5), revision(3)]}, 6),
        ({"revisions": [revision(1)]}, 3),
        ({"revisions": [revision(9, sample_id="b")]}, 3),
        ({"revisions": [revision(5)], "outputs": [KEY | {"text": "x", "n_passes": 8}]}, 8),
        ({"revisions": [revision(9)], "outputs": [KEY | {"text": "x", "n_passes": 8}]}, 10),
    ],
)
def test_the_most_that_any_source_knows_counts(tables, expected):
    assert Study(revised(**tables)).samples["n_passes"].tolist() == [expected]


def test_every_reader_counts_the_same_passes():
    """Three passes of which two serve the requested tokens, one revision later, five states in advance."""
    trace = make_trace(**KEY, logq=[-1.0] * 4, forward=[0, 0, 1, 2], path=[0, 1, 2, 3], n_requested=3)
    place = trace.schema.get_field_index("n_lookahead")
    ahead = trace.set_column(place, trace.schema.field(place), [pa.array([3, 0, 0, 2], pa.int32())])
    for tables, n_passes, n_requested in (({}, 3, 2), ({"revisions": [revision(4)]}, 5, 5)):
        run = make_run([ahead], **tables)
        names = ("n_passes", "n_passes_requested", "n_passes_lookahead")
        expected = (n_passes, n_requested, 5)
        view, study = run.sample("a").traces[0], Study(run).samples
        assert tuple(getattr(view, name) for name in names) == expected
        assert tuple(run.samples().to_arrow().to_pylist()[0][name] for name in names) == expected
        assert tuple(study[name].item() for name in names) == expected
        assert run.sql(f"SELECT {', '.join(names)} FROM samples").to_pandas().iloc[0].tolist() == [*expected]
        assert all_passes(study).tolist() == [n_passes + 5]


def test_each_run_answers_for_its_own_traces(tmp_path):
    for name, passes in (("one", 9), ("two", None)):
        run = make_run(
            [make_trace(**KEY, logq=[-1.0, -2.0])],
            spec={"model": name},
            outputs=[KEY | {"text": name, "n_passes": passes}],
        )
        run.save(tmp_path / name)
    both = open_run([tmp_path / "one", tmp_path / "two"])
    frame = Study(both).all_traces
    assert dict(zip(frame["run"], frame["n_passes"], strict=True)) == {"one": 9, "two": 2}


def test_rows_hold_the_key_and_what_was_asked_for():
    run = revised(outputs=[KEY | {"text": "x", "prompt_text": "p", "n_passes": 3}])
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
    assert (frame["n_passes_requested"] >= frame["n"]).all()  # so these two do not tell
    assert in_sets(frame).to_dict() == {"max-prob": False, "max-prob+top=2": True, "top-margin": False}
    assert has_ladder(study)
    speed = pace(study, study.samples[study.samples["order"] == "max-prob+top=2"])
    assert (speed["tokens_per_pass"].value, speed["passes_per_token"].value) == (2.0, 0.5)
    counts = {row["scope"]: row["n_policies"] for row in policies(study)[1].rows}
    assert (counts["one token per pass"], counts["several tokens per pass"]) == (0, 0)
    assert set(frame["likelihood"]) == {"none"}, "the tail came first, so the sums are not likelihoods"
