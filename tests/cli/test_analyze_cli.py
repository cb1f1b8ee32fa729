"""``orderlens analyze`` on a real run folder: formats, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from orderlens.analysis.tables_controls import simulate_study
from orderlens.cli.main import main
from orderlens.testing import make_run, random_trace

FAST = ["--bootstrap", "20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small generated and graded run, written by the real store."""
    rng = np.random.default_rng(0)
    traces, verdicts = [], []
    for item in range(12):
        for order, seed in (("forced-ar", None), ("random", 0)):
            key = {"task": "cmath", "seed": seed, "temperature": 0.0}
            tokens = np.where(np.arange(32) > 29, 0, np.arange(32) % 5 + 2)
            traces.append(random_trace(rng, f"i{item}", order, 32, tokens=tokens, **key))
            correct = bool(rng.random() < 0.6)
            names = {"sample_id": f"i{item}", "order": order}
            verdicts.append({**names, **key, "correct": correct, "grader": "last-number"})
    folder = tmp_path_factory.mktemp("runs") / "run"
    make_run(traces, verdicts=verdicts).save(folder)
    return str(folder)


def test_text_shows_the_table_and_the_paper(run, capsys):
    assert main(["analyze", run, "--table", "downstream", "--paper", *FAST]) == 0
    out = capsys.readouterr().out
    assert "Downstream accuracy per task and order" in out
    assert "paper 91.71" in out
    assert "McNemar" in out


def test_all_tables_that_the_run_can_fill(run, capsys):
    assert main(["analyze", run, "--json", *FAST]) == 0
    names = [table["table"] for table in json.loads(capsys.readouterr().out)["tables"]]
    assert {
        "generation",
        "reveal-order",
        "downstream",
        "within-cell",
        "quadrants",
        "controls",
        "null",
    } <= set(names)
    assert "fixed-sequence" not in names


@pytest.mark.parametrize("verb", ["report", "downstream", "analyze"])
def test_the_resampling_reaches_the_study(run, tmp_path, monkeypatch, verb):
    from orderlens.analysis.study import Study

    opened = []
    monkeypatch.setattr(Study, "open", lambda runs, options: opened.append(options) or 1 / 0)
    out = ["--out", str(tmp_path / "r.html")] if verb == "report" else []
    assert main([verb, run, *FAST, *out]) == 1
    assert opened[0].resampling.reps == 20


def test_the_device_is_the_evaluators(run, monkeypatch):
    from orderlens.analysis import external

    loaded = []
    monkeypatch.setattr(external, "load_evaluator", lambda *words: loaded.append(words) or 1 / 0)
    words = ["--table", "generation", "--evaluator", "tiny-ar", "--device", "cpu"]
    assert main(["analyze", run, *words, *FAST]) == 1
    assert loaded == [("tiny-ar", "cpu")]


@pytest.mark.parametrize("form", ["text", "csv", "latex", "markdown", "json"])
def test_formats(run, form, capsys, tmp_path):
    assert main(["analyze", run, "--table", "quadrants,selectors", "--format", form, *FAST]) == 0
    shown = capsys.readouterr().out
    assert "cmath" in shown
    target = tmp_path / "table"
    assert main(["analyze", run, "--table", "quadrants", "--format", form, "--out", str(target), *FAST]) == 0
    assert "cmath" in target.read_text()


def test_undefined_tables_still_come(run, capsys):
    assert main(["analyze", run, "--table", "fixed-sequence", *FAST]) == 0
    assert "no target: these traces were generated" in capsys.readouterr().out


def test_null_works_with_and_without_a_run(run, capsys, monkeypatch):
    assert main(["analyze", run, "--table", "quadrants,null", *FAST]) == 0
    assert "this run's traces, verdicts redrawn" in capsys.readouterr().out
    monkeypatch.setattr(
        "orderlens.analysis.tables_controls.simulate_study", lambda seed: simulate_study(40, seed=seed)
    )
    assert main(["analyze", "--table", "null", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["tables"][0]["table"] == "null"
    assert "simulated study" in content["tables"][0]["notes"][0]


def test_list(capsys):
    assert main(["analyze", "--list"]) == 0
    assert "within-cell" in capsys.readouterr().out
    assert main(["analyze", "--list", "--json"]) == 0
    assert "theory" in json.loads(capsys.readouterr().out)


def test_explain_needs_no_run(capsys):
    assert main(["analyze", "--explain", "--table", "coherence"]) == 0
    shown = capsys.readouterr().out
    assert "Noise floor  (noise_floor)" in shown
    assert "Accuracy" not in shown
    assert main(["analyze", "--explain", "--json"]) == 0
    assert "EOS cascade" in {entry["term"] for entry in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--table", "quadrant"], "did you mean 'quadrants'"),
        (["{run}", "--format", "html"], "--format 'html' is unknown; allowed: text, csv"),
        (["{run}", "--evaluator", "tiny-at"], "unknown evaluator 'tiny-at'"),
        (["{run}", "--level", "2"], "confidence level"),
        (["{run}", "--bootstrap", "-5"], "--bootstrap -5 must be at least 0"),
        (["/nowhere/at/all"], "/nowhere/at/all"),
        ([], "no run given"),
        (["--explain", "--table", "coherenc"], "did you mean 'coherence'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(run, arguments, message, capsys):
    assert main(["analyze", *(item.format(run=run) for item in arguments)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err


def test_a_folder_is_no_place_for_a_table(run, capsys, tmp_path):
    assert main(["analyze", run, "--table", "quadrants", "--out", str(tmp_path), *FAST]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_verb_does_not_import_torch():
    modules = "orderlens.cli.read, orderlens.analysis, orderlens.metrics"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
