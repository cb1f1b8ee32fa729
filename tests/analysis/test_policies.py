"""The tables policies and couplings: values by a slower way, kinds of likelihood, undefined cells."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import orderlens as ol
from orderlens.analysis import Options, Resampling, Study
from orderlens.analysis.tables_policies import TextBits
from orderlens.analysis.traces import all_passes
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.passes import pass_variance
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.testing import make_run, make_trace

QUICK = Options(resampling=Resampling(reps=60))
POLICIES = [
    "forced-ar",
    "max-prob",
    "forced-ar+top=4",
    "max-prob+top=4",
    *(f"random:{k}+top=4" for k in range(3)),
    "oracle-max-q+top=2",
]


@pytest.fixture(scope="module")
def run() -> ol.Run:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=8)
    written = ol.generate(
        model, [ol.Sample(str(i), "") for i in range(8)], "forced-ar", max_new_tokens=24, temperature=1
    )
    rows = written.outputs().to_arrow().to_pylist()
    samples = [ol.Sample(row["sample_id"], row["token_ids"][:2], row["token_ids"][2:]) for row in rows]
    return ol.score(model, samples, POLICIES, couplings=99)


@pytest.fixture(scope="module")
def study(run: ol.Run) -> Study:
    return Study(run, QUICK)


@pytest.fixture(scope="module")
def tables(study: Study) -> dict:
    return {table.name: table for table in study.tables(["policies", "couplings"])}


def test_bits_per_byte_are_all_bits_over_all_bytes(run: ol.Run, tables: dict) -> None:
    frame = run.samples().to_pandas()
    texts = run.outputs().to_pandas().set_index(["order", "sample_id"])["text"]
    part = frame[frame["order"] == "forced-ar+top=4"]
    n_bytes = sum(len(texts["forced-ar+top=4", name].encode()) for name in part["sample_id"])
    cell = tables["policies"].cell("bits_per_byte", order="forced-ar+top=4")
    assert cell.value == pytest.approx(-part["log_prob"].sum() / math.log(2) / n_bytes)
    assert cell.low < cell.value < cell.high


def test_kinds_of_likelihood_are_marked(tables: dict) -> None:
    kinds = {row["order"]: row["likelihood"] for row in tables["policies"].rows}
    assert kinds == {
        "forced-ar": "exact",
        "forced-ar+top=4": "exact",
        "max-prob": "exact",
        "max-prob+top=4": "exact",
        "random+top=4": "estimate",
        "oracle-max-q+top=2": "none",
    }
    aware = tables["policies"].cell("bits_per_byte", order="oracle-max-q+top=2")
    assert not aware.is_defined
    assert "sees the target" in aware.why


def test_a_randomised_policy_averages_probabilities_over_seeds(run: ol.Run, tables: dict) -> None:
    frame = run.samples().to_pandas()
    texts = run.outputs().to_pandas().drop_duplicates("sample_id").set_index("sample_id")["text"]
    wide = frame[frame["order"] == "random+top=4"].pivot_table(
        index="sample_id", columns="seed", values="log_prob"
    )
    mean_p = np.log(np.exp(wide.to_numpy()).mean(axis=1))
    n_bytes = sum(len(texts[name].encode()) for name in wide.index)
    row = next(row for row in tables["policies"].rows if row["order"] == "random+top=4")
    assert row["seeds"] == 3
    assert row["bits_per_byte"].value == pytest.approx(-mean_p.sum() / math.log(2) / n_bytes)
    assert row["over_seeds"].value == pytest.approx(row["bits_per_byte"].value)
    assert row["over_seeds"].low < row["over_seeds"].value < row["over_seeds"].high
    assert next(row for row in tables["policies"].rows if row["order"] == "max-prob")["over_seeds"] is None


def test_the_jackknife_over_seeds_by_hand() -> None:
    """Two seeds with P = ½ and ¼ on one text of one byte: 1 and 2 bits when one is left out."""
    bits = TextBits("estimate", np.log([[0.5, 0.25]]), np.array([1.0]), ["a"])
    found = bits.over_seeds(0.95)
    assert found.value == pytest.approx(-math.log2(0.375))
    error = math.sqrt(0.5 * 2 * 0.5**2)
    assert found.high - found.value == pytest.approx(12.7062 * error, rel=1e-4)
    assert "one seed" in TextBits("estimate", np.log([[0.5]]), np.array([1.0]), ["a"]).over_seeds(0.95).why
    assert "nothing is drawn" in TextBits("exact", np.log([[0.5]]), np.ones(1), ["a"]).over_seeds(0.95).why


def test_more_seeds_never_cost_bits(run: ol.Run) -> None:
    """log mean P ≥ mean log P on every text."""
    frame = run.samples().to_pandas().assign(n_bytes=1.0, prompt=lambda f: f["sample_id"])
    bits = TextBits.of(frame[frame["order"] == "random+top=4"])
    assert (bits.bits() <= -bits.log_prob_TK.mean(axis=1) / math.log(2) + 1e-12).all()


def test_pace_and_deviation(run: ol.Run, tables: dict) -> None:
    frame = run.samples().to_pandas()
    part = frame[frame["order"] == "max-prob+top=4"]
    table = tables["policies"]
    fast = table.cell("tokens_per_pass", order="max-prob+top=4")
    slow = table.cell("passes_per_token", order="max-prob+top=4")
    assert fast.value == pytest.approx(part["n"].sum() / part["n_passes"].sum())
    assert fast.value * slow.value == pytest.approx(1.0)
    wide = frame.pivot_table(index="sample_id", columns="order", values="mean")
    gap = table.cell("deviation", order="max-prob+top=4")
    assert gap.value == pytest.approx((wide["max-prob+top=4"] - wide["forced-ar"]).mean())
    assert table.cell("deviation", order="forced-ar") is None
    assert table.cell("lookahead", order="max-prob").value == 0.0


def test_deviation_between_policies_is_nothing_one_by_one_on_a_joint(tables: dict) -> None:
    table = tables["policies-deviation"]
    assert table.cell("range", scope="one token per pass").value == pytest.approx(0, abs=1e-12)
    assert table.cell("n_policies", scope="all with a likelihood") == 5
    assert table.cell("range", scope="several tokens per pass").value > 1e-4


def test_the_loss_of_a_joint_is_all_coupling(tables: dict) -> None:
    for row in tables["couplings-loss"].rows:
        assert row["of_order"].value == pytest.approx(0, abs=1e-9)
        assert row["loss"].value == pytest.approx(row["of_coupling"].value, abs=1e-9)
    assert tables["couplings-loss"].cell("loss", order="forced-ar+top=4").value > 0.01


def test_couplings_by_policy(run: ol.Run, tables: dict) -> None:
    frame = run.table("couplings").to_pandas()
    part = frame[(frame["order"] == "forced-ar+top=4")]
    sets = part.groupby(["sample_id", "forward"]).agg(c=("coupling", "mean"), k=("size", "first"))
    row = next(row for row in tables["couplings"].rows if row["order"] == "forced-ar+top=4")
    assert row["n_sets"] == len(sets)
    assert row["coupling"].value == pytest.approx(sets["c"].mean())
    assert row["per_token"].value == pytest.approx(sets["c"].sum() / sets["k"].sum())
    assert row["exact"].value == pytest.approx(row["coupling"].value, abs=1e-9)
    assert row["incoherence"].value < 1e-9
    assert "forced-ar" not in {row["order"] for row in tables["couplings"].rows}


def test_groups_cover_every_set_once_by_size_and_once_by_gap(tables: dict) -> None:
    total = sum(row["n_sets"] for row in tables["couplings"].rows)
    for start in ("tokens", "closest"):
        rows = [row for row in tables["couplings-groups"].rows if row["group"].startswith(start)]
        assert sum(row["n_sets"] for row in rows) == total


def test_parts_of_var_equal_those_of_the_traces(run: ol.Run, tables: dict) -> None:
    """The table works from sums; here every trace is put together again."""
    reveals, frame = run.reveals().to_pandas(), run.table("couplings").to_pandas()
    found = []
    for name, rows in reveals[reveals["order"] == "max-prob+top=4"].groupby("sample_id"):
        z = rows["logq"].to_numpy().copy()
        own = frame[
            (frame["order"] == "max-prob+top=4") & (frame["sample_id"] == name) & (frame["path"] == 0)
        ]
        for measured in own.itertuples():
            z[rows["forward"].to_numpy() == measured.forward] = measured.sequential
        found.append(pass_variance(rows["logq"], rows["forward"], z))
    row = next(row for row in tables["pass-variance"].rows if row["order"] == "max-prob+top=4")
    for name in ("between", "inside", "coupling_between", "coupling_inside"):
        assert row[name].value == pytest.approx(np.mean([getattr(item, name) for item in found]), abs=1e-9)
    assert row["var_one_token_per_pass"].value == pytest.approx(
        np.mean([x.sequential_var for x in found]), abs=1e-9
    )


def test_one_path_has_one_var_one_by_one(tables: dict) -> None:
    """With the coupling added, left to right in sets of four equals left to right with one token per pass."""
    found = tables["pass-variance"]
    alone = found.cell("var_one_token_per_pass", order="forced-ar")
    assert found.cell("var_one_token_per_pass", order="forced-ar+top=4").value == pytest.approx(
        alone.value, abs=1e-9
    )
    assert found.cell("var", order="forced-ar+top=4").value < alone.value - 0.01


def test_some_sets_give_a_loss_but_no_parts_of_var(run: ol.Run) -> None:
    model = HiddenMarkovModel(n_states=5, n_characters=6, block_size=8)
    rows = run.outputs().to_pandas().drop_duplicates("sample_id").to_dict("records")
    samples = [
        ol.Sample(row["sample_id"], [int(t) for t in row["prompt_ids"]], [int(t) for t in row["token_ids"]])
        for row in rows
    ]
    few = ol.score(model, samples, ["forced-ar", "forced-ar+top=4"], couplings=2)
    tables = {table.name: table for table in Study(few, QUICK).tables(["couplings"])}
    loss = next(row for row in tables["couplings-loss"].rows if row["order"] == "forced-ar+top=4")
    assert loss["of_coupling"].value + loss["of_order"].value == pytest.approx(loss["loss"].value)
    whole = Study(run, QUICK).tables(["couplings"])[2].cell("of_coupling", order="forced-ar+top=4")
    assert loss["of_coupling"].value == pytest.approx(whole.value, abs=4 * (whole.high - whole.low))
    cell = tables["pass-variance"].cell("between", order="forced-ar+top=4")
    assert cell.why == "not every set of a trace was measured: raise --couplings"


def test_without_couplings_the_tables_say_so() -> None:
    run = ol.score("hmm", [ol.Sample("a", "hel", "lo there")], ["forced-ar", "forced-ar+top=4"])
    study = Study(run, QUICK)
    assert "couplings" not in study.suited()
    assert "policies" in study.suited()
    tables = {table.name: table for table in study.tables(["couplings"])}
    assert "--couplings" in tables["couplings"].rows[0]["coupling"].why
    cells = [tables["couplings-loss"].cell(name, order="forced-ar+top=4") for name in ("loss", "of_order")]
    assert cells[0].is_defined
    assert "--couplings" in cells[1].why


def test_generated_runs_have_passes_but_no_bits() -> None:
    run = ol.generate("hmm", ["one", "two"], ["max-prob", "max-prob+top=4"], max_new_tokens=16)
    table = Study(run, QUICK).table("policies")
    assert table.cell("tokens_per_pass", order="max-prob+top=4").value == 29 / 8  # the block is completed
    assert table.cell("bits_per_byte", order="max-prob").why == "generated: nothing was scored"


def test_look_ahead_and_revising_passes_count() -> None:
    """Look-ahead passes are added; a revision after the last reveal makes the trace longer."""
    traces = [make_trace(name, "max-prob", [-1.0] * 4, forward=[0, 0, 1, 1]) for name in ("a", "b")]
    change = {"event": "edit", "position": 1, "old_token": 1, "new_token": 2, "logq": -1.0, "old_logq": -2.0}
    run = make_run(traces, revisions=[{"sample_id": "b", "order": "max-prob", "forward": 4} | change])
    frame = Study(run, QUICK).samples
    assert frame["n_passes"].tolist() == [2, 5]
    assert all_passes(frame.assign(n_passes_lookahead=[0, 3])).tolist() == [2, 8]


def test_every_undefined_cell_says_why(tables: dict) -> None:
    cells = itertools.chain.from_iterable(row.values() for table in tables.values() for row in table.rows)
    empty = [cell for cell in cells if isinstance(cell, Estimate) and not cell.is_defined]
    assert empty
    assert all(cell.why for cell in empty)


def test_an_order_that_looks_ahead_pays_for_it() -> None:
    samples = [ol.Sample("a", "hello", " there she is")]
    run = ol.score("hmm:block=8", samples, ["max-prob", "info-gain"])
    table = Study(run, QUICK).table("policies")
    looking = next(row for row in table.rows if row["order"].startswith("lookahead-gain"))
    tried = int(run.samples().to_pandas().set_index("order").loc[looking["order"], "n_passes_lookahead"])
    assert tried > 0
    assert looking["lookahead"].value == tried
    assert looking["tokens_per_pass"].value < table.cell("tokens_per_pass", order="max-prob").value
