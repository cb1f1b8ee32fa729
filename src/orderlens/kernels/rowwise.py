# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels that pass over each row once: residual addition with RMS norm, SwiGLU, queries and keys.

For queries and keys, one program handles a head of a few tokens: QK-norm, partial rotary encoding and the
write to the cache. It reads the fused projection [T, (H + 2K)·D] and writes normalised, rotated queries and
keys [T, H + K, D]. Values need no work: attention reads them in place. When storing, keys and values also go
to their pages.

Shape letters: T tokens, C model width, F feed-forward width, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.pairs import Pairs, scale_of, store_pair
from orderlens.kernels.shapes import PAGE, CachedPages, HeadNorms, HeadShape, WindowBatch

SWIGLU_BLOCK = 1024
"""Numbers of a row per program of SwiGLU."""
FEW_TOKENS = 128
"""Up to this number of tokens, a program handles one token, so that the programs fill the GPU."""


@triton.jit
def scaled_rms(x, weight, eps, WIDTH: tl.constexpr, dtype: tl.constexpr):
    """Normalise float32 ``x``, round to ``dtype``, then scale: the published order of rounding."""
    mean_square = tl.sum(x * x, axis=0) / WIDTH
    rounded = (x * tl.rsqrt(mean_square + eps)).to(dtype)
    return rounded.to(tl.float32) * weight.to(tl.float32)


