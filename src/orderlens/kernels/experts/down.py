# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The grouped product with the down weights over tiles of assignments, with or without a remainder.

Shape letters: C model width, F expert width, A assignments, E experts, M tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.experts.gate_up import matrix_tiles, weight_tile
from orderlens.kernels.experts.tiling import TilePlan, Tiling
from orderlens.kernels.gpu import divisor
from orderlens.kernels.shapes import StackedExperts


@triton.jit
def _inner_tile(
    inner,
    low,
    high,
    k,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Return the places low … low + ROWS − 1 of inner [A, WIDTH]; those from ``high`` on do not count."""
    if TILED:
        tile = inner.load([low, k])
    else:
        place = low + tl.arange(0, ROWS)
        at = (place.to(tl.int64) * WIDTH)[:, None] + (k + tl.arange(0, BLOCK_K))[None, :]
        tile = tl.load(inner + at, mask=(place < high)[:, None], other=0.0)
    return tile


@triton.jit
def _write_rows(out, acc, order, low, high, n, C: tl.constexpr, ROWS: tl.constexpr):
    """Store the results [n, places] of some places in the rows of their assignments."""
    place = low + tl.arange(0, ROWS)
    real = place < high
    target = tl.load(order + place, mask=real, other=0).to(tl.int64) * C
    tl.store(out + target[None, :] + n[:, None], acc.to(out.dtype.element_ty), mask=real[None, :])


@triton.jit
def _down_tile(
    inner,
    inner_more,
    weights,
    out,
    order,
    low,
    high,
    row,
    n,
    C: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Multiply up to ROWS + REST places by the BLOCK_N weight rows from ``row`` on."""
    acc = tl.zeros((BLOCK_N, ROWS), tl.float32)
    if REST == 0:
        for f in range(0, F, BLOCK_K):
            panel = weight_tile(weights, row, f, F, BLOCK_N, BLOCK_K, TILED)
            tokens = _inner_tile(inner, low, high, f, F, ROWS, BLOCK_K, TILED)
            acc = tl.dot(panel, tl.trans(tokens), acc, input_precision="ieee")
    else:
        more = tl.zeros((BLOCK_N, REST), tl.float32)
        for f in range(0, F, BLOCK_K):
            panel = weight_tile(weights, row, f, F, BLOCK_N, BLOCK_K, TILED)
            tokens = _inner_tile(inner, low, high, f, F, ROWS, BLOCK_K, TILED)
            acc = tl.dot(panel, tl.trans(tokens), acc, input_precision="ieee")
            others = _inner_tile(inner_more, low + ROWS, high, f, F, REST, BLOCK_K, TILED)
            more = tl.dot(panel, tl.trans(others), more, input_precision="ieee")
        _write_rows(out, more, order, low + ROWS, high, n, C, REST)
    _write_rows(out, acc, order, low, high, n, C, ROWS)


@triton.jit
def _down_kernel(
    inner,
    inner_more,
    weights,
    out,
    order,
    tiles,
    used,
    C: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Multiply by the down weights tile by tile; any grid.

    Reads inner [A, F] in sorted order (if TILED, descriptors of ROWS × BLOCK_K and REST × BLOCK_K; rows of
    the next expert after a tile's end are computed but not written), weights [E·C, F] (if TILED, a descriptor
    of BLOCK_N × BLOCK_K), tiles and used; writes out [A, C] in the order of assignments. Each assignment has
    its row, so that no atomics are needed: ``combine`` adds the rows in a fixed order.
    """
    panels: tl.constexpr = C // BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * C + panel * BLOCK_N
        low, high = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        if REST == 0:
            _down_tile(
                inner, inner, weights, out, order, low, high, row, n, C, F, ROWS, 0, BLOCK_N, BLOCK_K, TILED
            )
        elif high - low > ROWS:
            _down_tile(
                inner, inner_more, weights, out, order, low, high, row, n, C, F, ROWS, REST, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip
        elif high - low > REST:
            _down_tile(
                inner, inner, weights, out, order, low, high, row, n, C, F, ROWS, 0, BLOCK_N, BLOCK_K, TILED
            )
        else:
            _down_tile(
                inner_more, inner, weights, out, order, low, high, row, n, C, F, REST, 0, BLOCK_N, BLOCK_K,
                TILED,
            )  # fmt: skip


def down(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, rest: int = 0) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (by token)."""
    if tiling.specialised and not rest:
        from orderlens.kernels.experts import specialised

        if specialised.applies(experts, plan):
            return specialised.down(inner_AF, experts, plan)
    width, F = experts.down_ECF.shape[1:]
    rows, device = plan.block_m - rest, inner_AF.device
    block_n, block_k = divisor(width, tiling.block_n), divisor(F, tiling.block_k)
    y_AC = torch.empty(len(inner_AF), width, device=device, dtype=inner_AF.dtype)
    tokens, more = (matrix_tiles(inner_AF, count, block_k, tiling.tiled) for count in (rows, rest or rows))
    _down_kernel[(plan.grid(width // block_n, tiling.programs),)](
        tokens,
        more,
        matrix_tiles(experts.down_ECF.view(-1, F), block_n, block_k, tiling.tiled),
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        C=width,
        F=F,
        ROWS=rows,
        REST=rest,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        TILED=tiling.tiled,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return y_AC
