# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped matrix products for many tokens per expert: bound by arithmetic, not by reading weights.

The counterparts of ``experts`` with tiles of 128 tokens. Weights, and for the down product the tokens' rows
as well, come through tensor descriptors: one instruction moves a whole tile, so that the warps only multiply.
Programs may stay and take one tile after the other (``programs``): the first loads of the next tile are under
way while the last one is written. Expects the tiles without gaps, and their number on the device.

Shape letters: as in ``experts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from orderlens.models.llada2.kernels.tiles import TilePlan
from orderlens.models.llada2.weights import StackedExperts


@dataclass(frozen=True, slots=True)
class WideTiling:
    """Launch parameters of one grouped product.

    Attributes:
        block_n: columns of the result per tile (for gate and up, of each).
        block_k: numbers summed per step.
        warps: per program.
        stages: steps that are loaded ahead.
        programs: per multiprocessor, when they stay; 0 launches one program per tile.
        flatten: let loads of the next tile begin before this one is written (the compiler joins both loops).
        swap: weights are the left operand.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0
    flatten: bool = False
    swap: bool = False


@triton.jit
def _product(left, right, acc, SWAP: tl.constexpr):
    """Add tokens × weightsᵀ, or its transpose when SWAP."""
    if SWAP:
        acc = tl.dot(right, tl.trans(left), acc, input_precision="ieee")
    else:
        acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
    return acc


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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """Compute silu(gate) · up tile by tile; any grid.

    Reads x [T, C] through order [A], weights [E·2F, C] as a descriptor of BLOCK_N × BLOCK_K, tiles [M, 3] and
    used [1], the number of tiles; writes inner [A, F] in sorted order.
    """
    panels: tl.constexpr = F // BLOCK_N
    rows: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    columns: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    for item in range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0)):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * (2 * F) + panel * BLOCK_N
        place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BLOCK_M)
        real = place < tl.load(tiles + tile * 3 + 2)
        token = (tl.load(order + place, mask=real, other=0) // PER_TOKEN).to(tl.int64)
        x_at = x + (token * C)[:, None] + tl.arange(0, BLOCK_K)[None, :]
        gate = tl.zeros([rows, columns], tl.float32)
        up = tl.zeros([rows, columns], tl.float32)
        for c in range(0, C, BLOCK_K):
            tokens = tl.load(x_at + c, mask=real[:, None], other=0.0)
            gate = _product(tokens, weights.load([row, c]), gate, SWAP)
            up = _product(tokens, weights.load([row + F, c]), up, SWAP)
        result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        at = place.to(tl.int64) * F
        if SWAP:
            tl.store(inner + at[None, :] + n[:, None], result, mask=real[None, :])
        else:
            tl.store(inner + at[:, None] + n[None, :], result, mask=real[:, None])


@triton.jit
def _down_kernel(
    inner,
    weights,
    out,
    order,
    tiles,
    used,
    C: tl.constexpr,
    F: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """Multiply by the down weights tile by tile; any grid.

    Reads inner [A, F] (descriptor of BLOCK_M × BLOCK_K; rows of the next expert behind a tile's end are
    computed and not written), weights [E·C, F] (descriptor of BLOCK_N × BLOCK_K), tiles and used; writes
    out [A, C] in the order of assignments.
    """
    panels: tl.constexpr = C // BLOCK_N
    for item in tl.range(tl.program_id(0), tl.load(used) * panels, tl.num_programs(0), flatten=FLATTEN):
        tile, panel = item // panels, item % panels
        row = tl.load(tiles + tile * 3) * C + panel * BLOCK_N
        low, high = tl.load(tiles + tile * 3 + 1), tl.load(tiles + tile * 3 + 2)
        acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
        for f in range(0, F, BLOCK_K):
            acc = _product(inner.load([low, f]), weights.load([row, f]), acc, SWAP)
        place = low + tl.arange(0, BLOCK_M)
        real = place < high
        target = tl.load(order + place, mask=real, other=0).to(tl.int64) * C
        n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
        result = acc.to(out.dtype.element_ty)
        if SWAP:
            tl.store(out + target[None, :] + n[:, None], result, mask=real[None, :])
        else:
            tl.store(out + target[:, None] + n[None, :], result, mask=real[:, None])


def gate_up_wide(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: WideTiling) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F]."""
    assert plan.used is not None
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    inner_AF = torch.empty(len(plan.order_A), F, device=x_TC.device, dtype=x_TC.dtype)
    _gate_up_kernel[(_grid(plan, F // tiling.block_n, tiling, x_TC.device),)](
        x_TC,
        TensorDescriptor.from_tensor(experts.gate_up_EFC.view(-1, width), [tiling.block_n, tiling.block_k]),
        inner_AF,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        BLOCK_M=plan.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        SWAP=tiling.swap,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return inner_AF


def down_wide(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: WideTiling) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    assert plan.used is not None
    width, F = experts.down_ECF.shape[1:]
    y_AC = torch.empty(len(inner_AF), width, device=inner_AF.device, dtype=inner_AF.dtype)
    _down_kernel[(_grid(plan, width // tiling.block_n, tiling, inner_AF.device),)](
        TensorDescriptor.from_tensor(inner_AF, [plan.block_m, tiling.block_k]),
        TensorDescriptor.from_tensor(experts.down_ECF.view(-1, F), [tiling.block_n, tiling.block_k]),
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        C=width,
        F=F,
        BLOCK_M=plan.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        SWAP=tiling.swap,
        FLATTEN=tiling.flatten,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return y_AC


def _grid(plan: TilePlan, panels: int, tiling: WideTiling, device: torch.device) -> int:
    """Return the number of programs: one per possible tile, or as many as stay resident."""
    most = len(plan.tiles_M3) * panels
    return min(most, tiling.programs * _multiprocessors(device)) if tiling.programs else most


@lru_cache(maxsize=8)
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2  # Triton's interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def divides(tiling: WideTiling, n_rows: int, n_summed: int) -> bool:
    """Return whether the tiles divide a weight matrix [rows, summed]."""
    return n_rows % tiling.block_n == 0 and n_summed % tiling.block_k == 0
