# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""SwiGLU in one pass: gate and up are read once, their product is written once.

Shape letters: T tokens, F feed-forward width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _swiglu_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Fill one piece of a row; grid (T, pieces of F).

    Reads gate_up [T, 2F] (gate, then up) and writes out [T, F]. silu(gate) is rounded to the model's dtype
    before it is multiplied, as two separate operations would.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    rounded = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * WIDTH + column, (rounded * up).to(dtype), mask=inside)


def swiglu(gate_up_TF: Tensor) -> Tensor:
    """Return silu(gate) · up [T, F] of gate and up side by side [T, 2F]."""
    tokens, width = gate_up_TF.shape[0], gate_up_TF.shape[1] // 2
    out_TF = torch.empty(tokens, width, device=gate_up_TF.device, dtype=gate_up_TF.dtype)
    _swiglu_kernel[(tokens, triton.cdiv(width, BLOCK))](
        gate_up_TF, out_TF, WIDTH=width, BLOCK=BLOCK, num_warps=4
    )
    return out_TF
