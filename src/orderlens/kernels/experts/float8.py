# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped products with float8 weights (e4m3) and 16-bit tokens, without a 16-bit copy of the weights.

For GPUs other than a Hopper, and for widths that ``float8_hopper`` does not support.

A tile of weights is widened to the tokens' dtype in registers, on the way from shared memory to the matrix
unit. This is exact: only the weights are rounded. Two numbers share a 16-bit word (``interleaved``), one of
the first and one of the second half of a run of columns, so that a word is widened without moving bytes.

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
from orderlens.kernels.gpu import divisor
from orderlens.kernels.shapes import StackedExperts, run_width

_TO_BFLOAT16 = tl.constexpr("""{
.reg .b32 a, b, scale, zero;
mov.b32 scale, 0x7b807b80;
mov.b32 zero, 0x80008000;
shl.b32 a, $2, 8;
shl.b32 b, $2, 4;
and.b32 b, b, 0x07f007f0;
lop3.b32 a, a, 0x80008000, b, 0xea;
fma.rn.bf16x2 $0, a, scale, zero;
shr.u32 b, $2, 4;
and.b32 b, b, 0x07f007f0;
lop3.b32 a, $2, 0x80008000, b, 0xea;
fma.rn.bf16x2 $1, a, scale, zero;
}""")
"""Widens two words: their lower, then their upper bytes. Sign, exponent and mantissa in place, times 2¹²⁰."""


