"""``runs watch`` shows what workers wrote down, and nothing that could steer a terminal."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.cli.runs import SILENT_S, look, note, picture
from orderlens.common.machine import UNKNOWN, process_tag
from orderlens.runs.worker_log import (
    Failures,
    WorkerLog,
    WorkerState,
    read_states,
    remove_ended_workers,
    steps_left,
)
from orderlens.store.folder import open_folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    ol.score("hmm", [ol.Sample("a", "the ", "sea")], "forced-ar", out=tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run_is_shown_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "watch", str(run)]) == 0
    said = capsys.readouterr().out
    assert "complete, units committed: 1" in said
    assert "alone" in said
    assert "done" in said


def test_workers_and_failures_are_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = open_folder(run)
    clock = iter(range(100))
    notebook = WorkerLog(folder, "w-1", "other", "cuda:0", clock=lambda: float(next(clock)))
    notebook.advance(90)
    notebook.set_state("working", unit="x")
    Failures(folder, 2).record("x", "ValueError: \x1b[31mred", "w-1", samples=("s\x1b[2J",))
    assert main(["runs", "watch", str(run), "--once"]) == 0
    said = capsys.readouterr().out
    assert "w-1" in said
    assert "cuda:0" in said
    assert "attempt 1" in said
    assert "\x1b[31m" not in said.replace("\x1b[0m", "")
    assert main(["runs", "watch", str(run), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in facts["workers"]] == [f"alone-{os.getpid()}", "w-1"]
    assert facts["workers"][1]["tokens"] == 90
    assert facts["failures"][0]["error"].endswith("red")


def test_a_worker_that_says_nothing_is_silent() -> None:
    state = WorkerState("w", "s", state="working", time=1000.0)
    assert note(state, 1000.0 + SILENT_S / 2) == "working"
    assert note(state, 1000.0 + 2 * SILENT_S) == f"silent for {2 * SILENT_S:.0f} s"
    assert note(replace(state, state="done"), 1e9) == "done"


def test_what_is_left_is_foreseen_from_the_workers_of_a_command(run: Path) -> None:
    first = WorkerState("a", "s", state="working", tokens=600, planned=10_000, seconds=10.0)
    second = WorkerState("b", "s", state="done", tokens=400, planned=10_000, seconds=10.0)
    assert steps_left([first, second]) == 9_000
    assert steps_left([first, replace(first, name="c", session="other", planned=0)]) is None
    assert steps_left([second]) is None
    facts = {"run": "r", "state": "running", "units": 3, "rate": 100.0, "left": 9_000}
    head = str(picture({**facts, "workers": [], "failures": []})[0])
    assert head == "r: running, units committed: 3, 100 tokens/s, 9,000 tokens left, about 2 min"
    assert look(open_folder(run))["left"] is None


@pytest.mark.skipif(process_tag() == UNKNOWN, reason="needs /proc")
def test_a_worker_whose_process_is_gone_is_dead() -> None:
    machine, pid, _ = process_tag().split("-")
    state = WorkerState("w", "s", state="working", process=f"{machine}-{pid}-1", time=1000.0)
    assert state.over
    assert note(state, 1000.0) == "dead"


def test_a_run_with_busy_workers_is_running(tmp_path: Path) -> None:
    from orderlens.store.writer import open_writer

    with open_writer(tmp_path / "run", {"kind": "score"}):
        notebook = WorkerLog(open_folder(tmp_path / "run"), "w", "s", "cpu")
        notebook.set_state("working", unit="k")
        assert look(open_folder(tmp_path / "run"))["state"] == "running"
        notebook.set_state("stopped", unit=None)
        assert look(open_folder(tmp_path / "run"))["state"] == "incomplete"


def test_updates_come_at_the_given_interval(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orderlens.cli import console, runs

    states, slept = iter(["running", "running", "complete"]), []
    facts = look(open_folder(run))
    monkeypatch.setattr(runs, "look", lambda folder: {**facts, "state": next(states)})
    monkeypatch.setattr(runs.time, "sleep", slept.append)
    monkeypatch.setattr(type(console.stdout), "is_terminal", True)
    assert main(["runs", "watch", str(run), "--every", "0.5"]) == 0
    assert slept == [0.5, 0.5]
    assert main(["runs", "watch", str(run), "--every", "0.1"]) == 2
    assert "--every 0.1 must be at least 0.2" in capsys.readouterr().err


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "watch", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_others_at_work_are_not_forgotten(run: Path) -> None:
    folder = open_folder(run)
    WorkerLog(folder, "busy", "other", "cpu").set_state("working", unit="x")
    WorkerLog(folder, "over", "other", "cpu").set_state("done", unit=None)
    remove_ended_workers(folder)
    assert [state.name for state in read_states(folder)] == ["busy"]
