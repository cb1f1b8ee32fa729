# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels that pass over each row once: residual addition with RMS norm, and SwiGLU.

Shape letters: T tokens, C model width, F feed-forward width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SWIGLU_BLOCK = 1024
"""Numbers of a row per program of SwiGLU."""


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
    HAS_DELTA: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add and normalise one row; grid (T,), BLOCK the next power of two of C.

    Reads x [T, C], delta [T, C] and weight [C]; writes total [T, C] (only with delta) and out [T, C].
    The sum is rounded before its square is taken: the residual stream holds the rounded value.
    """
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += tl.load(delta + row + column, mask=inside, other=0.0).to(tl.float32)
        value = value.to(dtype).to(tl.float32)
        tl.store(total + row + column, value.to(dtype), mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row + column, scaled_rms(value, scale, eps, WIDTH, dtype).to(dtype), mask=inside)


def add_rms_norm(
    x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + delta (x itself without delta) and its scaled RMS norm."""
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
        HAS_DELTA=delta_TC is not None,
        WIDTH=width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return total_TC, normed_TC


@triton.jit
def _swiglu_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Fill one piece of a row; grid (T, pieces of F).

    Reads gate_up [T, 2F] (gate, then up) and writes out [T, F].
    silu(gate) is rounded to the model's dtype before it is multiplied, as two separate operations would do.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    at = row * 2 * WIDTH + column
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    rounded = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * WIDTH + column, (rounded * up).to(dtype), mask=inside)


def swiglu(gate_up_TF: Tensor) -> Tensor:
    """Return silu(gate) · up [T, F] of concatenated gate and up [T, 2F]."""
    tokens, width = len(gate_up_TF), gate_up_TF.shape[1] // 2
    out_TF = gate_up_TF.new_empty(tokens, width)
    _swiglu_kernel[(tokens, triton.cdiv(width, SWIGLU_BLOCK))](
        gate_up_TF,
        out_TF,
        WIDTH=width,
        BLOCK=SWIGLU_BLOCK,
        num_warps=4,
    )
    return out_TF