@triton.jit
def _widened(bits, like):
    """Return float8 bits (0 … 255) in the dtype of ``like``: bits in place, the bias by a power of two."""
    word = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    return (word.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(like.dtype)


@triton.jit
def _add_product(
    acc, words, x_at, real, scales, row, k, WIDTH: tl.constexpr, SCALES: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return acc + weights · tokens of one step; with several scales per row they are applied here.

    Both halves of the columns from ``k`` on are in ``words`` [BLOCK_N, BLOCK_K / 2].
    """
    first = tl.trans(tl.load(x_at + k, mask=real[:, None], other=0.0))
    second = tl.trans(tl.load(x_at + k + BLOCK_K // 2, mask=real[:, None], other=0.0))
    if PACKED:  # the same for bfloat16, with a third of the instructions
        low, high = tl.inline_asm_elementwise(
            _TO_BFLOAT16, "=r,=r,r", [words], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    else:
        bits = words.to(tl.int32)
        low, high = _widened(bits & 0xFF, first), _widened((bits >> 8) & 0xFF, first)
    if SCALES == 1:
        acc = tl.dot(low, first, acc, input_precision="ieee")
        acc = tl.dot(high, second, acc, input_precision="ieee")
    else:
        part = tl.dot(low, first, input_precision="ieee")
        part = tl.dot(high, second, part, input_precision="ieee")
        acc += part * _row_scales(scales, row, k, WIDTH, SCALES, BLOCK_N)
    return acc


@triton.jit
def _row_scales(scales, row, k, WIDTH: tl.constexpr, SCALES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the scales [BLOCK_N, 1] of the rows from ``row`` on at column ``k``; scales are [·, SCALES]."""
    n = (row + tl.arange(0, BLOCK_N)).to(tl.int64)
    return tl.load(scales + n * SCALES + k // (WIDTH // SCALES))[:, None]


@triton.jit
def _gate_up_tile(
    x, weights, scales, inner, order, low, high, row, n,
    PER_TOKEN: tl.constexpr, C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, TILED: tl.constexpr, SCALES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Compute up to ROWS places against BLOCK_N weight rows from ``row`` on (gate; up: F further)."""
    half: tl.constexpr = BLOCK_K // 2
    place = low + tl.arange(0, ROWS)
    real = place < high
    token = (tl.load(order + place, mask=real, other=0) // PER_TOKEN).to(tl.int64)
    x_at = x + (token * C)[:, None] + tl.arange(0, half)[None, :]
    gate = tl.zeros((BLOCK_N, ROWS), tl.float32)
    up = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for c in range(0, C, BLOCK_K):
        gates = weight_tile(weights, row, c // 2, C // 2, BLOCK_N, half, TILED)
        ups = weight_tile(weights, row + F, c // 2, C // 2, BLOCK_N, half, TILED)
        gate = _add_product(gate, gates, x_at, real, scales, row, c, C, SCALES, PACKED, BLOCK_N, BLOCK_K)
        up = _add_product(up, ups, x_at, real, scales, row + F, c, C, SCALES, PACKED, BLOCK_N, BLOCK_K)
    if SCALES == 1:
        gate *= _row_scales(scales, row, 0, C, SCALES, BLOCK_N)
        up *= _row_scales(scales, row + F, 0, C, SCALES, BLOCK_N)
    result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
    tl.store(inner + (place.to(tl.int64) * F)[None, :] + n[:, None], result, mask=real[None, :])


@triton.jit
def _gate_up_kernel(
    x, weights, scales, inner, order, tiles, used,
    PER_TOKEN: tl.constexpr, C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, FEW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TILED: tl.constexpr, SCALES: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Compute silu(gate) · up tile by tile, as ``gate_up``; any grid.

    Reads x [T, C], weights [E·2F, C / 2] (words), scales [E·2F, S]; writes inner [A, F] in sorted order.
    Tiles with at most FEW places multiply no more than FEW.
    """
    panels: tl.constexpr = F // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * (2 * F) + panel * BLOCK_N
        low, high = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        if FEW == ROWS or high - low > FEW:
            _gate_up_tile(
                x, weights, scales, inner, order, low, high, row, n, PER_TOKEN, C, F, ROWS, BLOCK_N, BLOCK_K,
                TILED, SCALES, PACKED,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x, weights, scales, inner, order, low, high, row, n, PER_TOKEN, C, F, FEW, BLOCK_N, BLOCK_K,
                TILED, SCALES, PACKED,
            )  # fmt: skip


@triton.jit
def _down_tile(
    inner, weights, scales, out, order, low, high, row, n,
    C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILED: tl.constexpr, SCALES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Multiply up to ROWS places by the BLOCK_N weight rows from ``row`` on."""
    half: tl.constexpr = BLOCK_K // 2
    place = low + tl.arange(0, ROWS)
    real = place < high
    x_at = inner + (place.to(tl.int64) * F)[:, None] + tl.arange(0, half)[None, :]
    acc = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for f in range(0, F, BLOCK_K):
        words = weight_tile(weights, row, f // 2, F // 2, BLOCK_N, half, TILED)
        acc = _add_product(acc, words, x_at, real, scales, row, f, F, SCALES, PACKED, BLOCK_N, BLOCK_K)
    if SCALES == 1:
        acc *= _row_scales(scales, row, 0, F, SCALES, BLOCK_N)
    target = tl.load(order + place, mask=real, other=0).to(tl.int64) * C
    tl.store(out + target[None, :] + n[:, None], acc.to(out.dtype.element_ty), mask=real[None, :])


@triton.jit
def _down_kernel(
    inner, weights, scales, out, order, tiles, used,
    C: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, FEW: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, TILED: tl.constexpr, SCALES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Multiply by the down weights tile by tile, as ``down``; any grid.

    Reads inner [A, F] in sorted order, weights [E·C, F / 2] (words), scales [E·C, S]; writes out [A, C] in
    the order of assignments. Tiles with at most FEW places multiply no more than FEW.
    """
    panels: tl.constexpr = C // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * C + panel * BLOCK_N
        low, high = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        if FEW == ROWS or high - low > FEW:
            _down_tile(
                inner, weights, scales, out, order, low, high, row, n, C, F, ROWS, BLOCK_N, BLOCK_K, TILED,
                SCALES, PACKED,
            )  # fmt: skip
        else:
            _down_tile(
                inner, weights, scales, out, order, low, high, row, n, C, F, FEW, BLOCK_N, BLOCK_K, TILED,
                SCALES, PACKED,
            )  # fmt: skip


def gate_up8(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, few: int = 0) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F]; ``few`` as in ``ExpertTiling``."""
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    inner_AF = torch.empty(len(plan.order_A), F, device=x_TC.device, dtype=x_TC.dtype)
    launch = _Launch(x_TC, experts.gate_up_EFC, experts.gate_up_scale_EFS, F, plan, tiling, few)
    _gate_up_kernel[(plan.grid(F // launch.block_n, tiling.programs),)](
        *launch.arguments,
        inner_AF,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        **launch.constants,
    )
    return inner_AF


def down8(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, few: int = 0) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    width, F = experts.down_ECF.shape[1:]
    y_AC = torch.empty(len(inner_AF), width, device=inner_AF.device, dtype=inner_AF.dtype)
    launch = _Launch(inner_AF, experts.down_ECF, experts.down_scale_ECS, width, plan, tiling, few)
    _down_kernel[(plan.grid(width // launch.block_n, tiling.programs),)](
        *launch.arguments,
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        C=width,
        F=F,
        **launch.constants,
    )
    return y_AC


class _Launch:
    """What both kernels take: tokens, words of weights, scales, and constants."""

    def __init__(
        self,
        x_NK: Tensor,
        weights: Tensor,
        scales: Tensor | None,
        outputs: int,
        plan: TilePlan,
        tiling: Tiling,
        few: int,
    ) -> None:
        assert scales is not None
        width, self.block_n = x_NK.shape[1], divisor(outputs, tiling.block_n)
        block_k = run_width(width, scales.shape[-1])
        words = weights.view(-1, width).view(torch.int16)
        tiles = matrix_tiles(words, self.block_n, block_k // 2, tiling.tiled)
        self.arguments = (x_NK, tiles, scales)
        self.constants: dict[str, Any] = {
            "ROWS": plan.block_m,
            "FEW": few or plan.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": block_k,
            "TILED": tiling.tiled,
            "SCALES": scales.shape[-1],
            "PACKED": x_NK.dtype == torch.bfloat16 and x_NK.device.type != "cpu",
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
        }
