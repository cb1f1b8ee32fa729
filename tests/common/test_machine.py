from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orderlens.common import machine


def test_memory_is_known() -> None:
    free, total = machine.free_memory(), machine.total_memory()
    assert free is not None
    assert total is not None
    assert 2**20 < free <= total


def test_without_psutil_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert machine.free_memory() is machine.total_memory() is None


FAULTS = """
import ctypes, resource
import numpy as np
from orderlens.common.machine import keep_freed_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: one fault is one page on every machine
kept = keep_freed_memory()
def forward():
    blocks = [np.full(2**20, 1.0, np.float32) for _ in range(6)]  # 24 MiB in pieces, freed together
    del blocks
forward(), forward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    forward()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(int(kept), faults * resource.getpagesize() / (24 * 2**20))
"""


def forwards_worth_of_faults(**environment: str) -> tuple[bool, float]:
    """Return whether freed memory is kept, and how often ten forwards had to have their pages anew."""
    command, env = [sys.executable, "-c", FAULTS], os.environ | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    kept, times = done.stdout.split()
    return kept == "1", float(times)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has the switch")
def test_freed_memory_is_written_again_without_faults() -> None:
    if not machine.keep_freed_memory():
        pytest.skip("the C library has no such switch, or the environment has set it")
    assert forwards_worth_of_faults()[1] < 0.5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has the switch")
def test_the_environments_own_choice_stays() -> None:
    kept, times = forwards_worth_of_faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072")
    assert not kept
    assert times > 1
