"""Rotary position encoding on the first dimensions of a head, in the rotate-half convention.

Angles are always computed in float32. Published code rounds its tables to the model's dtype once; our own
network rounds when it turns: both happen in ``rotate``, which takes either.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
