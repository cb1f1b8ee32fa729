# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""SwiGLU in one pass: gate and up are read once, their product is written once.

Shape letters: T tokens, F feed-forward width, S parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.early import launched_early, take_turn
from orderlens.kernels.few import added

BLOCK = 1024


@triton.jit
def _swiglu_kernel(
    gate_up, out, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """Fill one piece of a row; grid (T, pieces of F).

    Reads gate_up [PARTS, T, 2F] (gate, then up), whose parts are added and rounded, and writes out [T, F].
    silu(gate) is rounded to the model's dtype before it is multiplied, as two separate operations would.
    """
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    at, size = row * 2 * WIDTH + column, tl.num_programs(0) * 2 * WIDTH
    gate = added(gate_up, at, inside, size, PARTS).to(dtype).to(tl.float32)
    up = added(gate_up, at + WIDTH, inside, size, PARTS).to(dtype).to(tl.float32)
    rounded = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * WIDTH + column, (rounded * up).to(dtype), mask=inside)


def swiglu(gate_up_TF: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return silu(gate) · up [T, F] of gate and up side by side [T, 2F].

    They may come in float32 parts [S, T, 2F], which are added and rounded to ``dtype``.
    """
    tokens, width = gate_up_TF.shape[-2], gate_up_TF.shape[-1] // 2
    out_TF = torch.empty(tokens, width, device=gate_up_TF.device, dtype=dtype or gate_up_TF.dtype)
    _swiglu_kernel[(tokens, triton.cdiv(width, BLOCK))](
        gate_up_TF,
        out_TF,
        PARTS=gate_up_TF[..., 0, 0].numel(),
        WIDTH=width,
        BLOCK=BLOCK,
        num_warps=4,
        **launched_early(gate_up_TF.device),
    )
    return out_TF
