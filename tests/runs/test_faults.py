"""Faults of workers and drivers, really done: raised, killed, hanging, interrupted, out of disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import StorageError, UnitsFailedError
from orderlens.runs import pool
from orderlens.runs.worker_log import read_failures, read_states
from orderlens.store.folder import open_folder
from orderlens.store.overview import overview

LENGTHS = (8, 9, 10, 11)
SAMPLES = [ol.Sample(f"s{n}", "the ", "a text of some length"[:n]) for n in LENGTHS]
POISON = 10


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the fragile order for this process and those it starts; return its folder."""
    folder = tmp_path / "plugin"
    about = folder / "fragile-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fragile.py"), folder / "fragile_order.py")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[orderlens.orders]\nfragile = fragile_order:Fragile\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(folder))
    from orderlens.rules.catalogue import ORDERS

    monkeypatch.setattr(ORDERS, "_plugins", None)
    monkeypatch.setattr(ORDERS, "_objects", dict(ORDERS._objects))  # forgotten afterwards
    return folder


def score(out: Path, engine: ol.Engine | None = None) -> ol.Run:
    chosen = engine or ol.Engine(workers=2, threads=1)
    return ol.score("hmm", SAMPLES, ["fragile", "forced-ar"], batch_size=1, out=out, engine=chosen)


def assert_all_there(run: ol.Run) -> None:
    """Both orders go from left to right, so their log q must agree, row by row."""
    assert run.is_complete
    rows = run.reveals().to_pandas().sort_values(["order", "sample_id", "step"])
    assert len(rows) == 2 * sum(LENGTHS)
    first, second = (rows[rows["order"] == name]["logq"].to_numpy() for name in ("forced-ar", "fragile"))
    assert (first == second).all()


def test_a_poisoned_sample_is_set_aside_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAGILE", f"raise:{POISON}")
    with pytest.raises(
        UnitsFailedError, match=r"1 of 4 units failed .*samples s10.*poisoned sample"
    ) as raised:
        score(tmp_path / "run")
    assert raised.value.exit_code == 1
    failures = read_failures(open_folder(tmp_path / "run"))
    assert [(row.attempt, row.samples) for row in failures] == [(0, ("s10",)), (1, ("s10",))]
    assert "fragile_order.py" in failures[0].traceback
    assert overview(open_folder(tmp_path / "run"))["units"] == 3
    monkeypatch.delenv("FRAGILE")
    assert_all_there(score(tmp_path / "run"))
    assert not read_failures(open_folder(tmp_path / "run"))


def test_a_killed_worker_is_replaced_and_its_unit_redone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_GRACE_S", 120.0)  # the new worker may find nothing left, but it is counted
    monkeypatch.setenv("FRAGILE", f"kill:{POISON}:{tmp_path / 'flag'}")
    assert_all_there(score(tmp_path / "run"))
    assert (tmp_path / "flag").exists()
    assert len(read_states(open_folder(tmp_path / "run"))) == 3


def test_a_unit_that_kills_every_worker_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAGILE", f"kill:{POISON}")
    with pytest.raises(UnitsFailedError, match=r"1 of 4 units .*worker lost: signal 9"):
        score(tmp_path / "run")


def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAGILE", f"hang:{POISON}:{tmp_path / 'flag'}")
    # On a busy machine a worker may be slow for as long as that: then its unit is tried once more.
    assert_all_there(score(tmp_path / "run", ol.Engine(workers=2, threads=1, stall_s=4, attempts=9)))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A command with two workers."""
    data = tmp_path / "data.jsonl"
    rows = (f'{{"id": "{s.id}", "prompt": "{s.prompt}", "target": "{s.target}"}}' for s in SAMPLES)
    data.write_text("\n".join(rows))
    start = [sys.executable, "-m", "orderlens", "score", "--model", "hmm", "--data", str(data)]
    work = ["--orders", "fragile,forced-ar", "--batch-size", "1", "--workers", "2"]
    return [*start, *work, "--out", str(tmp_path / "run")]


@pytest.fixture
def driver(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The command at work; one of its workers hangs."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "FRAGILE": f"hang:{POISON}"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def until_hanging(run: Path) -> list[psutil.Process]:
    """Wait until three units are committed and one hangs; return the workers' processes."""
    folder, end = open_folder(run), time.monotonic() + 300
    while time.monotonic() < end:
        states = read_states(folder) if run.exists() else []
        if sum(state.units for state in states) == 3 and any(state.unit for state in states):
            return [psutil.Process(int(state.process.split("-")[1])) for state in states]
        time.sleep(0.1)
    raise AssertionError("the workers did not get so far")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_driver_leaves_no_worker_behind_and_is_resumed(
    stop: signal.Signals, driver: subprocess.Popen[str], command: list[str], tmp_path: Path
) -> None:
    workers = until_hanging(tmp_path / "run")
    os.kill(driver.pid, stop)
    _, said = driver.communicate(timeout=120)
    psutil.wait_procs(workers, timeout=120)
    assert not any(worker.is_running() for worker in workers)
    assert driver.returncode == {2: 130, 15: 143, 9: -9}[stop]
    if stop != signal.SIGKILL:
        assert "3 finished units" in said
        assert "the same command resumes" in said
    assert main([*command[3:], "--workers", "1"]) == 0
    assert_all_there(ol.open_run(tmp_path / "run"))


def test_a_full_disk_ends_the_command_with_its_remedy(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises(StorageError, match="the disk is full; finished work is kept"):
            score(small / "run")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
