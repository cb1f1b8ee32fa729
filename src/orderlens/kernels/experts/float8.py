# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped products with float8 weights (e4m3) and bfloat16 tokens, without a bfloat16 copy of the weights.

Where the matrix unit multiplies float8, a row of tokens is split: a float8 number has 4 significant bits and
a bfloat16 number 8, so x ≈ factor · (high + low), each part in float8, up to 2⁻⁹ of each number. Float8 is
multiplied twice as fast, so both parts cost what one bfloat16 product costs, and weights go from memory to
the unit unchanged. On other GPUs a tile of weights is widened to the tokens' dtype in registers.

Weights have float32 scales, one per row or one per row and group of its columns. Sums are float32.

Shape letters: T tokens, C model width, F expert width, A assignments, E experts, M tiles, S scales per row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.experts.gate_up import matrix_tiles, weight_tile
from orderlens.kernels.experts.tiling import TilePlan, Tiling
from orderlens.kernels.gpu import divisor, gpu_of
from orderlens.kernels.shapes import StackedExperts

LARGEST = 448.0
"""The largest float8 number (e4m3)."""


@triton.jit
def _rounded(x):
    """Return float32 numbers rounded to what float8 (e4m3) holds: 4 significant bits, steps of 2⁻⁹ near 0.

    By arithmetic: Triton 3.6 drops a conversion to float8 and back.
    """
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    fine = (x + 24576.0) - 24576.0
    return tl.where(tl.abs(x) < 0.015625, fine, bits.to(tl.float32, bitcast=True))


