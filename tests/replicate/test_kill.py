"""A replication killed at several stages and resumed ends with the files of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from orderlens.store.reader import open_run

HERE = Path(__file__).parent
WORKER = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("c", sys.argv[1])
module = module_from_spec(spec)
spec.loader.exec_module(module)
from orderlens.figures import save
from orderlens.replicate import run_plan
save.FORMATS = ("svg",)  # one format of each picture is enough here
run_plan(module.small_plan(batch_size=2, questions=2), sys.argv[2])
"""
PLACES = [
    "runs/score/units/*",
    "runs/generate/units/*",
    "runs/sweep/units/*",
    "figures/lorenz.svg",
    "tables/coherence.csv",
]
"""What must be there before the process is killed: some work of a stage, or some of the results."""


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, str(HERE / "conftest.py"), str(out)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def kill_once_there(out: Path, place: str) -> bool:
    """Start a worker, kill −9 as soon as ``place`` exists; return whether it was still at work."""
    worker = start(out)
    deadline = time.monotonic() + 120
    while not any(out.glob(place)) and worker.poll() is None:
        assert time.monotonic() < deadline, f"{place} never came"
        time.sleep(0.005)
    worker.send_signal(signal.SIGKILL)
    return worker.wait() == -signal.SIGKILL


def made_of(folder: Path) -> dict[str, bytes]:
    """Return every result that depends on the traces alone."""
    files = [*folder.glob("tables/*"), *folder.glob("figures/*.json"), *folder.glob("findings.*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_replication_killed_at_several_stages_resumes_to_the_same_results(tmp_path):
    out, whole = tmp_path / "killed", tmp_path / "whole"
    assert sum(kill_once_there(out, place) for place in PLACES) >= len(PLACES) - 2
    assert start(out).wait(timeout=120) == 0
    assert start(whole).wait(timeout=120) == 0
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
