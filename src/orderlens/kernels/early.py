# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels that come before the one in front of them has ended: programmatic dependent launch, from Hopper on.

A kernel that comes early takes the places its forerunner leaves idle, reads weights and what else was there
before the forward began if it likes, and must wait before it touches anything else. All its programs must
wait: only then does its own end say that everything in front has ended too. Launched plainly, the same kernel
neither comes early nor waits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.jit import JITFunction

from orderlens.kernels.gpu import gpu_of


@triton.jit
def let_next(EARLY: tl.constexpr):
    """Let the next kernel come as soon as all programs of this one are there."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Wait until the kernel in front has ended and all it wrote can be seen."""
    if EARLY:
        gdc_wait()


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Both, for a kernel that has nothing to do before its turn."""
    let_next(EARLY)
    wait_for_last(EARLY)


COMPILED = isinstance(take_turn, JITFunction)


def launched_early(device: torch.device) -> dict[str, Any]:
    """Return the launch options of a kernel that can come early: whether it does.

    GPUs that load tiles through descriptors can do this too; the interpreter cannot.
    """
    early = COMPILED and gpu_of(device).descriptors
    return {"EARLY": early, "launch_pdl": early}
