# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Both products of float8 experts in one launch, on the float8 matrix units of a Hopper GPU.

Tokens are pairs of float8 numbers (``pairs``), so that weights go from shared memory to the matrix units as
they are stored. One program per multiprocessor takes items from a shared counter (``float8_copy``): first
those of gate and up, then those of down. Some warps copy, eight multiply, so that weights arrive without a
pause, also between items and between the two products.

An item of down waits until all items of gate and up of its tile are written. These come earlier in the order
of the counter, and running programs have them, so every wait ends.

The units sum 128 columns with few bits; these sums are added in float32. Written in Gluon, with explicit
layouts, barriers and copies; Triton's interpreter does not support it.

Shape letters: T tokens, C model width, F expert width, A assignments, E experts, M tiles, S scales per row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from orderlens.kernels.experts.float8_copy import (
    FEW,
    SIDE,
    SLOTS,
    item_counts,
    load_tokens,
    load_weights,
    next_stage,
    take,
    tile_and_part,
)
from orderlens.kernels.experts.tiling import TilePlan, Visits, plan_visits
from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.pairs import Pairs, scale_of
from orderlens.kernels.shapes import SIDE as TILE_SIDE
from orderlens.kernels.shapes import StackedExperts

WARPS, LOADERS, REGISTERS = 8, 4, 128
"""Warps that multiply, warps that copy tokens, registers per thread before the warps redistribute them."""
STAGES = {16: 6, 32: 5, 64: 4}
"""Places of a tile → stages of the ring, which fill the shared memory."""
PLACES = ((2.0, 16), (10.0, 32), (float("inf"), 64))
"""(maximum mean assignments per expert, places of a tile)."""
all_threads = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for all threads of these warps; named differently in Triton 3.6 and 3.7."""
SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)


@gluon.jit
def _product(panel, tokens, ROWS: gl.constexpr):
    """Start the product of a tile of weights with both parts of ROWS tokens [SIDE, ROWS or 2 · ROWS]."""
    WIDE: gl.constexpr = 2 * ROWS if ROWS <= FEW else ROWS
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, WIDE, 32])
    zero = gl.zeros([SIDE, WIDE], gl.float32, PART)
    first = tokens.slice(0, WIDE, 0).permute((1, 0))
    part = warpgroup_mma(panel, first, zero, use_acc=False, is_async=True)
    if ROWS > FEW:
        second = tokens.slice(ROWS, ROWS, 0).permute((1, 0))
        part = warpgroup_mma(panel, second, part, is_async=True)
    return part


@gluon.jit
def _folded(part, ROWS: gl.constexpr):
    """Return the product with the high parts plus the product with the low parts [SIDE, ROWS]."""
    if ROWS <= FEW:
        SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 32])
        high, low = gl.split(gl.permute(gl.reshape(part, (SIDE, 2, ROWS)), (0, 2, 1)))
        part = gl.convert_layout(high + low, SUMS, assert_trivial=True)
    return part


@gluon.jit
def _sums(
    scales, other, ring, index, phase,
    K: gl.constexpr, S: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Return the products of two tiles of weights with their tokens [SIDE, ROWS], and the ring's next stage.

    ``scales`` and ``other`` are the weights' scales [SIDE, S].
    """
    panels, tokens, factors, full, empty = ring
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 32])
    n = gl.arange(0, SIDE, gl.SliceLayout(1, SUMS)) * S
    left = gl.zeros([SIDE, ROWS], gl.float32, SUMS)
    right = gl.zeros([SIDE, ROWS], gl.float32, SUMS)
    left_scale, right_scale = gl.load(scales + n)[:, None], gl.load(other + n)[:, None]
    for k in range(0, K, SIDE):
        if S > 1:
            left_scale = gl.load(scales + n + k // (K // S))[:, None]
            right_scale = gl.load(other + n + k // (K // S))[:, None]
        mbarrier.wait(full.index(index), phase)
        fence_async_shared()  # tokens were not written by the copy engine
        one = _product(panels.index(2 * index), tokens.index(index), ROWS)
        two = _product(panels.index(2 * index + 1), tokens.index(index), ROWS)
        factor = factors.index(index).slice(0, ROWS, 0).load(gl.SliceLayout(0, SUMS))[None, :]
        one = warpgroup_mma_wait(num_outstanding=1 if ROWS <= FEW else 2, deps=(one,))
        left += _folded(one, ROWS) * (factor * left_scale if S > 1 else factor)
        two = warpgroup_mma_wait(num_outstanding=0, deps=(two,))
        mbarrier.arrive(empty.index(index), count=1)
        right += _folded(two, ROWS) * (factor * right_scale if S > 1 else factor)
        index, phase = next_stage(index, phase, STAGES)
    if S == 1:
        left, right = left * left_scale, right * right_scale
    return left, right, index, phase


@gluon.jit
def _gate_up_item(
    scales, inner, inner_scale, plane, low, high, row, part, ring, index, phase,
    C: gl.constexpr, F: gl.constexpr, S: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write silu(gate) · up of a tile's places and SIDE columns as pairs."""
    WRITE: gl.constexpr = gl.BlockedLayout([16, 1], [8, 4], [1, gl.num_warps()], [0, 1])
    scales += row.to(gl.int64) * S
    gate, up, index, phase = _sums(scales, scales + F * S, ring, index, phase, C, S, ROWS, STAGES)
    result = gate / (1.0 + gl.exp(-gate)) * up
    found, inverse = scale_of(gl.max(gl.abs(result), axis=0))
    place = low + gl.arange(0, ROWS, gl.SliceLayout(0, gate.type.layout))
    gl.store(inner_scale + place * (F // SIDE) + part, found, mask=place < high)
    result = gl.convert_layout(result * inverse[None, :], WRITE)
    place = low + gl.arange(0, ROWS, gl.SliceLayout(0, WRITE))
    column = part * SIDE + gl.arange(0, SIDE, gl.SliceLayout(1, WRITE))
    at, real = inner + (place.to(gl.int64) * F)[None, :] + column[:, None], (place < high)[None, :]
    above = result.to(gl.float8e4nv)
    gl.store(at, above, mask=real)
    gl.store(at + plane, (result - above.to(gl.float32)).to(gl.float8e4nv), mask=real)
    return index, phase


@gluon.jit
def _down_item(
    scales, out, order, low, high, row, part, ring, index, phase,
    C: gl.constexpr, F: gl.constexpr, S: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Write 2 · SIDE columns of the result in the rows of a tile's assignments."""
    WRITE: gl.constexpr = gl.BlockedLayout([8, 1], [16, 2], [1, gl.num_warps()], [0, 1])
    place = low + gl.arange(0, ROWS, gl.SliceLayout(0, WRITE))
    target = gl.load(order + place, mask=place < high, other=0).to(gl.int64) * C
    column = part * (2 * SIDE) + gl.arange(0, SIDE, gl.SliceLayout(1, WRITE))
    at, real = out + target[None, :] + column[:, None], (place < high)[None, :]
    scales += row.to(gl.int64) * S
    left, right, index, phase = _sums(scales, scales + SIDE * S, ring, index, phase, F, S, ROWS, STAGES)
    gl.store(at, gl.convert_layout(left.to(out.dtype.element_ty), WRITE), mask=real)
    gl.store(at + SIDE, gl.convert_layout(right.to(out.dtype.element_ty), WRITE), mask=real)
    return index, phase


@gluon.jit
def _multiply(
    gate_up_scale, down_scale, inner, inner_scale, plane, out, order, used, written, ring, line,
    C: gl.constexpr, F: gl.constexpr, S_UP: gl.constexpr, S_DOWN: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Multiply all items and write the results, with no more rows than needed."""
    ups, every = item_counts(used, C, F)
    index, phase = gl.to_tensor(0), gl.to_tensor(0)
    item, expert, low, high, slot, turn = take(line, gl.to_tensor(0), gl.to_tensor(0))
    while item < every:
        tile, part = tile_and_part(item, ups, C, F)
        if item < ups:
            row = expert * (2 * F) + part * SIDE
            if ROWS > FEW and high - low <= FEW:
                index, phase = _gate_up_item(
                    gate_up_scale, inner, inner_scale, plane, low, high, row, part, ring, index, phase, C, F,
                    S_UP, FEW, STAGES,
                )  # fmt: skip
            else:
                index, phase = _gate_up_item(
                    gate_up_scale, inner, inner_scale, plane, low, high, row, part, ring, index, phase, C, F,
                    S_UP, ROWS, STAGES,
                )  # fmt: skip
            all_threads()
            gl.atomic_add(written + tile, 1, sem="release", scope="gpu")
        else:
            row = expert * C + part * (2 * SIDE)
            if ROWS > FEW and high - low <= FEW:
                index, phase = _down_item(
                    down_scale,
                    out,
                    order,
                    low,
                    high,
                    row,
                    part,
                    ring,
                    index,
                    phase,
                    C,
                    F,
                    S_DOWN,
                    FEW,
                    STAGES,
                )
            else:
                index, phase = _down_item(
                    down_scale,
                    out,
                    order,
                    low,
                    high,
                    row,
                    part,
                    ring,
                    index,
                    phase,
                    C,
                    F,
                    S_DOWN,
                    ROWS,
                    STAGES,
                )
        item, expert, low, high, slot, turn = take(line, slot, turn)


@gluon.jit
def experts_kernel(
    x, x_scale, plane, gate_up, gate_up_scale, down, down_scale, inner, inner_scale, inner_plane, out, order,
    tiles, used, zeros,
    PER_TOKEN: gl.constexpr, C: gl.constexpr, F: gl.constexpr, S_UP: gl.constexpr, S_DOWN: gl.constexpr,
    ROWS: gl.constexpr, STAGES: gl.constexpr, LOADERS: gl.constexpr,
):  # fmt: skip
    """Compute down(silu(gate) · up) of all assignments; at most one program per multiprocessor.

    Reads x [2, T, C] with x_scale [T], gate_up [E·2F, C] and down [E·C, F] as descriptors of SIDE × SIDE with
    scales [E·2F, S] and [E·C, S], order [A], tiles [M, 3] and used [1]; zeros [M + 1] are 0: the counter, and
    the number of written items of each tile. Writes inner [2, A, F] with inner_scale [A, F / SIDE], and out
    [A, C] in the order of assignments.
    """
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    panels = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, SIDE, SIDE], gate_up.layout)
    tokens = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 2 * ROWS, SIDE], gate_up.layout)
    factors = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1 + 32 * LOADERS)
        mbarrier.init(empty.index(stage), count=1)
    items = gl.allocate_shared_memory(gl.int32, [SLOTS, 4], PLAIN)
    given = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(given.index(slot), count=1)
        mbarrier.init(taken.index(slot), count=2)
    line, written = (items, given, taken), zeros + 1
    gl.warp_specialize(
        [
            (_multiply, (
                gate_up_scale, down_scale, inner, inner_scale, inner_plane, out, order, used, written,
                (panels, tokens, factors, full, empty), line, C, F, S_UP, S_DOWN, ROWS, STAGES,
            )),
            (load_tokens, (
                x, x_scale, plane, inner, inner_scale, inner_plane, order, used, written,
                (tokens, factors, full, empty), line, PER_TOKEN, C, F, ROWS, STAGES,
            )),
            (load_weights, (gate_up, down, tiles, used, zeros, (panels, full, empty), line, C, F, STAGES)),
        ],
        [LOADERS, 1],
        [64, 24],
    )  # fmt: skip


def float8_rows(
    x: Pairs, experts: StackedExperts, ids_TK: Tensor, visits: Visits, dtype: torch.dtype
) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (a token's rows together).

    Args:
        x: the tokens.
        experts: float8 weights with columns in order.
        ids_TK: experts of each token.
        visits: the same as marks and counts.
        dtype: of the result.
    """
    rows = next(rows for limit, rows in PLACES if ids_TK.numel() / len(experts) <= limit)
    return multiply_plan(x, experts, plan_visits(ids_TK, visits, len(experts), rows), dtype)


def multiply_plan(x: Pairs, experts: StackedExperts, plan: TilePlan, dtype: torch.dtype) -> Tensor:
    """Return every assignment's output [A, C]; the plan's zeros are used up."""
    width, F = experts.down_ECF.shape[1:]
    count, device = len(plan.order_A), x.scale_NG.device
    inner = Pairs.empty(count, F, F // TILE_SIDE, device)
    y_AC = torch.empty(count, width, device=device, dtype=dtype)
    up_scale, down_scale = experts.gate_up_scale_EFS, experts.down_scale_ECS
    assert up_scale is not None
    assert down_scale is not None
    experts_kernel[(gpu_of(device).processors,)](
        *x,
        x.parts_2NK[0].numel(),
        _matrix(experts.gate_up_EFC),
        up_scale,
        _matrix(experts.down_ECF),
        down_scale,
        *inner,
        count * F,
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        plan.zeros,
        PER_TOKEN=plan.per_token,
        C=width,
        F=F,
        S_UP=up_scale.shape[-1],
        S_DOWN=down_scale.shape[-1],
        ROWS=plan.block_m,
        STAGES=STAGES[plan.block_m],
        LOADERS=LOADERS,
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return y_AC


def _matrix(weights: Tensor) -> Any:
    rows = weights.view(-1, weights.shape[-1])
    return TensorDescriptor.from_tensor(rows, [TILE_SIDE, TILE_SIDE], SWIZZLED)
