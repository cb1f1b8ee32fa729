"""A census as a run: rows, spans, resuming, reading again, and everything that is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.analysis.census import Census
from orderlens.analysis.tables_census import census_frames
from orderlens.cli.main import main
from orderlens.errors import OrderLensError, RunError, UserInputError
from orderlens.figures.census import LATTICE
from orderlens.metrics.census_sets import drawn_sums
from orderlens.runs import run as running

ORDERS = ["forced-ar", "random", "random:1", "max-prob", "max-prob+top=3", "oracle-max-q"]
SAMPLES = [
    ol.Sample(f"t{i}", "the cat sat on the mat " * 2, "and the dog looked at it from afar") for i in range(3)
]
SPAN_COLUMNS = [
    "sample_id",
    "start",
    "size",
    "log_p_best",
    "log_p_worst",
    "log_p_mean",
    "log_p_mixture",
    "log_p_sd",
    "var_least",
    "best_order",
    "worst_order",
    "least_var_order",
]
RULE_COLUMNS = ["sample_id", "start", "order", "log_p", "var", "regret", "share_worse"]


def taken(**options: Any) -> Census:
    given: dict[str, Any] = {"samples": SAMPLES, "span": 6, "orders": ORDERS, **options}
    return ol.census("hmm:incoherence=0.4", **given)


def test_spans_and_rules_agree_with_the_table(tmp_path: Path) -> None:
    census = taken(out=tmp_path / "run")
    spans, rules = census.spans().to_pandas(), census.rules().to_pandas()
    assert spans.columns[:12].tolist() == SPAN_COLUMNS
    assert set(RULE_COLUMNS) <= set(rules.columns)
    table = census.table("t1")
    assert table.shape == (64, 6)
    assert table.dtype == np.float64
    revealed = (np.arange(64)[:, None] >> np.arange(6)) & 1 == 1
    assert np.isnan(table[revealed]).all()
    assert (table[~revealed] <= 0).all()
    sums = {}
    for order in itertools.permutations(range(6)):
        shown, log_q = 0, []
        for i in order:
            log_q.append(table[shown, i])
            shown |= 1 << i
        sums[order] = (np.sum(log_q), np.var(log_q))
    log_p, var = np.array(list(sums.values())).T
    row = spans.set_index("sample_id").loc["t1"]
    assert row["log_p_best"] == pytest.approx(log_p.max(), abs=1e-9)
    assert row["log_p_worst"] == pytest.approx(log_p.min(), abs=1e-9)
    assert row["log_p_mean"] == pytest.approx(log_p.mean(), abs=1e-9)
    assert row["log_p_sd"] == pytest.approx(log_p.std(), abs=1e-9)
    assert row["var_least"] == pytest.approx(var.min(), abs=1e-9)
    assert sums[tuple(row["best_order"])][0] == pytest.approx(row["log_p_best"], abs=1e-9)
    assert sums[tuple(row["least_var_order"])][1] == pytest.approx(row["var_least"], abs=1e-9)
    mine = rules[rules["sample_id"] == "t1"].set_index(["order", "seed"], drop=False)
    forced = mine.xs("forced-ar").iloc[0]
    assert (forced["log_p"], forced["var"]) == pytest.approx(sums[tuple(range(6))], abs=1e-9)
    assert forced["regret"] == pytest.approx(log_p.max() - forced["log_p"], abs=1e-9)
    assert forced["share_worse"] == pytest.approx((log_p < forced["log_p"] - 1e-9).mean(), abs=1e-12)
    assert len(mine) == len(ORDERS)


def test_a_census_is_a_run_with_ordinary_traces(tmp_path: Path) -> None:
    census = taken(out=tmp_path / "run")
    again = Census.open(tmp_path / "run")
    assert again.spans().to_arrow().equals(census.spans().to_arrow())
    assert again.rules().to_arrow().equals(census.rules().to_arrow())
    run = ol.open_run(tmp_path / "run")
    assert run.spec["kind"] == "census"
    assert (run.spec["span"], run.spec["start"]) == (6, 0)
    samples = run.samples().to_pandas()
    assert len(samples) == len(ORDERS) * len(SAMPLES)
    assert (samples["n"] == 6).all()
    rules = again.rules().to_pandas()
    by = ["sample_id", "order", "seed"]
    joined = samples.merge(rules, on=by, suffixes=("", "_rule"))
    assert len(joined) == len(samples)
    assert np.allclose(joined["log_prob"], joined["log_p"], atol=1e-9)
    assert np.allclose(joined["var"], joined["var_rule"], atol=1e-9)


def test_several_spans_of_a_text_are_traces_of_their_own(tmp_path: Path) -> None:
    census = taken(span=4, spans=3, out=tmp_path / "run")
    spans = census.spans().to_pandas()
    assert len(spans) == 9
    starts = spans.loc[spans["sample_id"] == "t0", "start"].tolist()
    assert starts[0] == 0
    assert all(b - a >= 4 for a, b in itertools.pairwise(starts))
    ids = census.run.samples().to_pandas()["sample_id"].unique().tolist()
    assert sorted(ids) == sorted(f"{t}@{s}" for t, s in census.places)
    assert census.table("t0", starts[1]).shape == (16, 4)
    assert np.array_equal(census.table("t0"), census.table("t0", 0), equal_nan=True)
    chosen = taken(span=4, start=starts[1], orders="forced-ar")
    np.testing.assert_array_equal(chosen.table("t0"), census.table("t0", starts[1]))
    with pytest.raises(UserInputError, match="has no span at 1; its spans start at 0"):
        census.table("t0", 1)
    with pytest.raises(UserInputError, match="no text 't9'"):
        census.table("t9")


def test_a_coherent_model_has_no_range_and_stores_float64(tmp_path: Path) -> None:
    census = ol.census("hmm", SAMPLES, span=8, out=tmp_path / "run")
    spans = census.spans().to_pandas()
    assert (spans["log_p_best"] - spans["log_p_worst"]).max() <= 1e-9
    assert spans["circulation"].max() <= 1e-9
    assert census.run.table("census").to_arrow()["log_p"].type == pa.list_(pa.float64())
    assert census.rules().to_pandas()["order"].unique().tolist() == ["forced-ar"]


def test_a_killed_census_resumes_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, calls = running.decode_unit, []

    def dies(spec: Any, unit: Any, *more: Any) -> Any:
        calls.append(unit)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(spec, unit, *more)

    monkeypatch.setattr(running, "decode_unit", dies)
    with pytest.raises(KeyboardInterrupt):
        taken(out=tmp_path / "run", batch_size=1)
    kept = ol.open_run(tmp_path / "run").table("census").to_arrow()
    assert kept.num_rows == 1
    census = taken(out=tmp_path / "run", batch_size=1)
    assert len(calls) == 4
    whole = taken(batch_size=1)
    assert census.table("t0").tobytes() == kept["log_p"][0].values.to_numpy().tobytes()
    for sample in SAMPLES:
        np.testing.assert_array_equal(census.table(sample.id), whole.table(sample.id))
    by = ["sample_id", "order", "seed", "step"]
    found, expected = (
        item.run.reveals().to_pandas().sort_values(by, ignore_index=True) for item in (census, whole)
    )
    assert found.equals(expected)


def test_rules_come_in_the_order_in_which_they_were_named() -> None:
    """Also in the lattice, which draws the first of them that reveals one token per step."""
    census = taken(orders=["max-prob+top=3", "random:1", "max-prob", "forced-ar", "random"])
    named = [(path.order, path.seed) for path in census.paths("t0")]
    assert named == [
        ("max-prob+top=3", None),
        ("random", 1),
        ("max-prob", None),
        ("forced-ar", None),
        ("random", 0),
    ]
    rules = census.rules().to_pandas()
    assert rules["order"][: len(named)].tolist() == [order for order, _ in named]
    assert [path["name"] for path in LATTICE.data(ol.Study(census.run))["paths"]] == [
        "best",
        "worst",
        "random",
    ]


def test_short_texts_have_shorter_spans_only_on_request() -> None:
    samples = [ol.Sample("long", [1, 2], [3, 4, 5, 6, 7]), ol.Sample("short", [1, 2], [3, 4])]
    with pytest.raises(UserInputError, match="'short': a span from 0 to 3 ends past its target of 2"):
        ol.census("hmm", samples, span=4)
    spans = ol.census("hmm", samples, span=4, allow_short=True).spans().to_pandas()
    assert spans["size"].tolist() == [4, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"span": 21}, "span=21 must be from 1 to 20"),
        ({"span": 0}, "span=0 must be at least 1"),
        ({"start": 40}, "ends past its target"),
        ({"start": -1}, "must be at least 0"),
        ({"positions": [3, 3]}, "must be different offsets"),
        ({"positions": [-1, 3]}, "must be different offsets"),
        ({"positions": [3, 60]}, "from 3 to 60 ends past its target"),
        ({"positions": list(range(21))}, "must be from 1 to 20"),
        ({"spans": 2, "start": 3}, "leave out `start`"),
        ({"positions": [1, 2], "start": 3}, "leave out `start`"),
        ({"positions": [1, 2], "generate": True}, "`generate` starts after the prompt"),
        ({"limit": 2}, "limit=2 limits the items of `task`; give fewer samples"),
        ({"spans": 50}, "has room for 5 spans of 6 positions, not 50; use fewer `spans`"),
        ({"samples": [replace(SAMPLES[0], task=task) for task in "ab"]}, "id 't0' occurs in two tasks"),
        ({"orders": "max-prob+edit=0.9"}, "a fixed text has no path"),
        ({"orders": "max-prb"}, "max-prob"),
        (
            {"span": 13},
            r"3 spans of up to 13 positions: 24,573 states, 2\.6 MB stored, 9 MB .* minutes here; add `yes`",
        ),
    ],
)
def test_what_a_census_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OrderLensError, match=message):
        taken(**options)


def test_a_large_span_starts_when_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    census = ol.census("hmm", SAMPLES[:1], span=13, yes=True)
    assert census.table("t0").shape == (8192, 13)
    assert "8,191 states" in caplog.text
    rules = census.rules().to_pandas()
    assert rules["share_worse"].tolist() == [0.0]


def test_the_time_of_a_large_census_is_that_of_its_largest_span(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = list[int]()

    def evaluated(model: Any, spans: Any, *more: Any, **options: Any) -> None:
        timed.extend(span.size for span in spans)

    monkeypatch.setattr("orderlens.runs.census.evaluate_spans", evaluated)
    texts = [ol.Sample("short", [1, 2], [3, 4]), SAMPLES[0]]
    with pytest.raises(UserInputError, match="up to 13 positions: 8,194 states"):
        ol.census("hmm", texts, span=13, allow_short=True)
    assert set(timed) == {13}


def test_a_unit_of_a_fast_model_holds_few_large_spans(tmp_path: Path) -> None:
    texts = [ol.Sample(f"t{i}", [1, 2], [3, 4] * 6) for i in range(20)]
    census = ol.census("hmm", texts, span=12, out=tmp_path / "run")
    held = [len(json.loads(path.read_text())["samples"]) for path in (tmp_path / "run/units").iterdir()]
    assert sorted(held) == [4, 16]
    assert len(census.places) == 20


def test_a_mask_token_in_the_text_is_refused() -> None:
    mask = ol.load_model("hmm").mask_id
    with pytest.raises(OrderLensError, match="mask"):
        ol.census("hmm", [ol.Sample("t", [1], [2, mask, 3])], span=3)


def test_censuses_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        taken(span=3, out=tmp_path / name)
    with pytest.raises(RunError, match="reads one run, not a, b; open one of them"):
        Census.open(tmp_path)


def test_runs_that_share_spans_or_texts_do_not_count_them_twice(tmp_path: Path) -> None:
    for name, options in {
        "one": {},
        "copy": {"orders": ["forced-ar", "entropy"]},
        "later": {"start": 6},
    }.items():
        taken(out=tmp_path / name, **{"span": 3, "orders": ["forced-ar"], **options})
    alone = census_frames(ol.Study.open(tmp_path / "one"))
    both = census_frames(ol.Study.open([tmp_path / "one", tmp_path / "copy"]))
    assert both.spans["log_p_best"].tolist() == alone.spans["log_p_best"].tolist()
    assert len(both.circulation) == len(alone.circulation)
    assert both.rules.groupby("order").size().to_dict() == {"forced-ar": 3, "entropy": 3}
    more = census_frames(ol.Study.open([tmp_path / "one", tmp_path / "later"]))
    assert len(more.spans) == 6
    assert more.rules["text"].nunique() == 3


def test_random_orders_of_a_large_span_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, sizes = taken(span=9, orders=["forced-ar"]).run, list[int]()

    def drawn(flat: Any, size: int, *more: Any) -> Any:
        sizes.append(size)
        return drawn_sums(flat, size, *more)

    monkeypatch.setattr("orderlens.metrics.census.drawn_sums", drawn)
    census_frames(ol.Study(run))
    assert sizes == [9] * len(SAMPLES)


def test_a_run_without_a_census_says_so() -> None:
    with pytest.raises(RunError, match="holds no census"):
        Census(ol.score("hmm", SAMPLES, "forced-ar"))


def test_the_command_prints_where_rules_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "census",
        "--model",
        "hmm:incoherence=0.3",
        "--limit",
        "2",
        "--span",
        "5",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*words, "--orders", "forced-ar,random:2"]) == 0
    shown = capsys.readouterr().out
    assert "above the mean order" in shown
    assert "next: orderlens view" in shown
    assert "Var that no order exceeds" in shown
    assert main([*words, "--orders", "forced-ar,random:2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rules, spans, _ = (table["rows"] for table in found["tables"])
    assert [row["order"] for row in rules] == ["forced-ar", "random"]
    values = {row["quantity"]: row["value"]["value"] for row in spans}
    assert values["greatest Var that was found (nats²)"] == values["Var that no order exceeds (nats²)"]
    assert values["best log recoverability at σ = 0.5 (nats)"] < 0
    assert main([*words[:-1], str(tmp_path / "other"), "--positions", "x"]) == 2
    assert "'x'" in capsys.readouterr().err


def test_circulation_by_group_is_the_mean_over_all_its_squares() -> None:
    census = taken(samples=SAMPLES[:1], span=5)
    table, groups = census.table("t0"), dict[str, list[float]]()
    for (i, j), shown in itertools.product(itertools.combinations(range(5), 2), range(32)):
        if not (shown >> i | shown >> j) & 1:
            gamma = table[shown, i] + table[shown | 1 << i, j] - table[shown, j] - table[shown | 1 << j, i]
            for group in (f"distance {j - i}", f"revealed {shown.bit_count()}"):
                groups.setdefault(group, []).append(abs(gamma))
    rows = ol.Study(census.run).tables(["census"])[2].rows
    assert len(rows) == len(groups)
    for row in rows:
        assert row["value"].value == pytest.approx(np.mean(groups[row["group"]]), abs=1e-9)


def test_chosen_positions_need_not_be_adjacent(tmp_path: Path) -> None:
    census = taken(positions=[9, 2, 4], out=tmp_path / "run")
    spans = census.spans().to_pandas()
    assert spans["positions"].map(list).tolist() == [[2, 4, 9]] * 3
    assert (spans["start"] == 2).all()
    assert census.run.spec["positions"] == [2, 4, 9]
    table, rules = census.table("t1"), census.rules().to_pandas().set_index(["sample_id", "order"])
    assert rules.loc[("t1", "forced-ar"), "log_p"] == pytest.approx(
        table[0, 0] + table[1, 1] + table[3, 2], abs=1e-9
    )
    rows = ol.Study(census.run).tables(["census"])[2].rows
    assert [row["group"] for row in rows[:3]] == ["distance 2", "distance 5", "distance 7"]
    run = ol.open_run(tmp_path / "run")
    first = run.reveals().to_pandas().query("sample_id == 't1' and order == 'forced-ar'")["position"]
    assert (first - first.min()).tolist() == [0, 2, 7]
    assert {trace.standing.n_orders for trace in run.sample("t1").traces if trace.standing} == {6}
