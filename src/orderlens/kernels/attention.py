# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention of windows over their cached prefix (paged) and themselves, and inside whole canvases.

Windows: one program handles all query heads that share a key/value head. With 4 heads of 32 positions, 128
queries share one read of every key. Long prefixes are split into parts that run in parallel; a second kernel
merges them in a fixed order. The loop ends at each window's start, so a longer sequence in the batch does not
slow a window down.

Canvases: heads of the fused projection are rotated when loaded, and nothing is written between the
projection and the attention's output. Queries and keys are rotated in float32 and rounded to the model's
dtype before they are multiplied, as separate operations would do.

Shape letters: N windows or canvases, W positions of each, T = N·W tokens, H query heads, K key/value heads,
D head width, S splits, M queries and X keys of a tile; pages hold [K, PAGE, D] each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.shapes import PAGE, CachedPages, HeadShape, WindowBatch

LOG2_E = 1.4426950408889634
BLOCK_KEYS = 64
MOST_QUERIES, FEW_WINDOWS, FEW_QUERIES = 128, 8, 64
"""Maximum queries of a program (over the heads that share keys). Up to FEW_WINDOWS windows with short
prefixes leave most of a GPU idle, so they use FEW_QUERIES. With long prefixes this would read the keys
twice."""
TARGET_PROGRAMS = 264
"""Two per multiprocessor of a large Hopper GPU; with fewer programs the kernels are memory-bound."""
KEYS_PER_SPLIT = 512
"""Minimum keys per split: for shorter ones merging costs more than the split saves."""


