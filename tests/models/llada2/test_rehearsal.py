"""Launches on tensors without memory compile what launches on real ones ask for. Not interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(  # not imported: the interpreter must be asked for before Triton is
    find_spec("triton") is None, reason="Triton is not installed (the dev extra has it on Linux)"
)
ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys, torch
from triton import knobs
from triton.runtime import driver
sys.path.insert(0, "benchmarks")
from compile_kernels import _Absent
from llada2_bench.setting import TINY
from orderlens.models.llada2 import rehearsal
from orderlens.models.roles import TokenRoles
from orderlens.models.torch import compiling
from orderlens.models.torch.kernels.norm import add_rms_norm

driver.set_active(_Absent(90))
asked = []

def note(key, repr, fn, compile, is_manual_warmup, already_compiled):
    asked.append((fn.name, key))
    return skipping

knobs.runtime.jit_cache_hook = note
roles, found, skipping = TokenRoles(503, frozenset({500}), frozenset(), 512), {}, True
rehearsal.WHOLE_TOKENS = 512
for place in ("meta", "cpu"):
    rehearsal.NOWHERE = torch.device(place)
    with compiling._launching_nothing():
        rehearsal.rehearse(TINY, torch.bfloat16, roles, 32, 2048)
    found[place], asked = asked, []

skipping = False
def norm(place):
    x = torch.empty(64, 256, device=place, dtype=torch.bfloat16)
    add_rms_norm(x, x, torch.empty(256, device=place, dtype=torch.bfloat16), 1e-6)
pool = compiling.LoadingPool()
compiling.compile_launched(lambda: norm("meta"), pool)
pool.shutdown()
first, asked = len(asked), []
with compiling._launching_nothing():
    norm("cpu")
kernels = sorted({name for name, _ in found["meta"]})
print(json.dumps([found["meta"] == found["cpu"], kernels, first, len(asked)]))
"""


def test_kernels_are_found_by_real_launches(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    same, names, compiled, compiled_again = json.loads(done.stdout.splitlines()[-1])
    assert same
    assert {"_gate_up_kernel", "_down_kernel", "_attend_kernel", "_panel_kernel", "_draw_kernel"} <= set(
        names
    )
    assert (compiled, compiled_again) == (1, 0)


@pytest.mark.needs_torch
def test_nothing_is_rehearsed_without_a_gpu() -> None:
    import torch

    from orderlens.models.torch.compiling import compiling_meanwhile

    usual = sys.getswitchinterval()
    with compiling_meanwhile(lambda: pytest.fail("rehearsed"), torch.device("cpu")):
        assert sys.getswitchinterval() == usual


@pytest.mark.needs_torch
@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_rehearsal_breaks_no_loading(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    import torch

    from orderlens.models.torch import compiling

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(compiling, "runs_kernels", lambda _: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    usual, rehearsed = sys.getswitchinterval(), []

    def broken(*_: object) -> None:
        rehearsed.append(True)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(compiling, "compile_launched", broken)
    try:
        with compiling.compiling_meanwhile(lambda: None, torch.device("cuda")):
            assert sys.getswitchinterval() != usual
            if fails:
                raise OSError("no such file")
    except OSError:
        assert fails
    assert sys.getswitchinterval() == usual
    assert rehearsed == [True] or fails
