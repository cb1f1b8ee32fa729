"""Decoding on one machine and writing the results on another; stages in separate processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orderlens.cli.main import main
from orderlens.errors import RunError
from orderlens.store.reader import open_run
from orderlens.studies.replicate_plan import ReplicatePlan, make_plan
from orderlens.studies.results import replicate_results
from orderlens.studies.runner import decode

MODEL = "hmm:incoherence=0.5"
BARE = """
import sys
BLOCKED = set(sys.argv[1].split(","))
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
COMMAND = BARE + "from orderlens.cli.main import main\nsys.exit(main(sys.argv[2:]))"
LIBRARY = (
    BARE
    + """
from orderlens.studies.replicate_plan import make_plan
from orderlens.studies.runner import decode
plan = make_plan("quick", sys.argv[2], sys.argv[3], n_texts=2, target_tokens=16, temperatures=(),
                 score_orders=("forced-ar", "random:0"), evaluator="none-such")
decode(plan, sys.argv[4])
"""
)
NOT_FOR_DECODING = "duckdb,polars,lm_eval,transformers,fsspec,s3fs,matplotlib,pandas,statsmodels"


def texts_in(folder: Path) -> Path:
    """Write a data file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    target = "the boat came home in the rain, "
    rows = [{"id": f"t{i}", "prompt": f"On day {i} ", "target": target} for i in range(6)]
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(data: Path, out: Path, *more: str) -> list[str]:
    options = ["--model", MODEL, "--data", str(data), "--temperatures", "1", "--limit", "6"]
    return ["replicate", *options, "--evaluator", "none-such", "--out", str(out), *more]


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """A folder decoded by two bare processes side by side, and what they wrote to standard error."""
    there = tmp_path_factory.mktemp("there")
    data, out = texts_in(there / "data"), there / "out"
    parts = [("score,measure", "3"), ("generate,sweep", "3")]
    workers = [
        start(COMMAND, NOT_FOR_DECODING, *command(data, out, "--stages", stages, "--batch-size", size))
        for stages, size in parts
    ]
    logs = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], logs
    return out, logs


def test_stages_in_two_bare_processes_fill_one_folder(decoded, tmp_path):
    out, _ = decoded
    plan = make_plan("quick", MODEL, str(texts_in(tmp_path)), n_texts=6, temperatures=(1.0,), batch_size=3)
    decode(plan, tmp_path / "alone", stages=("score", "generate", "sweep"))
    for name in ("score", "generate", "sweep"):
        mine, theirs = (open_run(folder / "runs" / name) for folder in (tmp_path / "alone", out))
        assert theirs.is_complete
        assert theirs.reveals().to_arrow().equals(mine.reveals().to_arrow())
        assert theirs.spec == mine.spec


def test_a_log_gets_lines_and_the_next_step(decoded):
    _, logs = decoded
    assert "scoring fixed targets (tokens): 2,880 to do" in logs[0][1]
    assert "scoring fixed targets (tokens): 2,880 done in" in logs[0][1]
    assert "sweep: " in logs[1][0]
    assert "--stages results" in logs[1][0]


@pytest.mark.slow
def test_the_results_are_made_elsewhere_without_a_model(decoded, tmp_path, monkeypatch, capsys):
    """The folder is moved; data file, device and batch size are others; no model is loaded."""
    out = shutil.copytree(decoded[0], tmp_path / "here")

    def refuse(*arguments, **options):
        raise AssertionError("a finished stage asked for a model")

    monkeypatch.setattr("orderlens.models.loading.load_model", refuse)
    monkeypatch.setattr("orderlens.figures.catalogue.FORMATS", ("svg", "png"))
    again = command(texts_in(tmp_path / "elsewhere"), out, "--batch-size", "5", "--device", "cpu")
    assert main([*again, "--decode-only", "--json"]) == 0
    passed = json.loads(capsys.readouterr().out)
    assert passed["plan"]["batch_size"] == 3
    assert set(passed["seconds"]) == {"external"}
    assert main(["replicate", "--out", str(out), "--stages", "results", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert {table["table"] for table in made["tables"]} >= {"fixed-sequence", "generation", "temperature"}
    assert {item["id"]: item["outcome"] for item in made["reading"]["findings"]}[
        "chain-rule-per-text"
    ] == "supported"
    assert "stage external" in made["notes"][-1]


def test_pydantic_is_not_needed_to_decode(tmp_path):
    data, out = texts_in(tmp_path), tmp_path / "out"
    worker = start(LIBRARY, f"{NOT_FOR_DECODING},pydantic", MODEL, str(data), str(out))
    log = worker.communicate(timeout=300)
    assert worker.returncode == 0, log
    assert open_run(out / "runs" / "score").is_complete


def test_new_stages_want_the_same_model_and_the_same_texts(decoded, tmp_path):
    out = shutil.copytree(decoded[0], tmp_path / "copy")
    shutil.rmtree(out / "runs" / "sweep")
    data = texts_in(tmp_path / "data")
    plan = make_plan("quick", MODEL, str(data), n_texts=6, temperatures=(1.0,))
    from orderlens.models.loading import load_model

    with pytest.raises(RunError, match="another model"):
        decode(plan, out, model=load_model("hmm"))
    data.write_text(data.read_text().replace("rain", "hail"))
    with pytest.raises(RunError, match="another data"):
        decode(plan, out)


def test_the_evaluator_waits_for_all_texts(decoded, tmp_path):
    out = shutil.copytree(decoded[0], tmp_path / "copy")
    shutil.rmtree(out / "runs" / "sweep")
    plan = make_plan("quick", MODEL, str(texts_in(tmp_path)), n_texts=6, temperatures=(1.0,))
    with pytest.raises(RunError, match="run --stages sweep first"):
        decode(plan, out, stages=("external",))


def test_stages_have_names_and_an_order():
    assert ReplicatePlan.in_order(["sweep", "score"]) == ["score", "sweep"]
    assert main(["replicate", "--out", "x", "--stages", "swep"]) == 2
    assert main(["replicate", "--out", "x", "--stages", "results", "--decode-only"]) == 2


def test_results_of_nothing_are_refused(tmp_path):
    with pytest.raises(RunError, match="holds no replication"):
        replicate_results(tmp_path)
