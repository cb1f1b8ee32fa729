# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention inside whole canvases, from the fused projection: heads are rotated when loaded.

Nothing is written between the projection and the attention's output. Queries and keys are rotated in float32
and rounded to the model's dtype before they are multiplied, as separate operations would do.

Shape letters: N canvases, W positions of a canvas, T = N·W tokens, H query heads, K key/value heads, D head
width, M queries and X keys of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.shapes import HeadShape

LOG2_E = 1.4426950408889634
TARGET_PROGRAMS = 264
"""Two per multiprocessor of a large Hopper GPU; with fewer programs the kernel is memory-bound."""


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
