# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels that pass over each row once: residual addition with RMS norm, and SwiGLU.

Shape letters: T tokens, C model width, F feed-forward width, S parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.few import added

SWIGLU_BLOCK = 1024
"""Numbers of a row that one program of SwiGLU takes."""


@triton.jit
def scaled_rms(x, weight, eps, WIDTH: tl.constexpr, dtype: tl.constexpr):
    """Normalise float32 ``x``, round to ``dtype``, then scale: the published order of rounding."""
    mean_square = tl.sum(x * x, axis=0) / WIDTH
    rounded = (x * tl.rsqrt(mean_square + eps)).to(dtype)
    return rounded.to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _add_norm_kernel(
    x,
    delta,
    weight,
    total,
    out,
    eps,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add and normalise one row; grid (T,), BLOCK the next power of two of C.

    Reads x [T, C], delta [PARTS, T, C] and weight [C]; writes total [T, C] (only with delta) and out [T, C].
    Parts are added and rounded to the model's dtype, as a product of one piece would be. So is the sum before
    its square is taken: the residual stream holds the rounded value.
    """
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        change = added(delta, row + column, inside, tl.num_programs(0) * WIDTH, PARTS)
        value += change.to(dtype).to(tl.float32)
        value = value.to(dtype).to(tl.float32)
        tl.store(total + row + column, value.to(dtype), mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row + column, scaled_rms(value, scale, eps, WIDTH, dtype).to(dtype), mask=inside)


def add_rms_norm(
    x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + delta (x itself without delta) and its scaled RMS norm.

    Delta may come in float32 parts [S, T, C], which are added and rounded first.
    """
    rows, width = x_TC.shape
    normed_TC = torch.empty_like(x_TC)
    total_TC = x_TC if delta_TC is None else torch.empty_like(x_TC)
    block = triton.next_power_of_2(width)
    _add_norm_kernel[(rows,)](
        x_TC,
        x_TC if delta_TC is None else delta_TC,
        weight_C,
        total_TC,
        normed_TC,
        eps,
        PARTS=0 if delta_TC is None else delta_TC.numel() // x_TC.numel(),
        WIDTH=width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return total_TC, normed_TC


@triton.jit
def _swiglu_kernel(gate_up, out, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Fill one piece of a row; grid (T, pieces of F).

    Reads gate_up [PARTS, T, 2F] (gate, then up), whose parts are added and rounded, and writes out [T, F].
    silu(gate) is rounded to the model's dtype before it is multiplied, as two separate operations would.
    """
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
    _swiglu_kernel[(tokens, triton.cdiv(width, SWIGLU_BLOCK))](
        gate_up_TF,
        out_TF,
        PARTS=gate_up_TF[..., 0, 0].numel(),
        WIDTH=width,
        BLOCK=SWIGLU_BLOCK,
        num_warps=4,
    )
    return out_TF