@triton.jit
def _add_norm_kernel(
    x,
    delta,
    weight,
    total,
    out,
    parts,
    part_scale,
    plane,
    eps,
    HAS_DELTA: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add and normalise one row; grid (T,), BLOCK the next power of two of C.

    Reads x [T, C], delta [T, C] and weight [C]; writes total [T, C] (only with delta) and out [T, C], with
    PAIRS also as parts [2, T, C] with part_scale [T].
    The sum is rounded before its square is taken: the residual stream holds the rounded value.
    """
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += tl.load(delta + row + column, mask=inside, other=0.0).to(tl.float32)
        value = value.to(dtype).to(tl.float32)
        tl.store(total + row + column, value.to(dtype), mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0)
    normed = scaled_rms(value, scale, eps, WIDTH, dtype).to(dtype)
    tl.store(out + row + column, normed, mask=inside)
    if PAIRS:
        wide = normed.to(tl.float32)
        found, inverse = scale_of(tl.max(tl.abs(wide), axis=0))
        tl.store(part_scale + tl.program_id(0), found)
        store_pair(wide * inverse, parts + row + column, plane, inside)


def add_rms_norm(
    x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor, eps: float, pairs: Pairs | None = None
) -> tuple[Tensor, Tensor]:
    """Return x + delta (x itself without delta) and its scaled RMS norm; the norm also fills ``pairs``."""
    rows, width = x_TC.shape
    normed_TC = torch.empty_like(x_TC)
    total_TC = x_TC if delta_TC is None else torch.empty_like(x_TC)
    block = triton.next_power_of_2(width)
    _add_norm_kernel[(rows,)](
        x_TC,
        x_TC if delta_TC is None else delta_TC,
        weight_C,
        total_TC,
        normed_TC,
        x_TC if pairs is None else pairs.parts_2NK,
        x_TC if pairs is None else pairs.scale_NG,
        rows * width,
        eps,
        HAS_DELTA=delta_TC is not None,
        PAIRS=pairs is not None,
        WIDTH=width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return total_TC, normed_TC


@triton.jit
def _swiglu_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Fill one piece of a row; grid (T, pieces of F).

    Reads gate_up [T, 2F] (gate, then up) and writes out [T, F].
    silu(gate) is rounded to the model's dtype before it is multiplied, as two separate operations would do.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    at = row * 2 * WIDTH + column
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    rounded = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * WIDTH + column, (rounded * up).to(dtype), mask=inside)


def swiglu(gate_up_TF: Tensor) -> Tensor:
    """Return silu(gate) · up [T, F] of concatenated gate and up [T, 2F]."""
    tokens, width = len(gate_up_TF), gate_up_TF.shape[1] // 2
    out_TF = gate_up_TF.new_empty(tokens, width)
    _swiglu_kernel[(tokens, triton.cdiv(width, SWIGLU_BLOCK))](
        gate_up_TF,
        out_TF,
        WIDTH=width,
        BLOCK=SWIGLU_BLOCK,
        num_warps=4,
    )
    return out_TF


@triton.jit
def _heads_kernel(
    fused,
    packed,
    q_norm,
    k_norm,
    cos,
    sin,
    out,
    keys,
    values,
    table,
    packed_stride,
    table_stride,
    last_position,
    eps,
    tokens,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    QK_NORM: tl.constexpr,
    STORE: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Prepare one head of BLOCK_T tokens; grid (T / BLOCK_T, H + K), when storing H + 2K.

    Reads fused [T, (H + 2K)·D], the norm weights [D], cos and sin [positions, ROTARY / 2] and packed (cache
    row, start and width of a window); writes out [T, H + K, D] and, for positions inside a window's width,
    its key or value to page [K, PAGE, D]. A head is one vector of D lanes: the rotation's partner is loaded
    and normalised a second time, so that lanes need not exchange values. Positions past the last table row
    occur only in padding and are clamped.
    """
    token, head = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.program_id(1)
    there = token < tokens
    window, offset = token // WIDTH, token % WIDTH
    position = tl.load(packed + window * packed_stride + 1, mask=there, other=0) + offset
    d = tl.arange(0, HEAD)[None, :]
    source = ((token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * HEAD)[:, None]
    dtype = out.dtype.element_ty
    x = tl.load(fused + source + d, mask=there[:, None], other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        half: tl.constexpr = ROTARY // 2
        partner = tl.where(d < half, d + half, tl.where(d < ROTARY, d - half, d))
        y = tl.load(fused + source + partner, mask=there[:, None], other=0.0).to(tl.float32)
        if QK_NORM:
            weight = q_norm if head < HEADS else k_norm
            scale = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD + eps)[:, None]
            x = (x * scale).to(dtype).to(tl.float32) * tl.load(weight + d).to(tl.float32)
            y = (y * scale).to(dtype).to(tl.float32) * tl.load(weight + partner).to(tl.float32)
            x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
        angle = (tl.minimum(position, last_position) * half)[:, None] + d % half
        turning = (d < ROTARY) & there[:, None]
        c = tl.load(cos + angle, mask=turning, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=turning, other=0.0).to(tl.float32)
        x = x * c + tl.where(d < half, -y, y) * s
        target = ((token.to(tl.int64) * (HEADS + KV_HEADS) + head) * HEAD)[:, None]
        tl.store(out + target + d, x.to(dtype), mask=there[:, None])
    if STORE:  # noqa: SIM102  the outer test is for the compiler, the inner one for the device
        if head >= HEADS:
            row = tl.load(packed + window * packed_stride, mask=there, other=0).to(tl.int64)
            inside = there & (offset < tl.load(packed + window * packed_stride + 2, mask=there, other=0))
            page = tl.load(table + row * table_stride + position // PAGE, mask=inside, other=0).to(tl.int64)
            kv = (head - HEADS) % KV_HEADS
            place = (((page * KV_HEADS + kv) * PAGE + position % PAGE) * HEAD)[:, None] + d
            if head < HEADS + KV_HEADS:
                tl.store(keys + place, x.to(dtype), mask=inside[:, None])
            else:
                tl.store(values + place, x.to(dtype), mask=inside[:, None])


def prepare_heads(
    fused_TO: Tensor,
    layer: HeadNorms,
    tables: tuple[Tensor, Tensor],
    windows: WindowBatch,
    pool: CachedPages | None,
    index: int,
    config: HeadShape,
    store: bool,
) -> Tensor:
    """Return queries and keys [T, H + K, D]; with ``store`` also cache the windows' keys and values.

    Without ``store`` no pool is needed. The rotation is computed in float32 for tables of any dtype.
    """
    heads = config.n_heads + config.n_kv_heads
    out = torch.empty(len(fused_TO), heads, config.head_width, device=fused_TO.device, dtype=fused_TO.dtype)
    unused = tables[0]
    cache = (unused, unused, unused)
    if store and pool is not None:
        cache = (pool.keys[index], pool.values[index], pool.table_RX)
    block = 1 if len(fused_TO) <= FEW_TOKENS else 8
    grid = (triton.cdiv(len(fused_TO), block), heads + (config.n_kv_heads if store else 0))
    _heads_kernel[grid](
        fused_TO,
        windows.packed_NX,
        layer.q_norm_D if layer.q_norm_D is not None else unused,
        layer.k_norm_D if layer.k_norm_D is not None else unused,
        *tables,
        out,
        *cache,
        windows.packed_NX.stride(0),
        cache[2].stride(0),
        config.max_positions - 1,
        config.norm_eps,
        len(fused_TO),
        WIDTH=windows.width,
        HEADS=config.n_heads,
        KV_HEADS=config.n_kv_heads,
        HEAD=config.head_width,
        ROTARY=config.rotary_width,
        PAGE=PAGE,
        QK_NORM=layer.q_norm_D is not None,
        STORE=store,
        BLOCK_T=block,
        num_warps=1 if block == 1 else 4,
    )
    return out
