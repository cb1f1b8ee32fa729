"""From folders to tables: the same prompt across runs, models side by side, stored scores always used."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import orderlens as ol
from orderlens.analysis import Estimate, Options, Resampling, Study
from orderlens.analysis.identity import Setup, differences, labels
from orderlens.analysis.table import table
from orderlens.errors import UserInputError
from orderlens.figures.catalogue import draw_figures
from orderlens.models.hmm import HiddenMarkovModel
from orderlens.store.reader import Run, memory_run

QUICK = Options(resampling=Resampling(5))
TEXTS = [ol.Sample(f"s{i}", [1 + i, 2, 3], [5, 6 + i, 7, 8, 9, 10, 11, 12]) for i in range(4)]


def score(out, orders=("forced-ar", "random"), model="hmm", samples=TEXTS, **options):
    ol.score(ol.load_model(model), samples, orders=list(orders), out=out, **options)
    return out


def test_orders_spread_over_two_runs_pair_as_in_one(tmp_path):
    incoherent = HiddenMarkovModel(seed=0, incoherence=0.5)
    both = ("forced-ar", "random", "reverse-ar")
    ol.score(incoherent, TEXTS, orders=list(both), out=tmp_path / "whole")
    for place, orders in (("a", both[:2]), ("b", both[2:])):
        ol.score(incoherent, TEXTS, orders=list(orders), out=tmp_path / place)
    whole = Study.open(tmp_path / "whole", QUICK)
    parts = Study.open([tmp_path / "a", tmp_path / "b"], QUICK)
    for name in ("coherence", "fixed-sequence"):
        mine, theirs = (study.table(name).to_pandas() for study in (parts, whole))
        pd.testing.assert_frame_equal(mine, theirs)
    assert parts.table("coherence").cell("value", statistic="mean_of_ranges", scope="deployable").value > 0.01
    from orderlens.figures import fixed_sequence

    assert fixed_sequence.coherence_data(parts)["gaps"] == fixed_sequence.coherence_data(whole)["gaps"]


def test_opened_runs_and_paths_are_read_together(tmp_path):
    run = ol.score(ol.load_model("hmm"), TEXTS, orders=["forced-ar"])
    other = score(tmp_path / "b", ["random"])
    alone, both = Study.open(run, QUICK), Study.open([run, other], QUICK)
    assert alone.run is run
    assert alone.samples["order"].unique().tolist() == ["forced-ar"]
    assert sorted(both.samples["order"].unique()) == ["forced-ar", "random"]
    assert both.samples["prompt"].nunique() == len(TEXTS)
    assert Study.open(str(other), QUICK).samples["order"].unique().tolist() == ["random"]


def test_one_id_for_two_texts_is_named_and_never_merged(tmp_path):
    other = [ol.Sample(item.id, [9, 9], item.target) for item in TEXTS]
    places = [score(tmp_path / "a", ["forced-ar"]), score(tmp_path / "b", ["random"], samples=other)]
    study = Study.open(places, QUICK)
    assert study.samples["prompt"].nunique() == 8
    table = study.table("coherence")
    assert "Sample 's0' and 3 more" in table.notes[-1]
    cell = table.cell("value", statistic="range_of_means", scope="deployable")
    assert cell.why == "no sequence was scored under every order"


def test_a_trace_in_two_runs_counts_once(tmp_path):
    study = Study.open([score(tmp_path / "a"), score(tmp_path / "b", ["forced-ar"])], QUICK)
    table = study.table("fixed-sequence")
    assert table.cell("n", order="forced-ar") == 4
    assert "4 traces are stored in more than one run" in table.notes[-1]
    assert len(study.all_traces) == 12


def test_two_runs_with_different_traces_of_one_prompt_are_refused(tmp_path, builders):
    one, two = (
        memory_run({"reveals": builders.trace("s", "forced-ar", [-1.0, value])}, {"model": "made up"})
        for value in (-1.0, -2.0)
    )
    with pytest.raises(UserInputError, match="hold different traces of sample 's' under order 'forced-ar'"):
        Study(Run([*one._sources.values(), *two._sources.values()])).table("fixed-sequence")


CHANGES = {
    "models": ({"model": "hmm"}, {"model": "hmm:seed=7"}, ["hmm", "hmm:seed=7"]),
    "block sizes": ({"block_size": 4}, {"block_size": 8}, ["hmm:block=4", "hmm:block=8"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_models_and_block_sizes_get_rows_of_their_own(change, tmp_path):
    first, second, wanted = CHANGES[change]
    places = [score(tmp_path / "a", **first), score(tmp_path / "b", **second)]
    study = Study.open(places, QUICK)
    table = study.table("fixed-sequence")
    assert table.keys == ("model", "order")
    assert list(dict.fromkeys(row["model"] for row in table.rows)) == wanted
    for place, model in zip(places, wanted, strict=True):
        alone = Study.open(place, QUICK).table("fixed-sequence").cell("mean", order="random")
        assert table.cell("mean", model=model, order="random") == alone
    with pytest.raises(UserInputError, match=r"the runs differ in .*; give runs of one model at a time"):
        study.one_setup()


def with_digest(run, digest):
    spec = {**run.spec, "model": {**run.spec["model"], "digest": digest}}
    return memory_run({name: run.table(name).to_arrow() for name in run.tables}, spec)._sources.values()


def test_two_weights_of_one_name_are_told_apart(tmp_path):
    run = ol.score(ol.load_model("hmm"), TEXTS, orders=["forced-ar"])
    study = Study(Run([*with_digest(run, "aaaa"), *with_digest(run, "bbbb")]), QUICK)
    rows = study.table("fixed-sequence").rows
    assert [row["model"] for row in rows] == ["hmm, weights aaaa", "hmm, weights bbbb"]
    drawn = draw_figures(study, tmp_path, ["fixed-sequence"], ["svg"])
    assert [item.name for item in drawn] == [
        "fixed-sequence-hmm-weights-aaaa",
        "fixed-sequence-hmm-weights-bbbb",
    ]
    assert all(item.paths for item in drawn)


def test_setups_are_named_by_what_tells_them_apart():
    a, b, c = Setup("m", 32, "float32", "x"), Setup("m", 32, "bfloat16", "x"), Setup("n", 32, "float32", "y")
    assert list(labels([a, b, c, a]).values()) == ["m, precision float32", "m, precision bfloat16", "n"]
    assert list(labels([a, c]).values()) == ["m", "n"]
    assert list(labels([a, Setup("m", 16, "float32", "x")]).values()) == [
        "m, block size 32",
        "m, block size 16",
    ]
    assert differences([a, b]) == "precision (float32, bfloat16)"
    assert Setup("m").fits(a)
    assert not Setup("m", digest="z").fits(a)


def test_matrix_tables_of_two_models_are_joined(tmp_path):
    for model in ("hmm", "hmm:seed=7"):
        orders = ["forced-ar"] if model == "hmm" else ["forced-ar", "max-prob"]
        ol.generate(ol.load_model(model), TEXTS, orders=orders, max_new_tokens=8, out=tmp_path / model[-1])
    found = Study.open(tmp_path, QUICK).tables(["generation", "reveal-order"])
    generation = found[0]
    assert [column.name for column in generation.columns] == ["meaning", "forced-ar", "max-prob"]
    assert generation.cell("max-prob", model="hmm", metric="var") is None
    assert isinstance(generation.cell("max-prob", model="hmm:seed=7", metric="var"), Estimate)
    assert [table.name for table in found] == ["generation", "reveal-order", "agreement"]


def external(names, texts, score=-2.0):
    from orderlens.analysis.external import pair_key, pairs_of

    rows = [(name, pair_key(pair)) for name in names for text in texts for pair in pairs_of(*text)]
    columns = {"evaluator": [row[0] for row in rows], "text_key": [row[1] for row in rows]}
    return pa.table(columns | {"logprobs": [[score, score]] * len(rows)})


@pytest.fixture
def written():
    run = ol.generate(ol.load_model("hmm"), TEXTS, orders=["forced-ar", "random"], max_new_tokens=8)
    outputs = run.outputs().to_arrow()
    pairs = zip(outputs["prompt_text"].to_pylist(), outputs["text"].to_pylist(), strict=True)
    return run, sorted({pair for pair in pairs if pair[1]})


def beside(run, table):
    found = memory_run({"external": table}, {"kind": "external"})
    return Run([*run._sources.values(), *found._sources.values()])


def test_stored_scores_are_used_without_being_asked_for(written):
    run, texts = written
    table = Study(beside(run, external(["letters"], texts)), QUICK).table("generation")
    assert table.cell("forced-ar", metric="external_ppl").value == pytest.approx(math.exp(2.0))
    assert "(letters)" in table.cell("meaning", metric="external_ppl")


def test_texts_that_were_not_scored_are_counted(written):
    run, texts = written
    table = Study(beside(run, external(["letters"], texts[:1])), QUICK).table("generation")
    cells = [table.cell(order, metric="external_ppl") for order in ("forced-ar", "random")]
    assert sum(cell.n_undefined for cell in cells) >= len(texts) - 1


def test_two_evaluators_are_never_mixed(written):
    run, texts = written
    both = pa.concat_tables([external(["letters"], texts), external(["words"], texts, -1.0)])
    table = Study(beside(run, both), QUICK).table("generation")
    cell = table.cell("forced-ar", metric="external_ppl")
    assert cell.why == "scores of letters and words are stored: choose one with --evaluator"
    chosen = Study(beside(run, both), Options(Resampling(5), evaluator="words")).table("generation")
    assert chosen.cell("forced-ar", metric="external_ppl").value == pytest.approx(math.exp(1.0))


def test_statistics_are_computed_when_asked_for(tmp_path):
    study = Study.open(score(tmp_path / "a"), QUICK)
    study.table("fixed-sequence")
    assert study._computed == ()
    study.table("theory")
    assert study._computed == ("jensen",)
    assert {"distinct_3", "jensen_0.5", "frontier_distance"} <= set(study.samples.columns)
    assert np.isfinite(study.samples["jensen_0.5"]).all()


def test_no_run_is_bad_input():
    with pytest.raises(UserInputError, match="no run given"):
        ol.Study.open([])


def test_policies_that_commit_sets_say_nothing_about_the_chain_rule(tmp_path):
    """On the exact control sets give another sum than the orders, and the chain rule still holds."""
    samples = [ol.Sample(f"s{i}", [1, 2, 3], [(7 * i + k) % 20 for k in range(24)]) for i in range(8)]
    policies = ["forced-ar", "reverse-ar", "forced-ar+top=4", "random:1+top=2", "random:2+top=2"]
    ol.score("hmm:block=8", samples, policies, out=tmp_path / "run")
    study = Study.open(tmp_path / "run")
    assert set(study.one_token_per_pass["order"]) == {"forced-ar", "reverse-ar"}
    table = study.table("coherence")
    note = "Left out, since they reveal several tokens per pass: forced-ar+top=4, random+top=2."
    assert note in table.notes
    (row,) = (r for r in table.rows if r["statistic"] == "observed_range" and r["scope"] == "deployable")
    assert row["value"].value < 1e-9
    assert row["n_orders"] == 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda study: 3, "returned int, not a Table"),
        (lambda study: ["x"], "returned list, not a Table"),
        (lambda study: study.estimates(study.samples, ["eos_cascade"]), r"no column 'eos_cascade'.*needs="),
        (lambda study: study.estimates(study.samples, ["meen"]), "'meen'; did you mean 'mean'"),
    ],
)
def test_what_the_author_of_a_table_may_have_forgotten(builders, build, said):
    run = builders.make_run([builders.trace("a", "max-prob", [-1.0, -2.0])])
    with pytest.raises(UserInputError, match=said):
        table("a summary")(build)(Study(run, QUICK))


def test_tables_of_one_temperature_name_it_if_there_are_others(builders):
    def noted(temperatures):
        traces = [builders.trace("s", "max-prob", [-1.0, -2.0], temperature=t) for t in temperatures]
        tables = Study(builders.make_run(traces), builders.QUICK).tables(["content", "temperature"])
        return {table.name for table in tables if any("also present: 0.5" in n for n in table.notes)}

    assert noted([0.0, 0.5]) == {"content"}
    assert noted([0.5]) == set()
