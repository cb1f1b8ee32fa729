"""Parts of a layer in plain torch that Llama-like networks share: norms, heads, rotary encoding, products.

Norms compute in float32 and round to the model's dtype before scaling, as published. Rotary encoding turns
the first dimensions of a head in the rotate-half convention; angles are float32. Published code rounds its
tables to the model's dtype once, our own network rounds when it turns: ``rotate`` takes either. On the CPU
wide matrices are packed once into oneDNN's blocks, and 16 bits are widened where it has no products for them.

Shape letters: N windows, W width, T = N·W tokens, O outputs of a projection, H heads, K key/value heads,
D head width; in products R rows, O outputs, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from orderlens.kernels.shapes import HeadNorms, HeadShape

PACKED_ROWS, PACKED_NUMBERS, PACKED_RATIO = range(4, 161), range(2**16, 2**26 + 1), 4
"""Where blocks beat MKL: number of rows, numbers of the matrix, and least ratio of outputs to inputs."""
_packed: Any = WeakTensorKeyDictionary()
"""Matrix → ((address, version), the same packed); gone with the matrix."""


def rotary_tables(
    width: int, theta: float, n_positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, width / 2] in ``dtype`` for the first ``width`` dimensions of a head."""
    exponent = torch.arange(0, width, 2, device=device).float() / width
    frequency = 1.0 / theta**exponent
    angle = torch.arange(n_positions, device=device).float()[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotary_at(positions_BT: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin of given positions, each [B, 1, T, width / 2], in float32."""
    half = width // 2
    frequency = theta ** (-torch.arange(half, device=positions_BT.device, dtype=torch.float32) / half)
    angle = positions_BT[:, None, :, None].float() * frequency
    return angle.cos(), angle.sin()


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the leading dimensions of every head, twice as many as ``cos`` has; the others pass unchanged.

    Any dimensions may stand before the last, as long as ``cos`` and ``sin`` have them too (or 1).
    """
    half = cos.shape[-1]
    cos, sin = cos.to(x_BHTD.dtype), sin.to(x_BHTD.dtype)
    if x_BHTD.device.type == "cpu" and x_BHTD.dtype == torch.float32 and x_BHTD.shape[-1] == 2 * half:
        # The same sums in two passes over the numbers instead of eight.
        pairs = x_BHTD.reshape(*x_BHTD.shape[:-1], 2, half)
        turned = pairs * cos.unsqueeze(-2)
        turned[..., 0, :].addcmul_(pairs[..., 1, :], sin, value=-1)
        turned[..., 1, :].addcmul_(pairs[..., 0, :], sin)
        return turned.reshape(x_BHTD.shape)
    a, b, rest = x_BHTD[..., :half], x_BHTD[..., half : 2 * half], x_BHTD[..., 2 * half :]
    first, second = a * cos - b * sin, b * cos + a * sin
    return torch.cat((first, second, rest) if rest.shape[-1] else (first, second), dim=-1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square over the last dimension, round, then scale."""
    if runs_plain(x):
        return normalised(x, weight, eps)
    scale = torch.rsqrt(x.float().pow(2).mean(dim=-1, keepdim=True) + eps)
    return (x.float() * scale).to(x.dtype) * weight


def runs_plain(x: Tensor) -> bool:
    """Return whether ``x`` is inference in float32 on the CPU, where every pass over the numbers counts."""
    return not torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype == torch.float32


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm over the last dimension; ``weight`` may differ along the one before it."""
    width = x.shape[-1]
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    least = length.new_full((), (width * eps) ** 0.5)
    return x.div(torch.hypot(length, least)).mul_(weight * width**0.5)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up, halving the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def turned_heads(
    fused_TO: Tensor,
    layer: HeadNorms,
    tables: tuple[Tensor, Tensor],
    positions_NW: Tensor,
    config: HeadShape,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [N, H, W, D], keys and values [N, K, W, D], queries and keys normalised and turned.

    Args:
        fused_TO: output of the fused query, key and value projection.
        layer: norms of queries and keys.
        tables: cos and sin [positions, half the turned width]; in float32 they turn in float32.
        positions_NW: absolute positions; those past the tables' end (padding) take the last row.
        config: the heads.
    """
    fused = fused_TO.view(*positions_NW.shape, -1, config.head_width)
    first_k, first_v = config.n_heads, config.n_heads + config.n_kv_heads
    q, k, v = (part.transpose(1, 2) for part in torch.tensor_split(fused, (first_k, first_v), dim=2))
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        q = rms_norm(q, layer.q_norm_D, config.norm_eps)
        k = rms_norm(k, layer.k_norm_D, config.norm_eps)
    places_NW = positions_NW.clamp_max(config.max_positions - 1)
    cos, sin = (table[places_NW][:, None] for table in tables)
    if cos.dtype == torch.float32 and q.dtype != torch.float32:
        return rotate(q.float(), cos, sin).to(v.dtype), rotate(k.float(), cos, sin).to(v.dtype), v
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _knows(operator: str) -> bool:
    """Return whether oneDNN says that this processor has products of a kind; older torch cannot say."""
    found = getattr(torch.ops.mkldnn, operator, None)
    return found is None or bool(found())


_SUPPORT: dict[torch.dtype, Callable[[], bool]] = {
    torch.bfloat16: cache(lambda: _knows("_is_mkldnn_bf16_supported")),
    torch.float16: cache(lambda: _knows("_is_mkldnn_fp16_supported")),
}
"""Whether products in 16 bits are fast here."""


def linear(x: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weightᵀ + bias as torch does, but for 16 bits on a processor without such products.

    There the operands are widened and the result is rounded, which is how a GPU counts: torch's own loop
    takes some thirty times as long.
    """
    if x.device.type != "cpu" or x.dtype not in _SUPPORT or _SUPPORT[x.dtype]():
        return functional.linear(x, weight_OD, bias_O)
    bias_O = None if bias_O is None else bias_O.float()
    return functional.linear(x.float(), weight_OD.float(), bias_O).to(x.dtype)


def product(x: Tensor, weight_OD: Tensor) -> Tensor:
    """Return x @ weightᵀ, [..., D] to [..., O].

    In float32 on the CPU, without gradients, a wide matrix is packed when it first meets few rows, and kept
    beside itself as long as it lives and stays the same: MKL packs it anew for every product. Give a tensor
    that stays, not a slice made for the call.
    """
    if not can_pack(x, weight_OD):
        return linear(x, weight_OD)
    state = (weight_OD.data_ptr(), weight_OD._version)
    kept = _packed.get(weight_OD)
    if kept is None or kept[0] != state:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight_OD.detach().contiguous(), PACKED_ROWS.stop)
        kept = _packed[weight_OD] = (state, packed)
    return torch.as_tensor(torch.ops.mkldnn._linear_pointwise(x, kept[1], None, "none", [], ""))


def can_pack(x: Tensor, weight_OD: Tensor) -> bool:
    """Return whether the packed product applies and is worth it."""
    outputs, width = weight_OD.shape
    return (
        not (torch.is_grad_enabled() and (x.requires_grad or weight_OD.requires_grad))
        and x.device.type == "cpu"
        and x.dtype == weight_OD.dtype == torch.float32
        and outputs >= PACKED_RATIO * width
        and x.numel() // width in PACKED_ROWS
        and outputs * width in PACKED_NUMBERS
        and not weight_OD.is_inference()  # such a tensor counts no changes
        and _installed()
    )


def _installed() -> bool:
    has = getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None
    return has and bool(torch._C._has_mkldnn)
