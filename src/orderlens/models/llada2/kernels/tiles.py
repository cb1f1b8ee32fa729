# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sorting assignments by expert into tiles from their ids alone, in one launch and without atomics.

One program per expert counts the assignments of all experts, which tells where its run and its tiles begin,
then writes its run in order. A tile is up to ``block_m`` assignments of one expert; tiles stand without gaps.
A forward sorts faster from what the choice of experts leaves (``visits``): this is for ids from elsewhere, of
which a token may have one twice.

Shape letters: A assignments (token × chosen expert), E experts, B bins (a power of two above E), M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.models.torch.kernels.early import launched_early, take_turn


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Assignments sorted by expert, and the tiles they are processed in.

    Attributes:
        order_A: flat assignment index at every sorted place.
        tiles_M3: expert, first place and last place + 1 of every tile; as many rows as there can be tiles.
        used: [1], how many tiles there are: the host does not know.
        block_m: assignments per tile.
        per_token: assignments per token.
    """

    order_A: Tensor
    tiles_M3: Tensor
    used: Tensor
    block_m: int
    per_token: int


@triton.jit
def _write_tiles(tiles, first, expert, low, high, BLOCK_M: tl.constexpr):
    """Write the tiles of the places low … high − 1, from number ``first`` on."""
    for number in range((high - low + BLOCK_M - 1) // BLOCK_M):
        begin = low + number * BLOCK_M
        tl.store(tiles + (first + number) * 3, expert)
        tl.store(tiles + (first + number) * 3 + 1, begin)
        tl.store(tiles + (first + number) * 3 + 2, tl.minimum(high, begin + BLOCK_M))


@triton.jit
def _plan_kernel(
    ids,
    order,
    tiles,
    used,
    count_A,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Write one expert's run of assignments and its tiles; grid (E,).

    Reads ids [A]; writes order [A], tiles [M, 3] and used [1] (int32). Every program reads all ids twice, so
    that neither a sort nor atomics nor a second launch is needed and the order is always the same.
    """
    take_turn(EARLY)
    expert = tl.program_id(0)
    lane, e = tl.arange(0, CHUNK), tl.arange(0, BINS)
    count = tl.zeros([BINS], tl.int32)
    for start in range(0, count_A, CHUNK):
        count += tl.histogram(tl.load(ids + start + lane, mask=start + lane < count_A, other=BINS - 1), BINS)
    count = tl.where(e < EXPERTS, count, 0)
    before = e < expert
    number = (count + BLOCK_M - 1) // BLOCK_M
    begin, own = tl.sum(tl.where(before, count, 0), axis=0), tl.sum(tl.where(e == expert, count, 0), axis=0)
    filled = begin
    for start in range(0, tl.where(own > 0, count_A, 0), CHUNK):
        value = tl.load(ids + start + lane, mask=start + lane < count_A, other=-1)
        mine = (value == expert).to(tl.int32)
        tl.store(order + filled + tl.cumsum(mine, axis=0) - 1, start + lane, mask=mine > 0)
        filled += tl.sum(mine, axis=0)
    _write_tiles(tiles, tl.sum(tl.where(before, number, 0), axis=0), expert, begin, begin + own, BLOCK_M)
    if expert == 0:
        tl.store(used, tl.sum(number, axis=0))


def plan_tiles(ids_TK: Tensor, n_experts: int, block_m: int) -> TilePlan:
    """Return the assignments sorted by expert and their tiles."""
    count, device = ids_TK.numel(), ids_TK.device
    order_A = torch.empty(count, device=device, dtype=torch.int32)
    tiles_M3 = torch.empty(most_tiles(count, n_experts, block_m), 3, device=device, dtype=torch.int32)
    used = torch.empty(1, device=device, dtype=torch.int32)
    _plan_kernel[(n_experts,)](
        ids_TK,
        order_A,
        tiles_M3,
        used,
        count,
        EXPERTS=n_experts,
        BINS=triton.next_power_of_2(n_experts + 1),
        BLOCK_M=block_m,
        CHUNK=1024,
        num_warps=4,
        **launched_early(device),
    )
    return TilePlan(order_A, tiles_M3, used, block_m, ids_TK.shape[1])


def most_tiles(n_assignments: int, n_experts: int, block_m: int) -> int:
    """Return a number of tiles that is never exceeded: full ones, and a last one per expert."""
    return n_assignments // block_m + min(n_experts, n_assignments)
