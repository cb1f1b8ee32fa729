"""Parts of a layer in plain torch that networks share: norms, heads, rotary encoding, products, output bias.

Norms compute in float32 and round to the model's dtype before scaling, as published. Rotary encoding rotates
the first dimensions of a head in the rotate-half convention; angles are float32. Published code rounds its
tables to the model's dtype once, our network rounds on rotation: ``rotate`` supports both. On the CPU, wide
matrices are packed once into oneDNN's blocks, and 16-bit operands are widened if the processor lacks 16-bit
products.

A head multiplies hidden states by one matrix and adds nothing. So a bias of the output layer becomes one more
column of the matrix, and every hidden state is extended by a 1. Both are padded with zeros to a width that
the fused head supports. The result is exact: the sum has one more term.

Shape letters: N windows, W width, T = N·W tokens, O outputs of a projection, H heads, K key/value heads,
D head width, V vocabulary, C model width; in products R rows, O outputs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from orderlens.kernels.shapes import HeadNorms, HeadShape

PACKED_ROWS, PACKED_NUMBERS, PACKED_RATIO = range(4, 161), range(2**16, 2**26 + 1), 4
"""Where packed blocks beat MKL: rows, numbers in the matrix, and minimum ratio of outputs to inputs."""
_copies: Any = WeakTensorKeyDictionary()
"""Matrix → ((address, version), packed or widened copy); an entry is dropped together with its matrix."""


def rotary_tables(
    width: int,
    theta: float,
    n_positions: int,
    device: torch.device,
    dtype: torch.dtype,
    factors: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, width / 2] in ``dtype`` for the first ``width`` dimensions of a head.

    ``factors`` [width / 2] multiply the frequencies.
    """
    exponent = torch.arange(0, width, 2, device=device).float() / width
    frequency = 1.0 / theta**exponent
    if factors is not None:
        frequency = frequency * torch.tensor(factors, device=device)
    angle = torch.arange(n_positions, device=device).float()[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotary_at(positions_BT: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin at these positions, each [B, 1, T, width / 2], in float32."""
    half = width // 2
    frequency = theta ** (-torch.arange(half, device=positions_BT.device, dtype=torch.float32) / half)
    angle = positions_BT[:, None, :, None].float() * frequency
    return angle.cos(), angle.sin()


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading dimensions of every head (2 × the last size of ``cos``); the others stay unchanged.

    Any dimensions may precede the last, if ``cos`` and ``sin`` have the same ones (or 1).
    """
    half = cos.shape[-1]
    cos, sin = cos.to(x_BHTD.dtype), sin.to(x_BHTD.dtype)
    if x_BHTD.device.type == "cpu" and x_BHTD.dtype == torch.float32 and x_BHTD.shape[-1] == 2 * half:
        # The same sums in two passes over memory instead of eight.
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
    if is_cpu_inference(x):
        return fused_rms_norm(x, weight, eps)
    scale = torch.rsqrt(x.float().pow(2).mean(dim=-1, keepdim=True) + eps)
    return (x.float() * scale).to(x.dtype) * weight


def is_cpu_inference(x: Tensor) -> bool:
    """Return whether ``x`` is float32 on the CPU without gradients, where memory passes cost most."""
    return not torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype == torch.float32


def fused_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm over the last dimension; ``weight`` may vary along the dimension before it."""
    width = x.shape[-1]
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    least = length.new_full((), (width * eps) ** 0.5)
    return x.div(torch.hypot(length, least)).mul_(weight * width**0.5)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up, halving the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def rotated_heads(
    fused_TO: Tensor,
    layer: HeadNorms,
    tables: tuple[Tensor, Tensor],
    positions_NW: Tensor,
    config: HeadShape,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [N, H, W, D], keys and values [N, K, W, D]; norms and rotary encoding applied.

    Args:
        fused_TO: output of the fused query, key and value projection.
        layer: norms of queries and keys.
        tables: cos and sin [positions, half the rotated width]; float32 tables rotate in float32.
        positions_NW: absolute positions; those beyond the tables (padding) use the last row.
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


def _supports(operator: str) -> bool:
    """Return whether oneDNN reports this product on this processor; true if torch is too old to ask."""
    found = getattr(torch.ops.mkldnn, operator, None)
    return found is None or bool(found())


_SUPPORT: dict[torch.dtype, Callable[[], bool]] = {
    torch.bfloat16: cache(lambda: _supports("_is_mkldnn_bf16_supported")),
    torch.float16: cache(lambda: _supports("_is_mkldnn_fp16_supported")),
}
"""Whether 16-bit products are fast on this processor."""


def linear(x: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weightᵀ + bias as torch does, except for 16 bits on a processor without 16-bit products.

    There the operands are widened and the result is rounded, as on a GPU: torch's own loop takes about 30
    times as long.
    """
    if x.device.type != "cpu" or x.dtype not in _SUPPORT or _SUPPORT[x.dtype]():
        return functional.linear(x, weight_OD, bias_O)
    bias_O = None if bias_O is None else bias_O.float()
    return functional.linear(x.float(), weight_OD.float(), bias_O).to(x.dtype)


def packed_linear(x: Tensor, weight_OD: Tensor) -> Tensor:
    """Return x @ weightᵀ, [..., D] to [..., O].

    In float32 on the CPU, without gradients, a wide matrix is packed at its first product with few rows. The
    packed copy is cached while the matrix exists and is unchanged; MKL would pack it for every product. Pass
    a long-lived tensor, not a slice made for the call.
    """
    if not can_pack(x, weight_OD):
        return linear(x, weight_OD)
    pack = torch.ops.mkldnn._reorder_linear_weight
    packed = _copied(weight_OD, lambda: pack(weight_OD.detach().contiguous(), PACKED_ROWS.stop))
    return torch.as_tensor(torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""))


def widened(weight_OD: Tensor) -> Tensor:
    """Return a matrix in float32; the copy is cached while the matrix exists and is unchanged."""
    if weight_OD.is_inference():  # such a tensor has no version counter
        return weight_OD.float()
    return _copied(weight_OD, lambda: weight_OD.detach().float())


def _copied(weight: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return the cached copy of a matrix; make it again after the matrix changed."""
    state = (weight.data_ptr(), weight._version)
    found = _copies.get(weight)
    if found is None or found[0] != state:
        found = _copies[weight] = (state, make())
    return torch.as_tensor(found[1])


def can_pack(x: Tensor, weight_OD: Tensor) -> bool:
    """Return whether the packed product applies and is faster."""
    outputs, width = weight_OD.shape
    return (
        not (torch.is_grad_enabled() and (x.requires_grad or weight_OD.requires_grad))
        and x.device.type == "cpu"
        and x.dtype == weight_OD.dtype == torch.float32
        and outputs >= PACKED_RATIO * width
        and x.numel() // width in PACKED_ROWS
        and outputs * width in PACKED_NUMBERS
        and not weight_OD.is_inference()  # such a tensor has no version counter
        and _has_packed_product()
    )


def _has_packed_product() -> bool:
    has = getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None
    return has and bool(torch._C._has_mkldnn)


WIDTH_STEP = 32
"""Widths with a bias column are multiples of this, as ``kernels.head.fused_head.can_fuse`` requires."""


def with_bias(weight_VC: Tensor, bias_V: Tensor) -> Tensor:
    """Return the matrix with its bias as column C, followed by zeros."""
    padded_VX = functional.pad(weight_VC, (0, _extra_width(weight_VC.shape[1])))
    padded_VX[:, weight_VC.shape[1]] = bias_V
    return padded_VX


def with_one(hidden: Tensor) -> Tensor:
    """Return hidden states [..., C] followed by a 1, then zeros: the operand of a ``with_bias`` matrix."""
    width = hidden.shape[-1]
    padded = functional.pad(hidden, (0, _extra_width(width)))
    padded[..., width] = 1
    return padded


def _extra_width(width: int) -> int:
    return 1 + (-width - 1) % WIDTH_STEP
