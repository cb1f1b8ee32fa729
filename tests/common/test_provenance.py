from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from orderlens.common import machine
from orderlens.store.folder import LocalFolder
from orderlens.store.overview import details


def test_it_says_versions_hardware_git_and_time_without_paths() -> None:
    found = machine.provenance()
    assert found["versions"]["orderlens"]
    assert found["versions"]["pyarrow"]
    assert found["hardware"]["cores"] == os.cpu_count()
    assert found["time"].endswith("+00:00")
    text = json.dumps(found)
    assert Path.home() == Path("/") or str(Path.home()) not in text
    assert os.sep + "src" not in text


def test_git_state_names_the_commit_and_whether_it_was_changed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "_GIT_TIMEOUT_S", 120.0)  # a run would do without it on a busy machine

    def git(*arguments: str) -> None:
        name = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert machine.git_state(tmp_path / ".") is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    machine.git_state.cache_clear()
    state = machine.git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "file").write_text("2")
    machine.git_state.cache_clear()
    assert machine.git_state(tmp_path) == {**state, "dirty": True}
    (tmp_path / "untracked").mkdir()
    (tmp_path / "untracked" / "package.py").write_text("")
    assert machine.git_state(tmp_path / "untracked") is None  # installed inside someone else's checkout


def test_a_machine_without_git_is_fine(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    machine.git_state.cache_clear()
    assert machine.git_state(tmp_path) is None
    machine.git_state.cache_clear()


def test_each_environment_that_computed_units_is_kept(tmp_path, worker, monkeypatch) -> None:
    from orderlens.runs.loop import execute
    from orderlens.store.writer import open_writer

    units = worker.keyed_units(3)
    with open_writer(tmp_path, worker.spec(3)) as writer:
        writer.commit("unit-0000", worker.tables(0))
    monkeypatch.setattr(machine, "hardware", lambda: {"processor": "another"})
    with open_writer(tmp_path, worker.spec(3)) as writer:
        execute(writer, units, worker.tables)
    found = details(LocalFolder(tmp_path))["environments"]
    assert sorted(item["units"] for item in found) == [1, 2]
    assert {"processor": "another"} in [item["content"]["hardware"] for item in found]
