# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The grouped product with gate and up weights, and SwiGLU, over tiles of assignments.

In decoding, an expert has from a few to several hundred tokens: with few the product is memory-bound, with
many it is compute-bound. Weights are the left operand, because tensor cores accept any number of tokens from
16 on as the right one. A tile may have a rest after its full part: 139 tokens are computed as 128 + 32 with
one read of the weights, not as 2 × 128.

Shape letters: T tokens, C model width, F expert width, A assignments, E experts, M tiles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from orderlens.kernels.experts.tiling import TilePlan, Tiling
from orderlens.kernels.gpu import divisor
from orderlens.kernels.shapes import StackedExperts


@triton.jit
def weight_tile(
    weights,
    row,
    k,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Return the BLOCK_N rows from ``row`` on and BLOCK_K columns from ``k`` on of weights [·, WIDTH]."""
    if TILED:
        tile = weights.load([row, k])
    else:
        n = (row + tl.arange(0, BLOCK_N)).to(tl.int64)
        tile = tl.load(weights + (n * WIDTH)[:, None] + (k + tl.arange(0, BLOCK_K))[None, :])
    return tile


def matrix_tiles(matrix: Tensor, rows: int, columns: int, tiled: bool) -> Any:
    """Return a kernel's argument: a tensor descriptor with tiles of this size, or the matrix itself."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if tiled else matrix


@triton.jit
def _write_inner(inner, gate, up, place, real, n, F: tl.constexpr):
    """Store silu(gate) · up of some places; gate and up are [n, places]."""
    result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
    tl.store(inner + (place.to(tl.int64) * F)[None, :] + n[:, None], result, mask=real[None, :])


@triton.jit
def _token_rows(x, order, low, high, PER_TOKEN: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr):
    """Return the places low … low + ROWS − 1, which of them are below ``high``, and their tokens' rows."""
    place = low + tl.arange(0, ROWS)
    real = place < high
    token = (tl.load(order + place, mask=real, other=0) // PER_TOKEN).to(tl.int64)
    return place, real, x + token * C


@triton.jit
def _gate_up_tile(
    x,
    weights,
    inner,
    order,
    low,
    high,
    row,
    n,
    PER_TOKEN: tl.constexpr,
    C: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Compute up to ROWS + REST places against BLOCK_N weight rows from ``row`` on (gate; up: F further)."""
    place, real, x_row = _token_rows(x, order, low, high, PER_TOKEN, C, ROWS)
    k = tl.arange(0, BLOCK_K)[None, :]
    x_at = x_row[:, None] + k
    gate = tl.zeros((BLOCK_N, ROWS), tl.float32)
    up = tl.zeros((BLOCK_N, ROWS), tl.float32)
    if REST == 0:
        for c in range(0, C, BLOCK_K):
            tokens = tl.trans(tl.load(x_at + c, mask=real[:, None], other=0.0))
            gate_weights = weight_tile(weights, row, c, C, BLOCK_N, BLOCK_K, TILED)
            gate = tl.dot(gate_weights, tokens, gate, input_precision="ieee")
            up_weights = weight_tile(weights, row + F, c, C, BLOCK_N, BLOCK_K, TILED)
            up = tl.dot(up_weights, tokens, up, input_precision="ieee")
    else:
        more, real_more, x_row_more = _token_rows(x, order, low + ROWS, high, PER_TOKEN, C, REST)
        x_at_more = x_row_more[:, None] + k
        gate_more = tl.zeros((BLOCK_N, REST), tl.float32)
        up_more = tl.zeros((BLOCK_N, REST), tl.float32)
        for c in range(0, C, BLOCK_K):
            tokens = tl.trans(tl.load(x_at + c))
            others = tl.trans(tl.load(x_at_more + c, mask=real_more[:, None], other=0.0))
            gate_weights = weight_tile(weights, row, c, C, BLOCK_N, BLOCK_K, TILED)
            up_weights = weight_tile(weights, row + F, c, C, BLOCK_N, BLOCK_K, TILED)
            gate = tl.dot(gate_weights, tokens, gate, input_precision="ieee")
            up = tl.dot(up_weights, tokens, up, input_precision="ieee")
            gate_more = tl.dot(gate_weights, others, gate_more, input_precision="ieee")
            up_more = tl.dot(up_weights, others, up_more, input_precision="ieee")
        _write_inner(inner, gate_more, up_more, more, real_more, n, F)
    _write_inner(inner, gate, up, place, real, n, F)


@triton.jit
def _gate_up_kernel(
    x,
    weights,
    inner,
    order,
    tiles,
    used,
    PER_TOKEN: tl.constexpr,
    C: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Compute silu(gate) · up tile by tile; any grid.

    Reads x [T, C] through order [A] (assignment at each sorted place), weights [E·2F, C] (an expert's gate
    rows, then its up rows; if TILED, a descriptor of BLOCK_N × BLOCK_K), tiles [M, 3] and used [1], the
    number of tiles of at most ROWS + REST places; writes inner [A, F] in sorted order. Gate and up share one
    loop, so that the tile of tokens is loaded once. Each kind of tile has a separate loop, so that the
    compiler can pipeline it.
    """
    panels: tl.constexpr = F // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * (2 * F) + panel * BLOCK_N
        low, high = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        if REST == 0:
            _gate_up_tile(
                x, weights, inner, order, low, high, row, n, PER_TOKEN, C, F, ROWS, 0, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip
        elif high - low > ROWS:
            _gate_up_tile(
                x, weights, inner, order, low, high, row, n, PER_TOKEN, C, F, ROWS, REST, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip
        elif high - low > REST:
            _gate_up_tile(
                x, weights, inner, order, low, high, row, n, PER_TOKEN, C, F, ROWS, 0, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip
        else:
            _gate_up_tile(
                x, weights, inner, order, low, high, row, n, PER_TOKEN, C, F, REST, 0, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip


def gate_up(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, rest: int = 0) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F].

    Args:
        x_TC: the tokens.
        experts: their weights.
        plan: sorted assignments in tiles.
        tiling: launch parameters.
        rest: number of a tile's places after its full part; both parts are powers of two.
    """
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    block_n, block_k = divisor(F, tiling.block_n), divisor(width, tiling.block_k)
    weights = matrix_tiles(experts.gate_up_EFC.view(-1, width), block_n, block_k, tiling.tiled)
    inner_AF = torch.empty(len(plan.order_A), F, device=x_TC.device, dtype=x_TC.dtype)
    _gate_up_kernel[(plan.grid(F // block_n, tiling.programs),)](
        x_TC,
        weights,
        inner_AF,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        ROWS=plan.block_m - rest,
        REST=rest,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        TILED=tiling.tiled,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return inner_AF
