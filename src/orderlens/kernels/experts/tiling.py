# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Tiles of grouped products: launch parameters, and the sort of assignments by expert into tiles.

A tile is up to ``block_m`` assignments of one expert; tiles are contiguous. One launch sorts. Routing writes
marks (one bit per expert and token, in words of up to 32 tokens) and their counts per segment of tokens. From
the counts of all segments, every program computes where its segment's assignments go. From the marks it
computes how many earlier tokens of its word use the same expert. So programs do not wait for each other and
need no atomics; the result is that of a stable sort.

Shape letters: T tokens, K assignments per token, A = T·K assignments, E experts, S segments, W words per
segment, R row (E rounded up), B bins (a power of two, at least E), M tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.gpu import Gpu, gpu_of

BYTES = 2
"""Bytes of a number: the kernels support bfloat16 and float16."""
BARRIERS = 1024
"""Maximum bytes of shared memory that a program needs in addition to its tiles."""
SEGMENTS = 128
"""Maximum number of segments: each is one program, and each program reads the counts of all segments."""
FEWEST_TOKENS, MOST_TOKENS = 4, 32
"""Limits of the number of tokens in a word (a power of two); a program routes one word at a time."""
ORDER_WARPS = 8
"""Maximum warps of a program that sorts."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch parameters of one grouped product.

    Attributes:
        block_n: columns of the result per tile (for gate and up, of each); reduced to a divisor of the width.
        block_k: numbers summed per step; reduced to a divisor of the depth.
        warps: warps per program.
        stages: steps that are loaded in advance.
        programs: persistent programs per multiprocessor; 0 launches one program per tile.
        specialised: use warp specialisation if possible (down, without a rest); the other parameters apply if
            it is not possible.
        tiled: load tiles through tensor descriptors, else by addresses.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0
    specialised: bool = False
    tiled: bool = True

    def fitting(self, rows: int, panels: int, gpu: Gpu, weight_bytes: int = BYTES) -> Tiling:
        """Return this tiling adapted to a GPU: stages that fit in shared memory, descriptors if it has them.

        Args:
            rows: places of a tile, its rest included.
            panels: weight tiles per step: 2 for gate and up, 1 for down.
            gpu: the GPU.
            weight_bytes: bytes of a weight; a token's number has 2.
        """
        per_stage = self.block_k * (weight_bytes * panels * self.block_n + BYTES * rows)
        stages = max(1, min(self.stages, (gpu.shared_bytes - BARRIERS) // per_stage))
        specialised = self.specialised and gpu.specialises
        if gpu.descriptors:
            return replace(self, stages=stages, specialised=specialised)
        return replace(self, stages=stages, programs=0, specialised=False, tiled=False)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Sorted assignments in tiles.

    Attributes:
        order_A: flat assignment index at every sorted place.
        tiles_M3: expert, first place and last place + 1 of every tile; M is the maximum number of tiles.
        used: [1], the actual number of tiles, which only the device knows.
        zeros: [M + 1] zeros, for one kernel whose programs share work and wait for each other.
        block_m: assignments per tile.
        per_token: assignments per token.
    """

    order_A: Tensor
    tiles_M3: Tensor
    used: Tensor
    zeros: Tensor
    block_m: int
    per_token: int

    def grid(self, panels: int, resident: int) -> int:
        """Return the number of programs of a product.

        Args:
            panels: number of weight panels; every tile is multiplied by each.
            resident: persistent programs per multiprocessor; 0 for one program per possible tile.
        """
        most = len(self.tiles_M3) * panels
        return min(most, resident * gpu_of(self.used.device).processors) if resident else most


def most_tiles(n_assignments: int, n_experts: int, block_m: int) -> int:
    """Return an upper bound of the number of tiles: full ones, and a last one per expert."""
    return n_assignments // block_m + min(n_experts, n_assignments)


@dataclass(frozen=True, slots=True)
class Visits:
    """Which tokens use which expert; a token uses an expert at most once.

    Attributes:
        marks_NR: bit t of a word is set if its token t uses the expert (int32); N ≤ S·W words.
        counts_SR: number of a segment's tokens that use the expert. 16 bits if they suffice for the sum over
            all segments: every program then adds two counts per operation. Columns after the last expert are
            0 in both.
        word: tokens per word.
        words: words per segment.
    """

    marks_NR: Tensor
    counts_SR: Tensor
    word: int
    words: int

    @classmethod
    def empty(cls, n_tokens: int, n_experts: int, device: torch.device) -> Visits:
        """Return uninitialised tensors for this number of tokens."""
        word = int(triton.next_power_of_2(triton.cdiv(n_tokens, SEGMENTS)))
        word = min(max(word, FEWEST_TOKENS), MOST_TOKENS)
        words, row = triton.cdiv(n_tokens, word * SEGMENTS), 16 * triton.cdiv(n_experts, 16)
        marks_NR = torch.empty(triton.cdiv(n_tokens, word), row, device=device, dtype=torch.int32)
        dtype = torch.int16 if n_tokens < 1 << 16 else torch.int32
        counts_SR = torch.empty(triton.cdiv(len(marks_NR), words), row, device=device, dtype=dtype)
        return cls(marks_NR, counts_SR, word, words)

    @classmethod
    def of(cls, ids_TK: Tensor, n_experts: int) -> Visits:
        """Return the marks and counts of ``ids_TK``, computed in plain torch."""
        visits = cls.empty(len(ids_TK), n_experts, ids_TK.device)
        (words, row), segments = visits.marks_NR.shape, len(visits.counts_SR)
        visited_TR = torch.zeros(segments * visits.words * visits.word, row, device=ids_TK.device).long()
        visited_TR[: len(ids_TK)].scatter_(1, ids_TK.long(), 1)
        bit = 1 << torch.arange(visits.word, device=ids_TK.device)[:, None]
        visits.marks_NR.copy_((visited_TR.view(-1, visits.word, row) * bit).sum(dim=1)[:words])
        visits.counts_SR.copy_(visited_TR.view(segments, -1, row).sum(dim=1))
        return visits


