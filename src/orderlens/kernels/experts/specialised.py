# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The down product with warp specialisation, for a Hopper GPU and experts with many tokens.

Computes the same sums in the same order as ``down.down``, where every warp loads, multiplies and writes. Here
programs are persistent: one warp loads the next tiles, eight multiply, and two write results at the same
time. Tokens are the left operand and 256 columns of weights the right one, which needs the least
shared-memory traffic. Written in Gluon, with explicit layouts, barriers and copies; Triton's interpreter does
not support it.

The warps share a ring of stages: the barrier ``full`` signals that a stage's tiles are loaded, ``empty`` that
they have been used. ``done`` and ``free`` do the same for the tile of results.

Shape letters: C model width, F expert width, A assignments, E experts, M tiles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from orderlens.kernels.experts.tiling import TilePlan
from orderlens.kernels.shapes import StackedExperts

ROWS, COLUMNS, DEPTH = 128, 256, 64
"""Size of a tile: places, columns of weights, numbers summed per step."""
STAGES, WARPS, REGISTERS = 3, 8, 168
"""Steps loaded in advance, warps that multiply, and registers per thread before the warps redistribute them.
The remaining shared memory holds a tile of results, and all registers are used."""
SWIZZLED = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@gluon.jit
def _next(index, phase, STAGES: gl.constexpr):
    """Return the next stage of the ring and the phase of its barriers."""
    wraps = index == STAGES - 1
    return gl.where(wraps, 0, index + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def _before(index, STAGES: gl.constexpr):
    """Return the stage before this one."""
    return gl.where(index == 0, STAGES - 1, index - 1)


@gluon.jit
def _barriers(STAGES: gl.constexpr):
    """Return the barriers of a ring."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    return full, empty


@gluon.jit
def _product(tokens, panels, full, empty, index, phase, F: gl.constexpr):
    """Return the sums of one tile [ROWS, COLUMNS], and the next stage and phase of the ring."""
    STAGES: gl.constexpr = tokens.shape[0]
    ROWS: gl.constexpr = tokens.shape[1]
    DEPTH: gl.constexpr = tokens.shape[2]
    COLUMNS: gl.constexpr = panels.shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, COLUMNS, 16])
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, SUMS)
    for f in range(0, F, DEPTH):
        mbarrier.wait(full.index(index), phase)
        acc = warpgroup_mma(tokens.index(index), panels.index(index).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        mbarrier.arrive(empty.index(_before(index, STAGES)), count=1, pred=f > 0)
        index, phase = _next(index, phase, STAGES)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    mbarrier.arrive(empty.index(_before(index, STAGES)), count=1)
    return acc, index, phase


@gluon.jit
def _load(inner, weights, tiles, used, tokens, panels, full, empty, C: gl.constexpr, F: gl.constexpr):
    """Load all tiles of this program, one stage after another; runs on one warp."""
    STAGES: gl.constexpr = tokens.shape[0]
    ROWS: gl.constexpr = tokens.shape[1]
    DEPTH: gl.constexpr = tokens.shape[2]
    COLUMNS: gl.constexpr = panels.shape[1]
    PANELS: gl.constexpr = C // COLUMNS
    index, phase = gl.to_tensor(0), gl.to_tensor(1)
    for item in range(gl.program_id(0), gl.load(used) * PANELS, gl.num_programs(0)):
        tile, panel = item // PANELS, item % PANELS
        row = gl.load(tiles + tile * 3) * C + panel * COLUMNS
        low = gl.load(tiles + tile * 3 + 1)
        for f in range(0, F, DEPTH):
            mbarrier.wait(empty.index(index), phase)
            ready = full.index(index)
            mbarrier.expect(ready, (ROWS + COLUMNS) * DEPTH * 2)  # bytes
            tma.async_copy_global_to_shared(inner, [low, f], ready, tokens.index(index))
            tma.async_copy_global_to_shared(weights, [row, f], ready, panels.index(index))
            index, phase = _next(index, phase, STAGES)


@gluon.jit
def _write(out, order, tiles, used, written, done, free, C: gl.constexpr):
    """Copy every finished tile from shared memory to the rows of its assignments; runs on two warps."""
    ROWS: gl.constexpr = written.shape[0]
    COLUMNS: gl.constexpr = written.shape[1]
    PANELS: gl.constexpr = C // COLUMNS
    PART: gl.constexpr = 32
    WRITE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [2, 1], [1, 0])
    phase = gl.to_tensor(0)
    for item in range(gl.program_id(0), gl.load(used) * PANELS, gl.num_programs(0)):
        tile, panel = item // PANELS, item % PANELS
        low, high = gl.load(tiles + tile * 3 + 1), gl.load(tiles + tile * 3 + 2)
        n = panel * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, WRITE))
        mbarrier.wait(done, phase)
        for part in gl.static_range(ROWS // PART):
            place = low + part * PART + gl.arange(0, PART, gl.SliceLayout(1, WRITE))
            real = place < high
            target = gl.load(order + place, mask=real, other=0).to(gl.int64) * C
            value = written.slice(part * PART, PART, 0).load(WRITE)
            gl.store(out + target[:, None] + n[None, :], value, mask=real[:, None])
        mbarrier.arrive(free, count=1)
        phase = phase ^ 1


@gluon.jit
def _multiply(used, written, tokens, panels, full, empty, done, free, C: gl.constexpr, F: gl.constexpr):
    """Multiply all tiles of this program and store each result in shared memory."""
    PANELS: gl.constexpr = C // panels.shape[1]
    index, phase = gl.to_tensor(0), gl.to_tensor(0)
    turn = gl.to_tensor(1)
    for _ in range(gl.program_id(0), gl.load(used) * PANELS, gl.num_programs(0)):
        acc, index, phase = _product(tokens, panels, full, empty, index, phase, F)
        value = acc.to(written.dtype)
        mbarrier.wait(free, turn)
        written.store(value)
        mbarrier.arrive(done, count=1)
        turn = turn ^ 1


@gluon.jit
def down_kernel(
    inner,
    weights,
    out,
    order,
    tiles,
    used,
    C: gl.constexpr,
    F: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Multiply by the down weights tile by tile; any grid.

    Same as ``down._down_kernel``; ``inner`` and ``weights`` are descriptors of ROWS and COLUMNS × DEPTH.
    """
    ROWS: gl.constexpr = inner.block_shape[0]
    COLUMNS: gl.constexpr = weights.block_shape[0]
    DEPTH: gl.constexpr = inner.block_shape[1]
    tokens = gl.allocate_shared_memory(inner.dtype, [STAGES, ROWS, DEPTH], inner.layout)
    panels = gl.allocate_shared_memory(inner.dtype, [STAGES, COLUMNS, DEPTH], weights.layout)
    written = gl.allocate_shared_memory(inner.dtype, [ROWS, COLUMNS], inner.layout)
    full, empty = _barriers(STAGES)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    mbarrier.init(free, count=1)
    gl.warp_specialize(
        [
            (_multiply, (used, written, tokens, panels, full, empty, done, free, C, F)),
            (_write, (out, order, tiles, used, written, done, free, C)),
            (_load, (inner, weights, tiles, used, tokens, panels, full, empty, C, F)),
        ],
        [2, 1],
        [104, 24],
    )


def applies(experts: StackedExperts, plan: TilePlan) -> bool:
    """Return whether the plan has the supported tile size and the matrices are multiples of a tile."""
    width, F = experts.down_ECF.shape[1:]
    return plan.block_m == ROWS and width % COLUMNS == 0 and F % DEPTH == 0


def down(inner_AF: Tensor, experts: StackedExperts, plan: TilePlan) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (by token)."""
    width, F = experts.down_ECF.shape[1:]
    y_AC = torch.empty(len(inner_AF), width, device=inner_AF.device, dtype=inner_AF.dtype)
    down_kernel[(plan.grid(width // COLUMNS, resident=1),)](
        _matrix(inner_AF, ROWS),
        _matrix(experts.down_ECF.view(-1, F), COLUMNS),
        y_AC,
        plan.order_A,
        plan.tiles_M3,
        plan.used,
        C=width,
        F=F,
        STAGES=STAGES,
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return y_AC


def _matrix(matrix: Tensor, rows: int) -> Any:
    return TensorDescriptor.from_tensor(matrix, [rows, DEPTH], SWIZZLED)
