"""A replication end to end on the control: everything is written, resumed, and never computed twice."""

from __future__ import annotations

import json

import pytest

from orderlens.analysis import Study, as_json
from orderlens.claims.checks import OPEN, OUTCOMES
from orderlens.claims.judge import judge
from orderlens.common.plaintext import plain
from orderlens.errors import RunError
from orderlens.figures.catalogue import figure_names
from orderlens.models.loading import load_model
from orderlens.store.reader import open_run
from orderlens.studies.replicate import run_plan
from orderlens.studies.results import TABLES_OF, build, replication_findings, views_of
from orderlens.studies.runner import decode


def rows_of(folder, name):
    return open_run(folder / "runs" / name).reveals().to_arrow()


def test_every_stage_left_what_it_should(replication):
    folder = replication.folder
    runs = {path.name for path in (folder / "runs").iterdir()}
    assert {"score", "measure", "generate", "questions", "sweep"} <= runs
    assert all(open_run(folder / "runs" / name).is_complete for name in runs)
    assert rows_of(folder, "score").num_rows == 8 * 7 * 32
    assert rows_of(folder, "generate").num_rows == 8 * 4 * 32
    assert rows_of(folder, "questions").num_rows >= 6 * 4 * 32
    assert rows_of(folder, "parallel").num_rows == rows_of(folder, "questions").num_rows // 2
    assert rows_of(folder, "sweep").num_rows == 8 * 5 * 2 * 32
    assert sorted(open_run(folder / "runs" / "measure").tables) == ["circulation", "noise"]


def test_eos_does_not_stop_a_text(replication):
    outputs = open_run(replication.folder / "runs" / "generate").outputs().to_arrow().to_pylist()
    assert {len(row["token_ids"]) for row in outputs} == {32}


def test_tables_come_in_all_formats_with_the_papers_values(replication):
    folder = replication.folder / "tables"
    names = {table.name for table in replication.tables}
    assert {"fixed-sequence", "coherence", "generation", "reveal-order", "temperature", "theory"} <= names
    for name in names:
        assert {path.suffix for path in folder.glob(f"{name}.*")} == {".txt", ".csv", ".tex", ".json"}
    table = json.loads((folder / "generation.json").read_text())
    row = next(row for row in table["rows"] if row["metric"] == "var")
    assert row["forced-ar"]["paper"] == 0.392


@pytest.mark.parametrize("kind", TABLES_OF)
def test_tables_are_those_of_analyze_on_the_same_runs(replication, kind):
    runs = replication.folder / "runs"
    places = {
        "score": ("score", "measure"),
        "generate": ("generate",),
        "sweep": ("generate", "sweep"),
    }[kind]
    external = sorted(runs.glob("external-*"))
    study = Study.open([*(runs / name for name in places), *external])
    mine = {table.name: table for table in replication.tables}
    for name in TABLES_OF[kind]:
        for table in study.tables([name]):
            ours, theirs = (plain(as_json(item)["rows"]) for item in (mine[table.name], table))
            assert ours == theirs


def test_figures_and_findings_are_there(replication):
    results = replication
    wanted = figure_names(["score", "generate", "ending", "sweep"])
    assert [item.name for item in results.figures] == wanted
    for item in results.figures:
        assert item.why is None
        assert [path.suffix for path in item.paths] == [".svg", ".png", ".json"]
    stored = json.loads((results.folder / "findings.json").read_text())
    assert [item["id"] for item in stored["findings"]] == [item.id for item in results.reading.findings]
    assert {item["outcome"] for item in stored["findings"]} <= set(OUTCOMES)
    assert stored["n_checks"] == results.reading.n_checks > 0
    written = (results.folder / "findings.txt").read_text()
    assert f"{stored['n_checks']} checks were made" in written
    assert "Holm" in written


def test_the_broken_control_is_found_out(replication):
    words = {item.id: item.outcome for item in replication.reading.findings}
    assert words["chain-rule-per-text"] == "supported"


def test_the_data_are_recorded(replication):
    record = json.loads((replication.folder / "plan.json").read_text())
    assert record["data"]["source"] == "passages"
    assert record["data"]["by_hash"] is True
    assert record["data"]["prefix_tokens"] == 32
    spec = open_run(replication.folder / "runs" / "score").spec
    assert spec["data"]["digest"]
    assert record["model"]["digest"] == load_model("hmm:incoherence=0.5").digest


def test_a_second_call_computes_nothing(replication, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a committed stage was computed again")

    monkeypatch.setattr("orderlens.runs.compute.score_batch", refuse)
    monkeypatch.setattr("orderlens.runs.compute.generate_batch", refuse)
    again = decode(replication.plan, replication.folder)
    assert again.plan == replication.plan
    assert again.notes == replication.notes


def test_another_plan_is_refused(replication, small_plan):
    with pytest.raises(RunError, match="another seed"):
        run_plan(small_plan(seed=1), replication.folder)


def test_fewer_texts_than_wanted_and_no_sweep(tmp_path, small_plan):
    texts = [
        {"id": str(i), "text": "a quiet morning in the harbour " * (4 if i < 3 else 1)} for i in range(6)
    ]
    data = tmp_path / "few.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in texts))
    plan = small_plan(
        data=str(data), temperatures=(), n_texts=6, questions=0, score_orders=("forced-ar", "random:0")
    )
    traces = decode(plan, tmp_path / "out")
    assert "3 of 6 requested texts" in traces.notes[0]
    assert "left out: 3 too short (fewer than" in traces.notes[1]
    assert not (tmp_path / "out" / "runs" / "sweep").exists()
    studies = views_of(Study.open(tmp_path / "out"))
    tables = build(studies)
    assert "temperature" not in {table.name for table in tables}
    reading = judge(replication_findings(studies))
    assert {item.outcome for item in reading.findings} == {OPEN}
    assert "3 of at least 6 texts" in reading.findings[1].sentence()


def test_targets_given_as_text_are_taken_whole(tmp_path, small_plan):
    rows = [{"id": str(i), "prompt": "a quiet morning ", "target": "in the harbour " * 12} for i in range(2)]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = small_plan(data=str(data), temperatures=(), questions=0, score_orders=("forced-ar",))
    decode(plan, tmp_path / "out", stages=("score",))
    n_target = len(load_model(plan.model).tokenizer.encode(rows[0]["target"]))
    assert n_target > plan.target_tokens
    assert rows_of(tmp_path / "out", "score").num_rows == 2 * n_target
