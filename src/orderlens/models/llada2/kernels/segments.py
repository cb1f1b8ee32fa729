# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sorting many assignments by expert: counted segment by segment, then written by (expert, segment).

The counterpart of ``tiles.plan_tiles``, whose programs each read all assignments, for forwards so large that
this reading takes longer than three launches. No atomics: the order is always the same.

Shape letters: A assignments, E experts, S segments, B bins (a power of two above E), M tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.models.llada2.kernels.tiles import TilePlan, most_tiles, write_tiles
from orderlens.models.torch.gpu import Gpu, gpu_of

SEGMENT, SEGMENTS = 1024, 64
"""Assignments per segment; twice as many, and so on, where there would be more segments than one program
holds: that many, or fewer where its shared memory is smaller."""


@triton.jit
def _count_kernel(ids, counts, count_A, SEGMENT: tl.constexpr, BINS: tl.constexpr):
    """Count a segment's assignments by expert; grid (S,). Reads ids [A]; writes counts [S, B]."""
    place = tl.program_id(0) * SEGMENT + tl.arange(0, SEGMENT)
    value = tl.load(ids + place, mask=place < count_A, other=BINS - 1)
    bins = tl.arange(0, BINS)
    tl.store(counts + tl.program_id(0) * BINS + bins, tl.histogram(value, BINS))


@triton.jit
def _start_kernel(
    counts,
    starts,
    ends,
    firsts,
    used,
    segments,
    EXPERTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Find where every expert's part of every segment goes; grid (1,).

    Reads counts [S, B]; writes starts [S, B], and for every expert its end and its first tile [B], and used
    [1], the number of tiles.
    """
    s, e = tl.arange(0, SEGMENTS), tl.arange(0, BINS)
    at = s[:, None] * BINS + e[None, :]
    inside = (s < segments)[:, None] & (e < EXPERTS)[None, :]
    count = tl.load(counts + at, mask=inside, other=0)
    total = tl.sum(count, axis=0)
    end = tl.cumsum(total, axis=0)
    before = tl.cumsum(count, axis=0) - count
    tl.store(starts + at, before + (end - total)[None, :], mask=inside)
    tiles = (total + BLOCK_M - 1) // BLOCK_M
    tl.store(ends + e, end)
    tl.store(firsts + e, tl.cumsum(tiles, axis=0) - tiles)
    tl.store(used, tl.sum(tiles, axis=0))


@triton.jit
def _order_kernel(
    ids,
    order,
    tiles,
    starts,
    ends,
    firsts,
    count_A,
    SEGMENT: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write one expert's assignments of one segment, and with the first segment its tiles; grid (E, S).

    Reads ids [A] and what the kernel before wrote; writes order [A] and tiles [M, 3].
    """
    expert, segment = tl.program_id(0), tl.program_id(1)
    place = segment * SEGMENT + tl.arange(0, SEGMENT)
    mine = (tl.load(ids + place, mask=place < count_A, other=-1) == expert).to(tl.int32)
    start = tl.load(starts + segment * BINS + expert)
    tl.store(order + start + tl.cumsum(mine, axis=0) - 1, place, mask=mine > 0)
    if segment == 0:
        write_tiles(tiles, tl.load(firsts + expert), expert, start, tl.load(ends + expert), BLOCK_M)


def plan_segments(ids_TK: Tensor, n_experts: int, block_m: int, segment: int | None = None) -> TilePlan:
    """Return the assignments sorted by expert and their tiles."""
    count, device = ids_TK.numel(), ids_TK.device
    bins = triton.next_power_of_2(n_experts + 1)
    segment = segment or segment_size(count, bins, gpu_of(device))
    segments = triton.cdiv(count, segment)
    order_A = torch.empty(count, device=device, dtype=torch.int32)
    tiles_M3 = torch.empty(most_tiles(count, n_experts, block_m), 3, device=device, dtype=torch.int32)
    counts, starts = torch.empty(2, segments, bins, device=device, dtype=torch.int32)
    ends, firsts = torch.empty(2, bins, device=device, dtype=torch.int32)
    used = torch.empty(1, device=device, dtype=torch.int32)
    _count_kernel[(segments,)](ids_TK, counts, count, SEGMENT=segment, BINS=bins, num_warps=4)
    _start_kernel[(1,)](
        counts,
        starts,
        ends,
        firsts,
        used,
        segments,
        EXPERTS=n_experts,
        SEGMENTS=triton.next_power_of_2(segments),
        BINS=bins,
        BLOCK_M=block_m,
        num_warps=16,
    )
    _order_kernel[(n_experts, segments)](
        ids_TK,
        order_A,
        tiles_M3,
        starts,
        ends,
        firsts,
        count,
        SEGMENT=segment,
        BINS=bins,
        BLOCK_M=block_m,
        num_warps=4,
    )
    return TilePlan(order_A, tiles_M3, used, block_m, ids_TK.shape[1])


def segment_size(count: int, bins: int, gpu: Gpu) -> int:
    """Return the assignments per segment: so many that one program holds the counts of all segments."""
    held = min(SEGMENTS, 1 << ((gpu.shared_bytes // (4 * bins)).bit_length() - 1))
    return max(SEGMENT, int(triton.next_power_of_2(triton.cdiv(count, held))))
