"""Files beside runs: a report is the same bytes twice, and a killed export leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    samples = [ol.Sample(str(i), "once upon", "a time there was") for i in range(4)]
    ol.score("hmm", samples, orders=["forced-ar", "random"], out=folder)
    return folder


def test_two_reports_of_one_run_are_the_same_bytes(run: Path, tmp_path: Path) -> None:
    words = ["report", str(run), "--bootstrap", "20", "--out"]
    assert main([*words, str(tmp_path / "a.html")]) == 0
    command = [sys.executable, "-m", "orderlens", *words, str(tmp_path / "b.html")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


KILLED = """
import os, signal, sys
from orderlens.cli.main import main
from orderlens.store import export

def stop(sink, schema, chunks):
    sink.write(b"half a line")
    sink.flush()
    os.kill(os.getpid(), signal.SIGKILL)

export.WRITERS["csv"] = stop
main(sys.argv[1:])
"""


def test_the_next_export_removes_what_a_killed_one_left(run: Path, tmp_path: Path) -> None:
    words = ["runs", "export", str(run), "--out", str(tmp_path / "rows.csv")]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"half a line"]
    assert main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
