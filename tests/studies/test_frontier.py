"""A frontier on ``hmm``: parts into runs, nothing computed twice, results without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.analysis import Resampling
from orderlens.cli.main import main
from orderlens.errors import OrderLensError
from orderlens.studies.frontier_plan import FrontierPlan
from orderlens.studies.results import frontier_results
from orderlens.studies.runner import decode

POLICIES = (
    "max-prob",
    "max-prob+top=2",
    "max-prob+top=4",
    "max-prob+spaced=4",
    "max-prob+threshold=0.9+edit=0.9",
    "oracle-max-q+top=4",
)
PLAN = FrontierPlan(
    model="hmm", policies=POLICIES, n_texts=8, prefix_tokens=4, target_tokens=16, couplings=99
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("frontier") / "run"
    decode(PLAN, place, ["likelihood"])
    done = decode(PLAN, place, ["text"])
    assert list(done.seconds) == ["text"]
    return place


def test_every_part_has_the_policies_that_fit_it(folder: Path) -> None:
    scored, made = ol.open_run(folder / "runs" / "score"), ol.open_run(folder / "runs" / "generate")
    assert set(scored.spec["orders"]) == set(POLICIES) - {"max-prob+threshold=0.9+edit=0.9"}
    assert set(made.spec["orders"]) == set(POLICIES) - {"oracle-max-q+top=4"}
    assert scored.spec["couplings"] == 99
    ids = [set(run.outputs().to_pandas()["sample_id"]) for run in (scored, made)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 8


def test_what_is_there_is_not_computed_again(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    done = decode(PLAN, folder, ["likelihood", "text", "tasks"])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before
    assert any("No tasks" in note for note in done.notes)
    assert any("Left out of likelihood: max-prob+threshold=0.9+edit=0.9" in note for note in done.notes)


def test_an_evaluator_that_cannot_be_loaded_is_a_note(folder: Path) -> None:
    from dataclasses import replace

    done = decode(replace(PLAN, evaluator="hf:/no/such/folder"), folder, ["external"])
    assert any("No external perplexity with hf:/no/such/folder" in note for note in done.notes)
    decode(PLAN, folder, [*("likelihood",)])  # the plan of the other tests again


def test_external_needs_texts(tmp_path: Path) -> None:
    with pytest.raises(OrderLensError, match="run --parts text first"):
        decode(PLAN, tmp_path / "empty", ["external"])


def test_results(folder: Path) -> None:
    results = frontier_results(folder, Resampling(reps=40), ["png"])
    names = [table.name for table in results.tables]
    assert names[:4] == ["frontier", "speed", "speed-of-light", "policies"]
    assert "couplings-loss" in names
    table = results.tables[0]
    kinds = {row["measure"] for row in table.rows}
    assert kinds == {"bits per byte", "texts that end, texts", "EOS share, texts"}
    edited = table.cell("passes", measure="texts that end, texts", order="max-prob+threshold=0.9+edit=0.9")
    plain = ol.open_run(folder / "runs" / "generate").outputs().to_pandas()
    stated = plain[plain["order"] == "max-prob+threshold=0.9+edit=0.9"]["n_passes"]
    assert edited.value == pytest.approx(stated.mean())
    assert [item.name for item in results.figures if item.paths] == ["frontier", "couplings"]
    ids = {finding.id for finding in results.reading.findings}
    assert {"sets-cost-likelihood", "loss-is-coupling", "var-falls-with-sets", "adaptive-likelihood"} == ids
    assert json.loads((folder / "tables" / "frontier.json").read_text())["rows"]
    assert (folder / "findings.txt").read_text().startswith("4 findings")


def test_the_command_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    command = ["frontier", "--model", "hmm", "--policies", "max-prob+spaced=4", "--rungs", "1,4"]
    command += [
        "--limit",
        "6",
        "--target-tokens",
        "8",
        "--tasks",
        "arith",
        "--items",
        "2",
        "--couplings",
        "2",
    ]
    assert main([*command, "--out", out, "--parts", "likelihood,tasks", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"]["policies"] == ["max-prob", "max-prob+top=4", "max-prob+spaced=4"]
    assert set(said["seconds"]) == {"likelihood", "tasks"}
    assert main([*command, "--out", out, "--parts", "results", "--bootstrap", "20"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy, arith" in shown
    assert "Ladder: max-prob, max-prob+top=4." in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rungs", "1,two"], "--rungs 'two' must be a whole number"),
        (["--parts", "texts"], "unknown part 'texts'; did you mean 'text'"),
        (["--policies", "none", "--ladder", "none"], "at least two policies"),
        (["--policies", "fast-dlm"], "fast-dlm"),
        (["--limit", "0"], "--limit 0 must be at least 1"),
    ],
)
def test_mistakes_get_one_line(options: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert main(["frontier", "--model", "hmm", "--out", str(tmp_path / "run"), *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
