"""Kernels compiled for GPUs that are not there must fit them. In a process that does not interpret."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(  # not imported: the interpreter must be asked for before Triton is
    find_spec("triton") is None, reason="Triton is not installed (the dev extra has it on Linux)"
)
ROOT = Path(__file__).parents[2]


def compiled(folder: Path, *options: str) -> str:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, str(ROOT / "benchmarks/compile_kernels.py"), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_experts_on_a_small_gpu(tmp_path: Path) -> None:
    said = compiled(tmp_path, "--gpus", "8.9", "--parts", "experts", "--tokens", "4096", "--all")
    assert "of 101,376 bytes, 0 too large; 0 spill registers" in said
    assert said.count("_gate_up_kernel") == 2  # for weights of 16 and of 8 bits


def test_experts_on_float8_units(tmp_path: Path) -> None:
    """Without a Hopper the kernel in Gluon can only be compiled."""
    said = compiled(tmp_path, "--gpus", "9.0", "--parts", "experts", "--tokens", "32", "--all")
    assert "0 too large; 0 spill registers" in said
    assert "experts in fp8, 32 tokens: experts_kernel" in said


@pytest.mark.slow
def test_all_kernels_on_every_gpu(tmp_path: Path) -> None:
    said = compiled(tmp_path)
    assert said.count(", 0 too large;") == 5
