"""Ctrl-C and SIGTERM in real processes: what is said, the exit code, and going on afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.cli.terminal import Terminated

TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the sun. " * 4
PATIENCE_S = 300.0


MARKED = """
import sys
from pathlib import Path
from orderlens.metrics import estimate
from orderlens.cli.main import entry_point

resample = estimate.Clusters.__init__

def marked(*arguments, **more):
    Path({begun!r}).touch()
    resample(*arguments, **more)

estimate.Clusters.__init__ = marked
sys.exit(entry_point())
"""
"""The program, with a mark left when the first resampling of an analysis begins."""


HELD = """
import sys, time
from pathlib import Path
from orderlens.cli.main import entry_point
from orderlens.runs import run as running

decode_unit, left = running.decode_unit, list(range({units}))

def held(*arguments):
    if left:
        left.pop()
        return decode_unit(*arguments)
    Path({begun!r}).touch()
    end = time.monotonic() + {patience}
    while time.monotonic() < end:
        found = decode_unit(*arguments)
    return found

running.decode_unit = held
sys.exit(entry_point())
"""
"""The program, which computes the unit after the first ones over and over: it is never done too early."""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a command in a process, which does not outlive the test."""
    started = []

    def call(*arguments, program=("-m", "orderlens")):
        command = [sys.executable, *program, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # What is started in the background of a script is deaf to Ctrl-C, and so would be its children.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=os.environ.copy(), **pipes, **heard))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def stop_after(start, tmp_path):
    """Return a function that stops a command which has computed some units and is at work on the next."""

    def call(units, *arguments, number=signal.SIGINT):
        begun = tmp_path / "begun"
        program = HELD.format(units=units, begun=str(begun), patience=2 * PATIENCE_S)
        return stop_when(start(*arguments, program=["-c", program]), begun.exists, number)

    return call


def stop_when(process, reached, number=signal.SIGINT):
    """Send a signal as soon as ``reached()`` holds; return exit code, output and messages."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the command made no progress"
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@pytest.fixture
def data(tmp_path):
    rows = [json.dumps({"id": f"d{i}", "text": TEXT[i % 40 :]}) for i in range(200)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def last_line(text):
    lines = [line for line in text.splitlines() if line.startswith("orderlens: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_stopped_run_says_what_is_kept_and_goes_on(data, tmp_path, stop_after, number, code, word, capsys):
    run = tmp_path / "run"
    command = ["score", "--model", "hmm", "--data", data, "--batch-size", 1, "--orders", "forced-ar,random"]
    command += ["--limit", 25, "-o", run]
    found, _, err = stop_after(2, *command, number=number)
    assert found == code, err
    line = last_line(err)
    assert f"{word}: " in line
    assert "2 finished units" in line
    assert f"kept in {run}; the same command resumes there" in line
    kept = set(ol.open_run(run).samples().to_pandas()["sample_id"])
    assert kept == {"d0", "d1"}
    assert main([*map(str, command), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["orders"][0]["n_samples"] == 25


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("orderlens.runs.run.run_job", "no unit was finished"),
        ("orderlens.models.loading.load_model", "nothing was"),
    ],
)
def test_an_interrupt_of_an_import_is_an_interrupt(monkeypatch, capsys, tmp_path, stop, code, place, word):
    """Extension modules make an ImportError of a signal that comes while they are loaded."""

    def load(*_, **__):
        raise ImportError("initialization failed") from stop()

    monkeypatch.setattr(place, load)
    assert main(["score", "--model", "hmm", "--limit", "2", "-o", str(tmp_path / "run")]) == code
    assert f"ted: {word}" in last_line(capsys.readouterr().err)


def test_before_the_first_unit_nothing_is_promised(data, tmp_path, stop_after):
    command = ["generate", "--model", "hmm", "--data", data, "--batch-size", 4, "-o", tmp_path / "run"]
    code, _, err = stop_after(0, *command, "--max-new-tokens", 16)
    assert code == 130, err
    assert "no unit was finished" in last_line(err)


def test_an_interrupted_replication_goes_on(data, tmp_path, stop_after):
    folder = tmp_path / "rep"
    command = ["replicate", "--preset", "demo", "--model", "hmm", "--data", data, "-o", folder, "--stages"]
    command += ["questions,score", "--batch-size", 1, "--limit", 40]
    code, _, err = stop_after(2, *command)
    assert code == 130, err
    assert f"kept in {folder}; the same command resumes there" in last_line(err)


def test_an_analysis_writes_all_or_nothing(tmp_path, start):
    run, table = tmp_path / "run", tmp_path / "tables.txt"
    ol.score(
        "hmm", [ol.Sample(str(i), [1, 2], [3, 4, 5, 6]) for i in range(30)], ["forced-ar", "random"], out=run
    )
    table.write_text("what was here before", encoding="utf-8")
    command = ["analyze", run, "--bootstrap", 1_000_000, "--out", table, "--overwrite"]
    begun = tmp_path / "begun"
    process = start(*command, program=["-c", MARKED.format(begun=str(begun))])
    code, _, err = stop_when(process, begun.exists)
    assert code == 130, err
    assert "nothing was written; run the same command again" in last_line(err)
    assert table.read_text(encoding="utf-8") == "what was here before"


@pytest.mark.slow
def test_training_keeps_its_last_step(tmp_path, start):
    pytest.importorskip("torch")
    from orderlens.training.steps import load_checkpoint

    text, out = tmp_path / "text.txt", tmp_path / "model"
    text.write_text(TEXT * 20, encoding="utf-8")
    small = [
        "--layers",
        1,
        "--width",
        32,
        "--heads",
        2,
        "--vocab-size",
        300,
        "--batch-size",
        2,
        "--window",
        64,
    ]
    command = ["train", "--data", text, "-o", out, *small, "--device", "cpu"]
    process = start(*command, "--steps", 200_000)
    code, _, err = stop_when(process, (out / "metrics.jsonl").is_file)
    assert code == 130, err
    step = load_checkpoint(out / "checkpoint.pt")["step"]
    assert step >= 10
    assert f"step {step} is kept in {out}; the same command with --resume continues there" in last_line(err)
    again = start(*command, "--steps", step + 5, "--resume", "--json")
    told, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, err
    assert json.loads(told)["steps"] == step + 5
