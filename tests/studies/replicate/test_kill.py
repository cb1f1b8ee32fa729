"""A replication killed at several stages and resumed ends with the files of one that was left alone."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from orderlens.store.reader import open_run
from orderlens.studies.plan import Plan

WORKER = """
from orderlens.figures import catalogue
from orderlens.studies.replicate import run_plan
catalogue.FORMATS = ("svg",)  # one format of each picture is enough here
run_plan(plan, out)
"""
DECODING = ["runs/score/units/*", "runs/generate/units/*", "runs/sweep/units/*"]
RESULTS = ["figures/lorenz.svg", "tables/coherence.csv"]
"""What must be there before the process is killed: some work of a stage, or some of the results."""

SERVER = multiprocessing.get_context("forkserver")
"""Its processes are born with the libraries loaded, and die like any other."""


def start(plan: Plan, out: Path) -> BaseProcess:
    SERVER.set_forkserver_preload(["orderlens.studies.results", "matplotlib.figure", "scipy.stats"])
    worker = SERVER.Process(target=exec, args=(WORKER, {"plan": plan, "out": str(out)}))
    worker.start()
    return worker


def kill_once_there(plan: Plan, out: Path, place: str) -> bool:
    """Start a worker, kill −9 as soon as ``place`` exists; return whether it was still at work."""
    worker = start(plan, out)
    deadline = time.monotonic() + 240
    while not any(out.glob(place)) and worker.is_alive():
        assert time.monotonic() < deadline, f"{place} never came"
        time.sleep(0.005)
    worker.kill()
    worker.join()
    return worker.exitcode == -signal.SIGKILL


def made_of(folder: Path) -> dict[str, bytes]:
    """Return every result that depends on the traces alone."""
    files = [*folder.glob("tables/*"), *folder.glob("figures/*.json"), *folder.glob("findings.*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_killed_at(places: list[str], plan: Plan, out: Path, whole: Path) -> None:
    """Kill a replication at each of the places, let it end, and compare it with one that was left alone."""
    assert sum(kill_once_there(plan, out, place) for place in places) >= len(places) - 1
    last = start(plan, out)
    last.join(240)
    assert last.exitcode == 0
    stored = {path.name for path in (whole / "runs").iterdir()}
    assert {"score", "measure", "questions", "generate", "sweep"} <= stored
    for name in sorted(stored):
        mine, theirs = (open_run(folder / "runs" / name) for folder in (out, whole))
        assert mine.is_complete
        assert mine.tables == theirs.tables
        for table in theirs.tables:
            assert mine.table(table).to_arrow().equals(theirs.table(table).to_arrow())
    assert made_of(out) == made_of(whole)
    assert len(made_of(out)) > 40
    assert json.loads((out / "plan.json").read_text()) == json.loads((whole / "plan.json").read_text())


@pytest.mark.slow
def test_a_replication_killed_while_decoding_and_drawing_resumes_to_the_same_results(replication, tmp_path):
    places = [DECODING[0], DECODING[2], RESULTS[0]]
    check_killed_at(places, replication.plan, tmp_path / "killed", replication.folder)


@pytest.mark.slow
def test_a_replication_killed_everywhere_resumes_to_the_same_results(replication, tmp_path):
    check_killed_at([*DECODING, *RESULTS], replication.plan, tmp_path / "killed", replication.folder)
