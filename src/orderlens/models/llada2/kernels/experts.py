# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped matrix products over tiles of assignments: gate and up with SwiGLU, down, and the weighted sum.

At decoding batches every expert holds a few to a hundred tokens and the work is reading weights, so a
program streams one panel of an expert's weights past a small tile of tokens. Neighbouring programs share the
tile's tokens and, for large experts, the panel: both come from L2. With ``swap`` the weights are the left
operand of the product, which suits the matrix unit when a tile holds fewer than 64 tokens.

The down product writes one row per assignment; ``combine`` adds a token's rows in a fixed order (so results
do not vary), adds the residual and applies the next norm.

Shape letters: T tokens, C model width, F expert width, K experts per token, A = T·K assignments, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.models.llada2.kernels.segments import plan_segments
from orderlens.models.llada2.kernels.tiles import TilePlan, close_gaps, plan_tiles
from orderlens.models.llada2.kernels.wide import WideTiling, divides, down_wide, gate_up_wide
from orderlens.models.llada2.weights import StackedExperts
from orderlens.models.torch.kernels.norm import scaled_rms


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch parameters of one grouped product."""

    block_n: int
    block_k: int
    warps: int
    stages: int
    swap: bool = False


@dataclass(frozen=True, slots=True)
class ExpertTiling:
    """Tokens per tile and the launch parameters of both products.

    Where the tiles divide an expert's shape, a product with a wide tiling uses the kernels of ``wide``.
    """

    block_m: int
    gate_up: Tiling
    down: Tiling
    wide_gate_up: WideTiling | None = None
    wide_down: WideTiling | None = None


def _wide(gate_up: WideTiling) -> ExpertTiling:
    """Return tiles of 128 tokens, with plain products where the wide ones do not divide the shape."""
    down = WideTiling(128, 64, 4, 3, programs=2, flatten=True)
    return ExpertTiling(128, Tiling(128, 64, 8, 4), Tiling(256, 64, 8, 3), gate_up, down)


TILINGS = (
    (10.0, ExpertTiling(16, Tiling(64, 128, 4, 3, True), Tiling(128, 128, 4, 3, True))),
    (22.0, ExpertTiling(32, Tiling(64, 64, 4, 4, True), Tiling(128, 64, 4, 4, True))),
    (64.0, ExpertTiling(64, Tiling(64, 64, 4, 4), Tiling(128, 64, 4, 4))),
    (200.0, _wide(WideTiling(128, 64, 8, 4, programs=1, swap=True))),
    (float("inf"), _wide(WideTiling(128, 64, 8, 4))),
)
"""(largest mean of assignments per expert, tiling). ``bench_llada2.py --tune`` and ``--wide`` measure
candidates."""


MANY = 16384
"""Assignments above which they are sorted segment by segment."""


def choose_tiling(n_assignments: int, n_experts: int) -> ExpertTiling:
    """Return the tiling for this many assignments."""
    mean = n_assignments / n_experts
    return next(tiling for limit, tiling in TILINGS if mean <= limit)


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
    PER_TOKEN: tl.constexpr,
    C: tl.constexpr,
    F: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """Compute silu(gate) · up for one tile and one panel of F; grid (tiles × F / BLOCK_N,).

    Reads x [T, C] through order [A] (assignment at each sorted place), weights [E, 2F, C] (gate rows, then
    up rows) and tiles [M, 3]; writes inner [A, F] in sorted order. Gate and up run in one loop: the tile of
    tokens is loaded once for both. Tiles marked empty leave at once; their number is not known on the host.
    """
    panels: tl.constexpr = F // BLOCK_N
    tile, panel = tl.program_id(0) // panels, tl.program_id(0) % panels
    expert = tl.load(tiles + tile * 3)
    if expert < 0:
        return
    place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BLOCK_M)
    real = place < tl.load(tiles + tile * 3 + 2)
    token = (tl.load(order + place, mask=real, other=0) // PER_TOKEN).to(tl.int64)
    n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (token * C)[:, None] + k[None, :]
    gate_at = weights + expert.to(tl.int64) * (2 * F * C) + (n * C)[:, None] + k[None, :]
    up_at = gate_at + F * C
    rows: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    columns: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    gate = tl.zeros([rows, columns], tl.float32)
    up = tl.zeros([rows, columns], tl.float32)
    for _ in range(0, C, BLOCK_K):
        tokens = tl.load(x_at, mask=real[:, None], other=0.0)
        gate = _product(tokens, tl.load(gate_at), gate, SWAP)
        up = _product(tokens, tl.load(up_at), up, SWAP)
        x_at += BLOCK_K
        gate_at += BLOCK_K
        up_at += BLOCK_K
    result = (gate * tl.sigmoid(gate) * up).to(inner.dtype.element_ty)
    row = (place * F).to(tl.int64)
    if SWAP:
        tl.store(inner + row[None, :] + n[:, None], result, mask=real[None, :])
    else:
        tl.store(inner + row[:, None] + n[None, :], result, mask=real[:, None])


@triton.jit
def _down_kernel(
    inner,
    weights,
    out,
    order,
    tiles,
    C: tl.constexpr,
    F: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """Multiply one tile by one panel of the down weights; grid (tiles × C / BLOCK_N,).

    Reads inner [A, F] in sorted order and weights [E, C, F]; writes out [A, C] in the order of assignments.
    Scattering rows here, one per assignment, needs no atomics: ``combine`` adds them in a fixed order.
    """
    panels: tl.constexpr = C // BLOCK_N
    tile, panel = tl.program_id(0) // panels, tl.program_id(0) % panels
    expert = tl.load(tiles + tile * 3)
    if expert < 0:
        return
    place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BLOCK_M)
    real = place < tl.load(tiles + tile * 3 + 2)
    n = panel * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inner_at = inner + (place.to(tl.int64) * F)[:, None] + k[None, :]
    weight_at = weights + expert.to(tl.int64) * (C * F) + (n * F)[:, None] + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, F, BLOCK_K):
        rows = tl.load(inner_at, mask=real[:, None], other=0.0)
        acc = _product(rows, tl.load(weight_at), acc, SWAP)
        inner_at += BLOCK_K
        weight_at += BLOCK_K
    target = tl.load(order + place, mask=real, other=0).to(tl.int64) * C
    result = acc.to(out.dtype.element_ty)
    if SWAP:
        tl.store(out + target[None, :] + n[:, None], result, mask=real[None, :])
    else:
        tl.store(out + target[:, None] + n[None, :], result, mask=real[:, None])


@triton.jit
def _combine_kernel(
    y,
    weights,
    x,
    norm_weight,
    total,
    out,
    eps,
    PER_TOKEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a token's K expert rows, the residual, and normalise; grid (T,).

    Reads y [T·K, C], weights [T, K] and x [T, C]; writes total and out [T, C]. Sums are float32 in the order
    of the choices, rounded once to the model's dtype before the norm.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(PER_TOKEN):
        row = tl.load(y + (token * PER_TOKEN + k) * WIDTH + column, mask=inside, other=0.0)
        acc += row.to(tl.float32) * tl.load(weights + token * PER_TOKEN + k)
    acc += tl.load(x + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    acc = acc.to(dtype).to(tl.float32)
    tl.store(total + token * WIDTH + column, acc.to(dtype), mask=inside)
    scale = tl.load(norm_weight + column, mask=inside, other=0.0)
    tl.store(out + token * WIDTH + column, scaled_rms(acc, scale, eps, WIDTH, dtype).to(dtype), mask=inside)


def expert_rows(x_TC: Tensor, experts: StackedExperts, ids_TK: Tensor, tiling: ExpertTiling) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    planned = plan_segments if ids_TK.numel() > MANY else plan_tiles
    plan = planned(ids_TK, len(experts), tiling.block_m)
    width, F = experts.down_ECF.shape[1:]
    wide = [
        item if item is not None and divides(item, rows, summed) else None
        for item, rows, summed in ((tiling.wide_gate_up, F, width), (tiling.wide_down, width, F))
    ]
    if any(wide) and plan.used is None:
        plan = close_gaps(plan)
    inner_AF = (
        gate_up_wide(x_TC, experts, plan, wide[0])
        if wide[0]
        else gate_up(x_TC, experts, plan, tiling.gate_up)
    )
    if wide[1]:
        return down_wide(inner_AF, experts, plan, wide[1])
    return down(inner_AF, experts, plan, tiling.down)


def gate_up(x_TC: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling) -> Tensor:
    """Return silu(gate) · up of every assignment, in sorted order [A, F]."""
    width, F = x_TC.shape[1], experts.down_ECF.shape[2]
    block_n, block_k = _divisor(F, tiling.block_n), _divisor(width, tiling.block_k)
    inner_AF = torch.empty(len(plan.order_A), F, device=x_TC.device, dtype=x_TC.dtype)
    _gate_up_kernel[(len(plan.tiles_M3) * (F // block_n),)](
        x_TC,
        experts.gate_up_EFC,
        inner_AF,
        plan.order_A,
        plan.tiles_M3,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        BLOCK_M=plan.block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SWAP=tiling.swap,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return inner_AF


def down(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Tiling) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together)."""
    width, F = experts.down_ECF.shape[1:]
    block_n, block_k = _divisor(width, tiling.block_n), _divisor(F, tiling.block_k)
    y_AC = torch.empty(len(inner_AF), width, device=inner_AF.device, dtype=inner_AF.dtype)
    _down_kernel[(len(plan.tiles_M3) * (width // block_n),)](
        inner_AF,
        experts.down_ECF,
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        C=width,
        F=F,
        BLOCK_M=plan.block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SWAP=tiling.swap,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return y_AC


def combine(
    y_AC: Tensor, weights_TK: Tensor, x_TC: Tensor, next_norm_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + Σ weight · y and its norm."""
    total_TC, normed_TC = torch.empty_like(x_TC), torch.empty_like(x_TC)
    tokens, width = x_TC.shape
    block = triton.next_power_of_2(width)
    _combine_kernel[(tokens,)](
        y_AC,
        weights_TK,
        x_TC,
        next_norm_C,
        total_TC,
        normed_TC,
        eps,
        PER_TOKEN=weights_TK.shape[1],
        WIDTH=width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return total_TC, normed_TC


def _divisor(size: int, wanted: int) -> int:
    """Return the largest power of two that divides ``size`` and does not exceed ``wanted``."""
    return min(wanted, size & -size)
