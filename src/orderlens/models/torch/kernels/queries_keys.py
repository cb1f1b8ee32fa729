# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""QK-norm, partial rotary encoding and the write to the cache: one program per (token, head).

Reads the fused projection [T, (H + 2K)·D] and writes normalised, rotated queries and keys [T, H + K, D].
Values need no work: attention reads them in place. When storing, keys and values also go to their pages.

Shape letters: T tokens, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.models.torch.pages import PAGE, PagePool
from orderlens.models.torch.shapes import HeadNorms, HeadShape
from orderlens.models.torch.window import Windows


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
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    ROTARY: tl.constexpr,
    PAGE: tl.constexpr,
    QK_NORM: tl.constexpr,
    STORE: tl.constexpr,
):
    """Prepare one head of one token; grid (T, H + K), or (T, H + 2K) when storing.

    Reads fused [T, (H + 2K)·D], the norm weights [D], cos and sin [positions, ROTARY / 2] and packed (cache
    row, start and width of a window); writes out [T, H + K, D] and, for positions inside a window's width,
    its key or value to page [K, PAGE, D]. A head is one vector of D lanes: the rotation's partner is loaded
    and normalised a second time, so that lanes need not exchange values. Positions past the last table row
    occur only in padding and are clamped.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    window, offset = token // WIDTH, token % WIDTH
    row = tl.load(packed + window * packed_stride)
    position = tl.load(packed + window * packed_stride + 1) + offset
    stored = offset < tl.load(packed + window * packed_stride + 2)
    d = tl.arange(0, HEAD)
    source = fused + (token * (HEADS + 2 * KV_HEADS) + head) * HEAD
    dtype = out.dtype.element_ty
    x = tl.load(source + d).to(tl.float32)
    if head < HEADS + KV_HEADS:
        half: tl.constexpr = ROTARY // 2
        partner = tl.where(d < half, d + half, tl.where(d < ROTARY, d - half, d))
        y = tl.load(source + partner).to(tl.float32)
        if QK_NORM:
            weight = q_norm if head < HEADS else k_norm
            scale = tl.rsqrt(tl.sum(x * x, axis=0) / HEAD + eps)
            x = (x * scale).to(dtype).to(tl.float32) * tl.load(weight + d).to(tl.float32)
            y = (y * scale).to(dtype).to(tl.float32) * tl.load(weight + partner).to(tl.float32)
            x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
        angle = tl.minimum(position, last_position) * half + d % half
        turning = d < ROTARY
        c = tl.load(cos + angle, mask=turning, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=turning, other=0.0).to(tl.float32)
        x = x * c + tl.where(d < half, -y, y) * s
        tl.store(out + (token * (HEADS + KV_HEADS) + head) * HEAD + d, x.to(dtype))
    if STORE:  # noqa: SIM102  the outer test is for the compiler, the inner one for the device
        if stored & (head >= HEADS):
            page = tl.load(table + row.to(tl.int64) * table_stride + position // PAGE).to(tl.int64)
            kv = (head - HEADS) % KV_HEADS
            place = ((page * KV_HEADS + kv) * PAGE + position % PAGE) * HEAD + d
            if head < HEADS + KV_HEADS:
                tl.store(keys + place, x.to(dtype))
            else:
                tl.store(values + place, x.to(dtype))


def prepare_heads(
    fused_TO: Tensor,
    layer: HeadNorms,
    tables: tuple[Tensor, Tensor],
    windows: Windows,
    pool: PagePool | None,
    index: int,
    config: HeadShape,
    store: bool,
) -> Tensor:
    """Return queries and keys [T, H + K, D]; with ``store`` also cache the windows' keys and values.

    Without ``store`` no pool is needed. The rotation is computed in float32 whatever the tables' dtype.
    """
    heads = config.n_heads + config.n_kv_heads
    out = torch.empty(len(fused_TO), heads, config.head_width, device=fused_TO.device, dtype=fused_TO.dtype)
    unused = tables[0]
    cache = (unused, unused, unused)
    if store and pool is not None:
        cache = (pool.keys[index], pool.values[index], pool.table_RX)
    grid = (len(fused_TO), heads + (config.n_kv_heads if store else 0))
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
        WIDTH=windows.width,
        HEADS=config.n_heads,
        KV_HEADS=config.n_kv_heads,
        HEAD=config.head_width,
        ROTARY=config.rotary_width,
        PAGE=PAGE,
        QK_NORM=layer.q_norm_D is not None,
        STORE=store,
        num_warps=1,
    )
    return out
