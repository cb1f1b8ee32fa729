"""Launches on tensors without memory compile what launches on real ones ask for. Not interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import as_completed
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

import pytest

pytestmark = pytest.mark.skipif(  # not imported: the interpreter must be asked for before Triton is
    find_spec("triton") is None, reason="Triton is not installed (the dev extra has it on Linux)"
)
ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys, torch
from types import SimpleNamespace
from unittest.mock import patch
from triton import knobs
from triton.runtime import driver
sys.path.insert(0, "benchmarks")
from compile_kernels import _Absent
from llada2_bench.setting import TINY
from orderlens.models.decoder import rehearsal
from orderlens.models.files.roles import TokenRoles
from orderlens.models.engine import compiling
from orderlens.kernels.early import launched_early
from orderlens.kernels.rowwise import add_rms_norm

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
    with compiling.rehearsing():
        rehearsal.rehearse(TINY, torch.bfloat16, roles, 32, 2048)
    found[place], asked = asked, []

skipping = False
def norm(place, width=256):
    x = torch.empty(64, width, device=place, dtype=torch.bfloat16)
    add_rms_norm(x, x, torch.empty(width, device=place, dtype=torch.bfloat16), 1e-6)
pool = compiling.LoadingPool()
compiling.compile_launched(lambda: norm("meta"), pool)
pool.shutdown()
first, asked = len(asked), []
with compiling.rehearsing():
    norm("cpu")
again = len(asked)

closed = compiling.LoadingPool()
closed._closed.set()
compiling.compile_launched(lambda: norm("meta", 512), closed)
asked = []
with compiling.rehearsing():
    norm("cpu", 512)
early = []
for major in (8, 9):
    about = SimpleNamespace(major=major, minor=0, multi_processor_count=100)
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "current_device", lambda: major),
        patch.object(torch.cuda, "get_device_properties", lambda _: about),
    ):
        early += [launched_early(torch.device(place)) for place in ("meta", f"cuda:{major}")]
kernels = sorted({name for name, _ in found["meta"]})
print(json.dumps([found["meta"] == found["cpu"], kernels, first, again, len(asked), early]))
"""


def test_kernels_are_found_by_real_launches(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    same, names, compiled, again, late, early = json.loads(done.stdout.splitlines()[-1])
    assert same
    assert {"_gate_up_kernel", "_down_kernel", "_attend_kernel", "_panel_kernel", "_draw_kernel"} <= set(
        names
    )
    assert (compiled, again) == (1, 0)
    assert late == 1  # what was not compiled ahead is compiled by its first launch
    plain, first = ({"EARLY": on, "launch_pdl": on} for on in (False, True))
    assert early == [plain, plain, first, first]  # without memory and on the GPU, before Hopper and there


@pytest.mark.needs_torch
def test_nothing_is_rehearsed_without_a_gpu() -> None:
    import torch

    from orderlens.models.engine.compiling import compiling_meanwhile

    usual = sys.getswitchinterval()
    with compiling_meanwhile(lambda: pytest.fail("rehearsed"), torch.device("cpu")):
        assert sys.getswitchinterval() == usual


@pytest.mark.needs_torch
@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_rehearsal_breaks_no_loading(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    import torch

    from orderlens.models.engine import compiling

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


@pytest.mark.needs_torch
def test_whoever_waits_for_kernels_that_are_given_up_goes_on() -> None:
    from orderlens.models.engine.compiling import THREADS, LoadingPool

    pool, held = LoadingPool(), Event()
    kernels = [pool.submit(held.wait) for _ in range(2 * THREADS)]
    waiting = Thread(target=lambda: list(as_completed(kernels)), daemon=True)
    waiting.start()
    pool.close()
    held.set()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.needs_torch
def test_models_that_load_at_once_leave_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from orderlens.models.engine import compiling

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(compiling, "runs_kernels", lambda _: True)
    monkeypatch.setattr(compiling, "_compile", lambda *_: None)
    usual = sys.getswitchinterval()
    first, second = (compiling.compiling_meanwhile(lambda: None, torch.device("cuda")) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(compiling.SWITCH_S)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual


@pytest.mark.needs_torch
def test_rehearsals_at_once_launch_nothing_and_leave_launches_as_they_were() -> None:
    """The one that ends first must not let the other one launch, nor the last one leave anything behind."""
    jit = pytest.importorskip("triton.runtime.jit")
    from orderlens.models.engine import compiling

    original, told = jit.JITFunction.run, []
    jit.JITFunction.run = lambda _, *, warmup: told.append(warmup)
    usual = jit.JITFunction.run
    begun, ended = Event(), Event()

    def other() -> None:
        with compiling.rehearsing():
            begun.set()
            ended.wait(10)
            jit.JITFunction.run(None, warmup=False)

    thread = Thread(target=other)
    try:
        with compiling.rehearsing():
            thread.start()
            begun.wait(10)
            jit.JITFunction.run(None, warmup=False)
        jit.JITFunction.run(None, warmup=False)  # nobody rehearses in this thread
        ended.set()
        thread.join()
        assert told == [True, False, True]
        assert jit.JITFunction.run is usual
    finally:
        jit.JITFunction.run = original
