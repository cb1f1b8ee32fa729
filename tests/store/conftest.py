"""Shared pieces of the store tests: the tiny real run of ``worker.py`` and ways to look at its rows."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from orderlens.store.reader import open_run

SCRIPT = Path(__file__).with_name("worker.py")


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``worker.py`` as a separate program."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # it forks
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=alone)

    return call


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, worker: ModuleType) -> Callable[[int], Path]:
    """Undisturbed runs by number of units, made once; not to be changed."""

    @functools.cache
    def made(units: int) -> Path:
        folder = tmp_path_factory.mktemp("straight") / str(units)
        worker.compute(str(folder), units)
        return folder

    return made


@pytest.fixture
def finished(tmp_path: Path, straight: Callable[[int], Path]) -> Path:
    """A complete run of 6 units of the test's own."""
    return shutil.copytree(straight(6), tmp_path / "finished")


@pytest.fixture
def content() -> Callable[[Path | str], dict[str, bytes]]:
    """Return every table of a run as bytes, in the order in which it is read."""

    def read(folder: Path | str) -> dict[str, bytes]:
        run = open_run(folder)
        return {name: as_bytes(run.table(name).to_arrow()) for name in run.tables}

    return read


def as_bytes(table: pa.Table) -> bytes:
    """Return the table as one Arrow stream (one batch, so that chunks do not show)."""
    sink = pa.BufferOutputStream()
    plain = table.combine_chunks()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return sink.getvalue().to_pybytes()