@triton.jit
def bits_set(x):
    """Return the number of set bits of each int32."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _summed(count, HALVES: tl.constexpr):
    """Return the sums over segments; for words with two 16-bit halves, those of the lower half first."""
    total = tl.sum(count, axis=0)
    if HALVES:
        total = tl.join(total & 0xFFFF, (total >> 16) & 0xFFFF).reshape(2 * count.shape[1])
    return total


@triton.jit
def _load_word(ids, marks, word, end, WORD: tl.constexpr, PER_TOKEN: tl.constexpr, ROW: tl.constexpr, lane):
    """Return the experts of a word's assignments, which assignments exist, and the experts' marks."""
    place = word * (WORD * PER_TOKEN) + lane
    real = (lane < WORD * PER_TOKEN) & (place < end)
    expert = tl.load(ids + place, mask=real, other=0)
    return expert, real, tl.load(marks + word * ROW + expert, mask=real, other=0)


@triton.jit
def _order_kernel(
    ids,
    marks,
    counts,
    order,
    tiles,
    used,
    zeros,
    most,
    tokens,
    segments,
    words,
    WORD: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    LANES: tl.constexpr,
    ROW: tl.constexpr,
    BINS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HALVES: tl.constexpr,
):
    """Write one segment's assignments to their places, and a share of the tiles; grid (S,).

    Reads ids [T, K], marks [N, R] and counts [S, R] (with HALVES, [S, R / 2] words of two counts); writes
    order [A], tiles [M, 3], used [1] and zeros [most] (int32). An expert's assignments are ordered by
    segment, word and token.
    """
    own = tl.program_id(0)
    word, lane, all_places = own * words, tl.arange(0, LANES), tokens * PER_TOKEN
    expert, real, mark = _load_word(ids, marks, word, all_places, WORD, PER_TOKEN, ROW, lane)  # needed last

    s, e, size = tl.arange(0, SEGMENTS), tl.arange(0, BINS), 2 if HALVES else 1
    column = tl.arange(0, BINS // 2 if HALVES else BINS)
    held = (s < segments)[:, None] & (column < ROW // size)[None, :]
    count = tl.load(counts + s[:, None] * (ROW // size) + column[None, :], mask=held, other=0)
    total = _summed(count, HALVES)
    begin = tl.cumsum(total, axis=0) - total
    free = begin + _summed(tl.where((s < own)[:, None], count, 0), HALVES)

    earlier = (1 << (lane // PER_TOKEN % WORD)) - 1
    for nth in range(words):
        target = tl.gather(free, expert, 0) + bits_set(mark & earlier)
        tl.store(order + target, (word + nth) * (WORD * PER_TOKEN) + lane, mask=real)
        if nth + 1 < words:
            inside = (e < ROW) & ((word + nth) * WORD < tokens)
            free += bits_set(tl.load(marks + (word + nth) * ROW + e, mask=inside, other=0))
            expert, real, mark = _load_word(
                ids, marks, word + nth + 1, all_places, WORD, PER_TOKEN, ROW, lane
            )

    number = (total + BLOCK_M - 1) // BLOCK_M
    first = tl.cumsum(number, axis=0) - number
    for nth in range(own, tl.max(number, axis=0), segments):
        tile = tiles + (first + nth) * 3
        at = begin + nth * BLOCK_M
        tl.store(tile, e, mask=nth < number)
        tl.store(tile + 1, at, mask=nth < number)
        tl.store(tile + 2, tl.minimum(at + BLOCK_M, begin + total), mask=nth < number)
    if own == 0:
        tl.store(used, tl.sum(number, axis=0))
    for at in range(own * BINS, most, segments * BINS):
        tl.store(zeros + at + e, 0, mask=at + e < most)


def plan_visits(ids_TK: Tensor, visits: Visits, n_experts: int, block_m: int) -> TilePlan:
    """Return the assignments sorted by expert and their tiles."""
    (n_tokens, per_token), device, count = ids_TK.shape, ids_TK.device, ids_TK.numel()
    segments, row = visits.counts_SR.shape
    order_A = torch.empty(count, device=device, dtype=torch.int32)
    tiles_M3 = torch.empty(most_tiles(count, n_experts, block_m), 3, device=device, dtype=torch.int32)
    used = torch.empty(1, device=device, dtype=torch.int32)
    zeros = torch.empty(len(tiles_M3) + 1, device=device, dtype=torch.int32)
    held = triton.next_power_of_2(segments)
    _order_kernel[(segments,)](
        ids_TK,
        visits.marks_NR,
        visits.counts_SR.view(torch.int32),
        order_A,
        tiles_M3,
        used,
        zeros,
        len(zeros),
        n_tokens,
        segments,
        visits.words,
        WORD=visits.word,
        PER_TOKEN=per_token,
        LANES=triton.next_power_of_2(visits.word * per_token),
        ROW=row,
        BINS=triton.next_power_of_2(max(2, n_experts)),
        SEGMENTS=held,
        BLOCK_M=block_m,
        HALVES=visits.counts_SR.dtype == torch.int16,
        num_warps=min(ORDER_WARPS, max(4, held // 8)),
    )
    return TilePlan(order_A, tiles_M3, used, zeros, block_m, per_token)
