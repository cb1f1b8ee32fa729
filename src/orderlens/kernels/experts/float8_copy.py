# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The warps of ``float8_hopper`` that copy: one takes items and copies their weights, four copy tokens.

An item is a tile of assignments times a part of its expert's weights: SIDE rows of gate and of up, or two
times SIDE rows of down. Its weights and tokens go through a ring of stages, SIDE columns in each. The barrier
``full`` signals that a stage is loaded, ``empty`` that it has been used. For the ring of items, ``given`` and
``taken`` do the same. Written in Gluon.

Shape letters: T tokens, C model width, F expert width, A assignments, K columns of a product (C or F).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier, tma

from orderlens.kernels.shapes import SIDE as TILE_SIDE

SIDE = gl.constexpr(TILE_SIDE)
FEW = gl.constexpr(32)
"""Tiles of at most this number of assignments multiply no more rows; both parts are one operand."""
SLOTS = gl.constexpr(4)
"""Items that may wait for the other warps."""


@gluon.jit
def next_stage(index, phase, COUNT: gl.constexpr):
    """Return the next stage of a ring and the phase of its barriers."""
    wraps = index == COUNT - 1
    return gl.where(wraps, 0, index + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def _give(item, expert, low, high, line, slot, turn):
    """Give the other warps the next item, its expert, its first place and its last place + 1."""
    items, given, taken = line
    FIELDS: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    field = gl.arange(0, 4, FIELDS)
    about = gl.where(field == 0, item, gl.where(field == 1, expert, gl.where(field == 2, low, high)))
    mbarrier.wait(taken.index(slot), turn)
    items.index(slot).store(about)
    mbarrier.arrive(given.index(slot), count=1)
    return next_stage(slot, turn, SLOTS)


@gluon.jit
def take(line, slot, turn):
    """Return what ``_give`` stored, and the next slot."""
    items, given, taken = line
    FIELDS: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    field = gl.arange(0, 4, FIELDS)
    mbarrier.wait(given.index(slot), turn)
    about = items.index(slot).load(FIELDS)
    item, expert = gl.sum(gl.where(field == 0, about, 0), 0), gl.sum(gl.where(field == 1, about, 0), 0)
    low, high = gl.sum(gl.where(field == 2, about, 0), 0), gl.sum(gl.where(field == 3, about, 0), 0)
    mbarrier.arrive(taken.index(slot), count=1)
    slot, turn = next_stage(slot, turn, SLOTS)
    return item, expert, low, high, slot, turn


@gluon.jit
def tile_and_part(item, ups, C: gl.constexpr, F: gl.constexpr):
    """Return an item's tile, and its part of gate and up or of down."""
    UPS: gl.constexpr = F // SIDE
    DOWNS: gl.constexpr = C // (2 * SIDE)
    later = item - ups
    return gl.where(item < ups, item // UPS, later // DOWNS), gl.where(item < ups, item % UPS, later % DOWNS)


@gluon.jit
def item_counts(used, C: gl.constexpr, F: gl.constexpr):
    """Return the number of items of gate and up, and of all items."""
    tiles = gl.load(used)
    return tiles * (F // SIDE), tiles * (F // SIDE + C // (2 * SIDE))


@gluon.jit
def _copy_weights(matrix, row, other, ring, index, phase, K: gl.constexpr, STAGES: gl.constexpr):
    """Copy SIDE rows from ``row`` and from ``other`` on, stage by stage."""
    panels, full, empty = ring
    for k in range(0, K, SIDE):
        mbarrier.wait(empty.index(index), phase)
        ready = full.index(index)
        mbarrier.expect(ready, 2 * SIDE * SIDE)  # bytes
        tma.async_copy_global_to_shared(matrix, [row, k], ready, panels.index(2 * index))
        tma.async_copy_global_to_shared(matrix, [other, k], ready, panels.index(2 * index + 1))
        index, phase = next_stage(index, phase, STAGES)
    return index, phase


@gluon.jit
def load_weights(
    gate_up, down, tiles, used, counter, ring, line, C: gl.constexpr, F: gl.constexpr, STAGES: gl.constexpr
):
    """Take items, give them to the other warps and copy their weights; runs on one warp.

    An item beyond the last one ends the work.
    """
    ups, every = item_counts(used, C, F)
    index, phase, slot, turn = gl.to_tensor(0), gl.to_tensor(1), gl.to_tensor(0), gl.to_tensor(1)
    item = gl.atomic_add(counter, 1, sem="relaxed")
    while item < every:
        tile, part = tile_and_part(item, ups, C, F)
        at = tiles + tile * 3
        expert, low, high = gl.load(at), gl.load(at + 1), gl.load(at + 2)
        slot, turn = _give(item, expert, low, high, line, slot, turn)
        if item < ups:
            row = expert * (2 * F) + part * SIDE
            index, phase = _copy_weights(gate_up, row, row + F, ring, index, phase, C, STAGES)
        else:
            row = expert * C + part * (2 * SIDE)
            index, phase = _copy_weights(down, row, row + SIDE, ring, index, phase, F, STAGES)
        item = gl.atomic_add(counter, 1, sem="relaxed")
    _give(item, 0, 0, 0, line, slot, turn)


@gluon.jit
def _await(written, tile, count: gl.constexpr):
    """Wait until ``count`` items of a tile are written."""
    at = (written + tile).to(gl.uint64, bitcast=True)
    READ: gl.constexpr = "ld.acquire.gpu.global.s32 $0, [$1];"
    found = gl.inline_asm_elementwise(READ, "=r,l", [at], gl.int32, is_pure=False, pack=1)
    while found < count:
        found = gl.inline_asm_elementwise(READ, "=r,l", [at], gl.int32, is_pure=False, pack=1)


@gluon.jit
def _copy_rows(
    values, scale, plane, order, low, high, ring, index, phase,
    PER_TOKEN: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy both parts and the scales of ROWS places, stage by stage; with PER_TOKEN, of their tokens."""
    tokens, factors, full, empty = ring
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [gl.num_warps(), 1], [1, 0])
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    row, spot = low + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), low + gl.arange(0, ROWS, FLAT)
    real, inside = row < high, spot < high
    if PER_TOKEN:
        row = gl.load(order + row, mask=real, other=0) // PER_TOKEN
        spot = gl.load(order + spot, mask=inside, other=0) // PER_TOKEN
    else:
        spot *= K // SIDE
    at = values + (row.to(gl.int64) * K)[:, None] + gl.arange(0, SIDE, gl.SliceLayout(0, LAYOUT))[None, :]
    for k in range(0, K, SIDE):
        mbarrier.wait(empty.index(index), phase)
        target, factor = tokens.index(index), factors.index(index).slice(0, ROWS, 0)
        async_copy.async_copy_global_to_shared(target.slice(0, ROWS, 0), at + k, mask=real[:, None])
        low_parts = target.slice(ROWS, ROWS, 0)
        async_copy.async_copy_global_to_shared(low_parts, at + plane + k, mask=real[:, None])
        group = 0 if PER_TOKEN else k // SIDE
        async_copy.async_copy_global_to_shared(factor, scale + spot + group, mask=inside)
        async_copy.mbarrier_arrive(full.index(index), increment_count=False)
        index, phase = next_stage(index, phase, STAGES)
    return index, phase


@gluon.jit
def _copy_tile(
    values, scale, plane, order, low, high, ring, index, phase,
    PER_TOKEN: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the tokens of one item, no more rows than needed."""
    if ROWS > FEW and high - low <= FEW:
        index, phase = _copy_rows(
            values, scale, plane, order, low, high, ring, index, phase, PER_TOKEN, K, FEW, STAGES
        )
    else:
        index, phase = _copy_rows(
            values, scale, plane, order, low, high, ring, index, phase, PER_TOKEN, K, ROWS, STAGES
        )
    return index, phase


@gluon.jit
def load_tokens(
    x, x_scale, plane, inner, inner_scale, inner_plane, order, used, written, ring, line,
    PER_TOKEN: gl.constexpr, C: gl.constexpr, F: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the tokens of all items; a tile of ``inner`` when it is written."""
    ups, every = item_counts(used, C, F)
    index, phase = gl.to_tensor(0), gl.to_tensor(1)
    item, _, low, high, slot, turn = take(line, gl.to_tensor(0), gl.to_tensor(0))
    while item < every:
        if item < ups:
            index, phase = _copy_tile(
                x, x_scale, plane, order, low, high, ring, index, phase, PER_TOKEN, C, ROWS, STAGES
            )
        else:
            tile, _ = tile_and_part(item, ups, C, F)
            _await(written, tile, F // SIDE)
            index, phase = _copy_tile(
                inner, inner_scale, inner_plane, order, low, high, ring, index, phase, 0, F, ROWS, STAGES
            )
        item, _, low, high, slot, turn = take(line, slot, turn)