def split_count(n_programs: int, longest_start: int) -> int:
    """Return the number of parts (a power of two) into which the prefix is split."""
    wanted = min(TARGET_PROGRAMS // max(1, n_programs), longest_start // KEYS_PER_SPLIT, 64)
    return 1 << max(0, wanted.bit_length() - 1)


@triton.jit
def _fold(q, k, v, seen, top, mass, acc, scale):
    """Fold one tile of keys into the running softmax (base 2)."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(seen[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores - new_top[:, None])
    mass = mass * shrink + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return new_top, mass, acc


@triton.jit
def _attend_kernel(
    qk,
    fused,
    packed,
    keys,
    values,
    table,
    out,
    part_acc,
    part_top,
    part_mass,
    packed_stride,
    table_stride,
    scale,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Attend from one tile of queries to one split of the keys; grid (N, K, query tiles × S).

    Reads qk [T, H + K, D] (queries, then the window's own keys), fused [T, (H + 2K)·D] (its values, in
    place), packed [N, …] (cache row, start and width of a window) and the paged cache through table [row,
    page number]. Writes out [T, H·D] if the prefix is not split; else the unnormalised sums part_acc
    [T·H·S, D] with part_top and part_mass [T·H·S] for ``_merge_kernel``. A tile's rows are (head of the
    group, position), so that each key is read once for all heads that share it. The window's own keys belong
    to the last split and are processed first, because they need no table lookup.
    """
    window, kv, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    tile, split = part // SPLITS, part % SPLITS
    group: tl.constexpr = HEADS // KV_HEADS
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD)
    real = m < group * WIDTH
    token = window * WIDTH + m % WIDTH
    head = kv * group + m // WIDTH
    row = tl.load(packed + window * packed_stride).to(tl.int64)
    start = tl.load(packed + window * packed_stride + 1)
    width = tl.load(packed + window * packed_stride + 2)
    q = tl.load(qk + ((token * (HEADS + KV_HEADS) + head) * HEAD)[:, None] + d, mask=real[:, None], other=0.0)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], tl.float32)
    if split == SPLITS - 1:
        w = tl.arange(0, BLOCK_W)
        seen = w < width
        other = window * WIDTH + w
        k_place = ((other * (HEADS + KV_HEADS) + HEADS + kv) * HEAD)[:, None] + d
        v_place = ((other * (HEADS + 2 * KV_HEADS) + HEADS + KV_HEADS + kv) * HEAD)[:, None] + d
        k = tl.load(qk + k_place, mask=seen[:, None], other=0.0)
        v = tl.load(fused + v_place, mask=seen[:, None], other=0.0)
        top, mass, acc = _fold(q, k, v, seen, top, mass, acc, scale)
    span = tl.cdiv(tl.cdiv(start, SPLITS), BLOCK_N) * BLOCK_N
    low = split * span
    high = tl.minimum(start, low + span)
    for first in range(low, high, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        seen = position < high
        page = tl.load(table + row * table_stride + position // PAGE, mask=seen, other=0).to(tl.int64)
        place = (((page * KV_HEADS + kv) * PAGE + position % PAGE) * HEAD)[:, None] + d
        k = tl.load(keys + place, mask=seen[:, None], other=0.0)
        v = tl.load(values + place, mask=seen[:, None], other=0.0)
        top, mass, acc = _fold(q, k, v, seen, top, mass, acc, scale)
    if SPLITS == 1:
        place = ((token * HEADS + head) * HEAD)[:, None] + d
        tl.store(out + place, (acc / mass[:, None]).to(out.dtype.element_ty), mask=real[:, None])
    else:
        place = (token * HEADS + head) * SPLITS + split
        tl.store(part_acc + (place * HEAD)[:, None] + d, acc, mask=real[:, None])
        tl.store(part_top + place, top, mask=real)
        tl.store(part_mass + place, mass, mask=real)


@triton.jit
def _merge_kernel(part_acc, part_top, part_mass, out, SPLITS: tl.constexpr, HEAD: tl.constexpr):
    """Merge the splits of one (token, head)."""
    place = tl.program_id(0).to(tl.int64) * SPLITS + tl.arange(0, SPLITS)
    d = tl.arange(0, HEAD)
    top = tl.load(part_top + place)
    weight = tl.exp2(top - tl.max(top, axis=0))
    mass = tl.sum(weight * tl.load(part_mass + place), axis=0)
    acc = tl.load(part_acc + (place * HEAD)[:, None] + d)
    merged = tl.sum(acc * weight[:, None], axis=0) / mass
    tl.store(out + tl.program_id(0).to(tl.int64) * HEAD + d, merged.to(out.dtype.element_ty))


def attend(
    qk_THD: Tensor,
    fused_TO: Tensor,
    windows: WindowBatch,
    pool: CachedPages,
    index: int,
    config: HeadShape,
    splits: int,
) -> Tensor:
    """Return attention outputs [T, H·D].

    Args:
        qk_THD: queries then keys [T, H + K, D], normalised and rotated.
        fused_TO: the projection's output, whose last K heads are the values.
        windows: rows, starts and widths.
        pool: the cache.
        index: layer.
        config: shape.
        splits: number of parts of the prefix.
    """
    group, D = config.n_heads // config.n_kv_heads, config.head_width
    tokens, device = len(fused_TO), fused_TO.device
    out = torch.empty(tokens, config.n_heads * D, device=device, dtype=fused_TO.dtype)
    parts = tokens * config.n_heads * splits if splits > 1 else 1
    part_acc = torch.empty(parts * D, device=device, dtype=torch.float32)
    part_top, part_mass = torch.empty(2, parts, device=device, dtype=torch.float32)
    most = FEW_QUERIES if windows.count <= FEW_WINDOWS and splits == 1 else MOST_QUERIES
    block_m = min(most, max(16, triton.next_power_of_2(group * windows.width)))
    tiles = triton.cdiv(group * windows.width, block_m)
    _attend_kernel[(windows.count, config.n_kv_heads, tiles * splits)](
        qk_THD,
        fused_TO,
        windows.packed_NX,
        pool.keys[index],
        pool.values[index],
        pool.table_RX,
        out,
        part_acc,
        part_top,
        part_mass,
        windows.packed_NX.stride(0),
        pool.table_RX.stride(0),
        D**-0.5 * LOG2_E,
        WIDTH=windows.width,
        HEADS=config.n_heads,
        KV_HEADS=config.n_kv_heads,
        HEAD=D,
        PAGE=PAGE,
        SPLITS=splits,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_KEYS,
        BLOCK_W=max(16, triton.next_power_of_2(windows.width)),
        num_warps=8 if block_m >= 128 else 4,
        num_stages=2,
    )
    if splits > 1:
        _merge_kernel[(tokens * config.n_heads,)](
            part_acc, part_top, part_mass, out, SPLITS=splits, HEAD=D, num_warps=1
        )
    return out


@triton.jit
def _turned(base, position, inside, cos, sin, stride, HALF: tl.constexpr, dtype: tl.constexpr):
    """Return the two halves [X, D / 2] of one head at several positions, rotated and rounded."""
    d = tl.arange(0, HALF)
    place = base + position.to(tl.int64)[:, None] * stride + d
    a = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
    b = tl.load(place + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
    angle = position[:, None] * HALF + d
    c = tl.load(cos + angle, mask=inside[:, None], other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=inside[:, None], other=0.0).to(tl.float32)
    return (a * c - b * s).to(dtype), (b * c + a * s).to(dtype)


@triton.jit
def _canvas_kernel(
    fused,
    cos,
    sin,
    out,
    width,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """Attend from one tile of queries of one head to its whole canvas; grid (query tiles, H, N).

    Reads fused [T, (H + 2K)·D] and the rotary tables [positions, D / 2]; writes out [T, H·D].
    """
    tile, head, canvas = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    half: tl.constexpr = HEAD // 2
    stride: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD
    dtype = out.dtype.element_ty
    kv = head // (HEADS // KV_HEADS)
    start = fused + canvas * width * stride
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD)
    qa, qb = _turned(start + head * HEAD, m, m < width, cos, sin, stride, half, dtype)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], tl.float32)
    for first in range(0, width, BLOCK_X):
        x = first + tl.arange(0, BLOCK_X)
        inside = x < width
        ka, kb = _turned(start + (HEADS + kv) * HEAD, x, inside, cos, sin, stride, half, dtype)
        scores = tl.dot(qa, tl.trans(ka), input_precision="ieee")
        scores = tl.dot(qb, tl.trans(kb), scores, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(scores - new_top[:, None])
        v_place = start + x.to(tl.int64)[:, None] * stride + (HEADS + KV_HEADS + kv) * HEAD + d
        v = tl.load(v_place, mask=inside[:, None], other=0.0)
        mass = mass * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    place = ((canvas * width + m) * HEADS + head) * HEAD
    tl.store(out + place[:, None] + d, (acc / mass[:, None]).to(dtype), mask=(m < width)[:, None])


def attend_canvas(fused_TO: Tensor, count: int, tables: tuple[Tensor, Tensor], config: HeadShape) -> Tensor:
    """Return attention outputs [T, H·D] of ``count`` canvases of equal width, without norms on the heads.

    Args:
        fused_TO: queries, keys and values of every token, without rotary encoding.
        count: N.
        tables: cos and sin [positions, D / 2].
        config: the heads; rotary encoding applies to all dimensions of a head.
    """
    width, D = len(fused_TO) // count, config.head_width
    out_TO = torch.empty(len(fused_TO), config.n_heads * D, device=fused_TO.device, dtype=fused_TO.dtype)
    tiling = choose_tiling(count, width, config.n_heads)
    _canvas_kernel[(triton.cdiv(width, tiling.block_m), config.n_heads, count)](
        fused_TO,
        *tables,
        out_TO,
        width,
        D**-0.5 * LOG2_E,
        HEADS=config.n_heads,
        KV_HEADS=config.n_kv_heads,
        HEAD=D,
        BLOCK_M=tiling.block_m,
        BLOCK_X=tiling.block_x,
        num_warps=tiling.warps,
        num_stages=2,
    )
    return out_TO


class CanvasTiling(NamedTuple):
    """Queries and keys of a tile, and warps of a program."""

    block_m: int
    block_x: int
    warps: int


def choose_tiling(count: int, width: int, n_heads: int) -> CanvasTiling:
    """Return the tiling: the fastest on an H200 at 160 positions, for 1 and for 32 canvases."""
    few = count * n_heads * triton.cdiv(width, 64) < TARGET_PROGRAMS
    block_m = min(64, max(16, triton.next_power_of_2(width)))
    return CanvasTiling(block_m, 64 if few or width % 64 == 0 else 32, 4)