@triton.jit
def _split_kernel(x, parts, scale, K: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    """Split row x [K] into parts [2, K] and a factor; grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < K
    values = tl.load(x + row * K + k, mask=inside, other=0.0).to(tl.float32)
    factor = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-30) / LARGEST
    scaled = values / factor
    high = _rounded(scaled)
    tl.store(parts + row * 2 * K + k, high.to(parts.dtype.element_ty), mask=inside)
    tl.store(parts + row * 2 * K + K + k, (scaled - high).to(parts.dtype.element_ty), mask=inside)
    tl.store(scale + row, factor)


def split_rows(x_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return both float8 parts of every row [N, 2K], high part first, and the factors [N]."""
    count, width = x_NK.shape
    parts = torch.empty(count, 2 * width, device=x_NK.device, dtype=torch.float8_e4m3fn)
    scale_N = torch.empty(count, device=x_NK.device, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    warps = min(8, max(1, block // 256))
    _split_kernel[(count,)](x_NK, parts, scale_N, K=width, BLOCK=block, LARGEST=LARGEST, num_warps=warps)
    return parts, scale_N


@triton.jit
def _widened(tile):
    """Return float8 bits (uint8) as float32: exponent and mantissa in place, the bias by a power of two."""
    bits = tile.to(tl.int32)
    word = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    return word.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def _row_scales(scales, row, k, WIDTH: tl.constexpr, SCALES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the scales [BLOCK_N, 1] of the rows from ``row`` on at column ``k``; scales are [·, SCALES]."""
    n = (row + tl.arange(0, BLOCK_N)).to(tl.int64)
    return tl.load(scales + n * SCALES + k // (WIDTH // SCALES))[:, None]


@triton.jit
def _add_product(
    acc, weights, x_at, real, scales, row, k, WIDTH: tl.constexpr, SCALES: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return acc + weights · tokens of one step; with several scales per row they are applied here.

    The matrix unit adds float8 products with 14 bits only, so each step has a separate sum.
    """
    tokens = tl.trans(tl.load(x_at + k, mask=real[:, None], other=0.0))
    if SPLIT:
        more = tl.trans(tl.load(x_at + WIDTH + k, mask=real[:, None], other=0.0))
        part = tl.dot(weights, more, tl.dot(weights, tokens))
    else:
        part = tl.dot(_widened(weights).to(tokens.dtype), tokens, input_precision="ieee")
    if SCALES > 1:
        part *= _row_scales(scales, row, k, WIDTH, SCALES, BLOCK_N)
    return acc + part


@triton.jit
def _rows_of(x, token, WIDTH: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return addresses of the first BLOCK_K numbers of some rows of x."""
    return (
        x + (token.to(tl.int64) * (2 * WIDTH if SPLIT else WIDTH))[:, None] + tl.arange(0, BLOCK_K)[None, :]
    )


@triton.jit
def _finished(acc, scales, factors, row, token, real, WIDTH: tl.constexpr, SCALES: tl.constexpr,
              SPLIT: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Return sums times their rows' scales (if there is one per row) and their tokens' factors."""
    if SCALES == 1:
        acc *= _row_scales(scales, row, 0, WIDTH, SCALES, BLOCK_N)
    if SPLIT:
        acc *= tl.load(factors + token, mask=real, other=0.0)[None, :]
    return acc


@triton.jit
def _gate_up_kernel(
    x, factors, weights, scales, inner, order, tiles, used,
    PER_TOKEN: tl.constexpr, C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, TILED: tl.constexpr, SCALES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute silu(gate) · up tile by tile, as ``gate_up``; any grid.

    Reads x [T, 2C] (float8 parts, with factors [T]) or [T, C], weights [E·2F, C], scales [E·2F, S]; writes
    inner [A, F] in sorted order.
    """
    panels: tl.constexpr = F // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * (2 * F) + panel * BLOCK_N
        place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, ROWS)
        real = place < tl.load(tiles + tile * 3 + 2)
        token = tl.load(order + place, mask=real, other=0) // PER_TOKEN
        x_at = _rows_of(x, token, C, SPLIT, BLOCK_K)
        gate = tl.zeros((BLOCK_N, ROWS), tl.float32)
        up = tl.zeros((BLOCK_N, ROWS), tl.float32)
        for c in range(0, C, BLOCK_K):
            gates = weight_tile(weights, row, c, C, BLOCK_N, BLOCK_K, TILED)
            ups = weight_tile(weights, row + F, c, C, BLOCK_N, BLOCK_K, TILED)
            gate = _add_product(gate, gates, x_at, real, scales, row, c, C, SCALES, SPLIT, BLOCK_N)
            up = _add_product(up, ups, x_at, real, scales, row + F, c, C, SCALES, SPLIT, BLOCK_N)
        gate = _finished(gate, scales, factors, row, token, real, C, SCALES, SPLIT, BLOCK_N)
        up = _finished(up, scales, factors, row + F, token, real, C, SCALES, SPLIT, BLOCK_N)
        result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        tl.store(inner + (place.to(tl.int64) * F)[None, :] + n[:, None], result, mask=real[None, :])


@triton.jit
def _down_kernel(
    inner, factors, weights, scales, out, order, tiles, used,
    C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILED: tl.constexpr, SCALES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Multiply by the down weights tile by tile, as ``down``; any grid.

    Reads inner [A, 2F] (float8 parts, with factors [A]) or [A, F] in sorted order, weights [E·C, F], scales
    [E·C, S]; writes out [A, C] in the order of assignments.
    """
    panels: tl.constexpr = C // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * C + panel * BLOCK_N
        place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, ROWS)
        real = place < tl.load(tiles + tile * 3 + 2)
        x_at = _rows_of(inner, tl.where(real, place, 0), F, SPLIT, BLOCK_K)
        acc = tl.zeros((BLOCK_N, ROWS), tl.float32)
        for f in range(0, F, BLOCK_K):
            panel_weights = weight_tile(weights, row, f, F, BLOCK_N, BLOCK_K, TILED)
            acc = _add_product(acc, panel_weights, x_at, real, scales, row, f, F, SCALES, SPLIT, BLOCK_N)
        acc = _finished(acc, scales, factors, row, place, real, F, SCALES, SPLIT, BLOCK_N)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        target = tl.load(order + place, mask=real, other=0).to(tl.int64) * C
        tl.store(out + target[None, :] + n[:, None], acc.to(out.dtype.element_ty), mask=real[None, :])


def gate_up8(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F]."""
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    inner_AF = torch.empty(len(plan.order_A), F, device=x_TC.device, dtype=x_TC.dtype)
    launch = _Launch(x_TC, experts.gate_up_EFC, experts.gate_up_scale_EFS, F, tiling)
    _gate_up_kernel[(plan.grid(F // launch.block_n, tiling.programs),)](
        *launch.arguments,
        inner_AF,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        ROWS=plan.block_m,
        **launch.constants,
    )
    return inner_AF


def down8(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    width, F = experts.down_ECF.shape[1:]
    y_AC = torch.empty(len(inner_AF), width, device=inner_AF.device, dtype=inner_AF.dtype)
    launch = _Launch(inner_AF, experts.down_ECF, experts.down_scale_ECS, width, tiling)
    _down_kernel[(plan.grid(width // launch.block_n, tiling.programs),)](
        *launch.arguments,
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        C=width,
        F=F,
        ROWS=plan.block_m,
        **launch.constants,
    )
    return y_AC


class _Launch:
    """What both kernels take: tokens, whole or split, weights, scales, and constants."""

    def __init__(
        self, x_NK: Tensor, weights: Tensor, scales: Tensor | None, outputs: int, tiling: Tiling
    ) -> None:
        assert scales is not None
        split, width = gpu_of(x_NK.device).float8, x_NK.shape[1]
        self.block_n = divisor(outputs, tiling.block_n)
        block_k = divisor(width // scales.shape[-1], tiling.block_k)
        rows, factors = split_rows(x_NK) if split else (x_NK, None)
        flat = weights.view(-1, width)
        tiles = matrix_tiles(flat if split else flat.view(torch.uint8), self.block_n, block_k, tiling.tiled)
        self.arguments = (rows, factors, tiles, scales)
        self.constants: dict[str, Any] = {
            "BLOCK_N": self.block_n,
            "BLOCK_K": block_k,
            "TILED": tiling.tiled,
            "SCALES": scales.shape[-1],
            "SPLIT": split,
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
        }
