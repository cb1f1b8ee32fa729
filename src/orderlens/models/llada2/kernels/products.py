# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped matrix products over tiles of assignments: gate and up with SwiGLU, and down.

At decoding batches every expert holds a few to some hundred tokens: few make reading weights the work, many
make it arithmetic. Weights, and for the down product the tokens' rows as well, come through tensor
descriptors: one instruction moves a whole tile, so that the warps only multiply. GPUs before Hopper cannot do
that and get addresses instead. Weights are the left operand, because the matrix unit takes any number of
tokens from 16 on as the right one. A tile may hold a rest beyond its full part: 139 tokens are 128 and 32
that ride along on the same weights, not two times 128.

Shape letters: T tokens, C model width, F expert width, A assignments, E experts, M tiles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from orderlens.models.llada2.kernels.tiles import TilePlan
from orderlens.models.llada2.kernels.tiling import Tiling
from orderlens.models.llada2.weights import StackedExperts
from orderlens.models.torch.kernels.blocks import divisor
from orderlens.models.torch.kernels.early import launched_early, take_turn


@triton.jit
def _weight_tile(
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
    """Return the places low … low + ROWS − 1 of inner [A, WIDTH]; those behind ``high`` do not count."""
    if TILED:
        tile = inner.load([low, k])
    else:
        place = low + tl.arange(0, ROWS)
        at = (place.to(tl.int64) * WIDTH)[:, None] + (k + tl.arange(0, BLOCK_K))[None, :]
        tile = tl.load(inner + at, mask=(place < high)[:, None], other=0.0)
    return tile


@triton.jit
def _write_inner(inner, gate, up, place, real, n, F: tl.constexpr):
    """Store silu(gate) · up of some places; gate and up are [n, places]."""
    result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
    tl.store(inner + (place.to(tl.int64) * F)[None, :] + n[:, None], result, mask=real[None, :])


@triton.jit
def _token_rows(x, order, low, high, PER_TOKEN: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr):
    """Return the places low … low + ROWS − 1, which of them lie before ``high``, and their tokens' rows."""
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
            gate_weights = _weight_tile(weights, row, c, C, BLOCK_N, BLOCK_K, TILED)
            gate = tl.dot(gate_weights, tokens, gate, input_precision="ieee")
            up_weights = _weight_tile(weights, row + F, c, C, BLOCK_N, BLOCK_K, TILED)
            up = tl.dot(up_weights, tokens, up, input_precision="ieee")
    else:
        more, real_more, x_row_more = _token_rows(x, order, low + ROWS, high, PER_TOKEN, C, REST)
        x_at_more = x_row_more[:, None] + k
        gate_more = tl.zeros((BLOCK_N, REST), tl.float32)
        up_more = tl.zeros((BLOCK_N, REST), tl.float32)
        for c in range(0, C, BLOCK_K):
            tokens = tl.trans(tl.load(x_at + c))
            others = tl.trans(tl.load(x_at_more + c, mask=real_more[:, None], other=0.0))
            gate_weights = _weight_tile(weights, row, c, C, BLOCK_N, BLOCK_K, TILED)
            up_weights = _weight_tile(weights, row + F, c, C, BLOCK_N, BLOCK_K, TILED)
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
    EARLY: tl.constexpr,
):
    """Compute silu(gate) · up tile by tile; any grid.

    Reads x [T, C] through order [A] (assignment at each sorted place), weights [E·2F, C] (an expert's gate
    rows, then its up rows; when TILED a descriptor of BLOCK_N × BLOCK_K), tiles [M, 3] and used [1], the
    number of tiles of at most ROWS + REST places; writes inner [A, F] in sorted order. Gate and up run in one
    loop: the tile of tokens is loaded once for both. A loop of its own for every kind of tile keeps each one
    pipelined.
    """
    take_turn(EARLY)
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
            panel = _weight_tile(weights, row, f, F, BLOCK_N, BLOCK_K, TILED)
            tokens = _inner_tile(inner, low, high, f, F, ROWS, BLOCK_K, TILED)
            acc = tl.dot(panel, tl.trans(tokens), acc, input_precision="ieee")
    else:
        more = tl.zeros((BLOCK_N, REST), tl.float32)
        for f in range(0, F, BLOCK_K):
            panel = _weight_tile(weights, row, f, F, BLOCK_N, BLOCK_K, TILED)
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
    EARLY: tl.constexpr,
):
    """Multiply by the down weights tile by tile; any grid.

    Reads inner [A, F] in sorted order (when TILED descriptors of ROWS × BLOCK_K and REST × BLOCK_K; rows of
    the next expert behind a tile's end are computed and not written), weights [E·C, F] (likewise, of
    BLOCK_N × BLOCK_K), tiles and used; writes out [A, C] in the order of assignments. Scattering rows here,
    one per assignment, needs no atomics: ``combine`` adds them in a fixed order.
    """
    take_turn(EARLY)
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


def gate_up(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, rest: int = 0) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F].

    Args:
        x_TC: the tokens.
        experts: their weights.
        plan: sorted assignments in tiles.
        tiling: launch parameters.
        rest: how many of a tile's places ride along on the others' weights; both parts are powers of two.
    """
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    block_n, block_k = divisor(F, tiling.block_n), divisor(width, tiling.block_k)
    weights = _matrix(experts.gate_up_EFC.view(-1, width), block_n, block_k, tiling.tiled)
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
        **launched_early(x_TC.device),
    )
    return inner_AF


def down(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling, rest: int = 0) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    if tiling.specialised and not rest:
        from orderlens.models.llada2.kernels import specialised

        if specialised.applies(experts, plan):
            return specialised.down(inner_AF, experts, plan)
    width, F = experts.down_ECF.shape[1:]
    rows, device = plan.block_m - rest, inner_AF.device
    block_n, block_k = divisor(width, tiling.block_n), divisor(F, tiling.block_k)
    y_AC = torch.empty(len(inner_AF), width, device=device, dtype=inner_AF.dtype)
    tokens, more = (_matrix(inner_AF, count, block_k, tiling.tiled) for count in (rows, rest or rows))
    _down_kernel[(plan.grid(width // block_n, tiling.programs),)](
        tokens,
        more,
        _matrix(experts.down_ECF.view(-1, F), block_n, block_k, tiling.tiled),
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
        **launched_early(device),
    )
    return y_AC


def _matrix(matrix: Tensor, rows: int, columns: int, tiled: bool) -> Any:
    """Return a kernel's argument: a descriptor of tiles of this size, or the matrix itself."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if tiled else matrix
