# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sorting assignments by expert into tiles, on the device, in one launch and without atomics.

One program per expert scans all assignments: it counts those of smaller experts (where its run starts) and
its own, then writes its run in order. A tile is up to ``BLOCK_M`` assignments of one expert. Tile numbers
need no prefix sum over experts: with s assignments before expert e, its first tile is s // BLOCK_M + e,
which never overlaps the next expert's; unused numbers are marked empty.

Shape letters: A assignments (token × chosen expert), E experts, M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

EMPTY = -1
_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Assignments sorted by expert, and the tiles they are processed in.

    Attributes:
        order_A: flat assignment index at every sorted place.
        tiles_M3: expert (−1: nothing to do), first place and last place + 1 of every tile.
        block_m: assignments per tile.
        per_token: assignments per token.
        used: [1], how many tiles there are where they stand without gaps; None where empty ones lie between.
    """

    order_A: Tensor
    tiles_M3: Tensor
    block_m: int
    per_token: int
    used: Tensor | None = None


@triton.jit
def _plan_kernel(
    ids,
    order,
    tiles,
    count_A,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
    FAR: tl.constexpr,
    EMPTY: tl.constexpr,
):
    """Write one expert's run of assignments and its tiles; grid (E,).

    Reads ids [A]; writes order [A] (int32) and tiles [M, 3] (int32). Every program reads all ids twice, so
    that neither a sort nor atomics nor a second launch is needed and the order is always the same.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    smaller = tl.zeros([CHUNK], tl.int32)
    equal = tl.zeros([CHUNK], tl.int32)
    for first in range(0, count_A, CHUNK):
        value = tl.load(ids + first + lane, mask=first + lane < count_A, other=FAR)
        smaller += (value < expert).to(tl.int32)
        equal += (value == expert).to(tl.int32)
    begin, own = tl.sum(smaller, axis=0), tl.sum(equal, axis=0)
    end = begin + own
    filled = begin
    for first in range(0, tl.where(own > 0, count_A, 0), CHUNK):
        value = tl.load(ids + first + lane, mask=first + lane < count_A, other=FAR)
        mine = (value == expert).to(tl.int32)
        tl.store(order + filled + tl.cumsum(mine, axis=0) - 1, first + lane, mask=mine > 0)
        filled += tl.sum(mine, axis=0)
    tile = begin // BLOCK_M + expert
    for number in range(tile, end // BLOCK_M + expert + 1):
        low = begin + (number - tile) * BLOCK_M
        tl.store(tiles + number * 3, tl.where(low < end, expert, EMPTY))
        tl.store(tiles + number * 3 + 1, low)
        tl.store(tiles + number * 3 + 2, tl.minimum(end, low + BLOCK_M))


@triton.jit
def _close_gaps_kernel(tiles, out, used, count_M, BLOCK: tl.constexpr):
    """Copy the tiles that are not empty, in their order, and count them; grid (1,).

    Reads tiles [M, 3]; writes the first rows of out [M, 3] and used [1].
    """
    m = tl.arange(0, BLOCK)
    expert = tl.load(tiles + m * 3, mask=m < count_M, other=-1)
    real = expert >= 0
    place = (tl.cumsum(real.to(tl.int32), axis=0) - 1) * 3
    tl.store(out + place, expert, mask=real)
    tl.store(out + place + 1, tl.load(tiles + m * 3 + 1, mask=real), mask=real)
    tl.store(out + place + 2, tl.load(tiles + m * 3 + 2, mask=real), mask=real)
    tl.store(used, tl.sum(real.to(tl.int32), axis=0))


def close_gaps(plan: TilePlan) -> TilePlan:
    """Return the plan with its tiles side by side, for programs that take one tile after the other."""
    count = len(plan.tiles_M3)
    tiles_M3 = torch.full_like(plan.tiles_M3, EMPTY)  # for kernels that look at every tile
    used = torch.empty(1, device=tiles_M3.device, dtype=torch.int32)
    _close_gaps_kernel[(1,)](
        plan.tiles_M3, tiles_M3, used, count, BLOCK=triton.next_power_of_2(count), num_warps=8
    )
    return replace(plan, tiles_M3=tiles_M3, used=used)


def plan_tiles(ids_TK: Tensor, n_experts: int, block_m: int) -> TilePlan:
    """Return the assignments sorted by expert and their tiles."""
    count = ids_TK.numel()
    order_A = torch.empty(count, device=ids_TK.device, dtype=torch.int32)
    n_tiles = count // block_m + n_experts
    tiles_M3 = torch.empty(n_tiles, 3, device=ids_TK.device, dtype=torch.int32)
    chunk = 1024 if count <= 16384 else 4096
    _plan_kernel[(n_experts,)](
        ids_TK, order_A, tiles_M3, count, block_m, chunk, _FAR, EMPTY, num_warps=4 if chunk == 1024 else 8
    )
    return TilePlan(order_A, tiles_M3, block_m, ids_TK.shape[1])
