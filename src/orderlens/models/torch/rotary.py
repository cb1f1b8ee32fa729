"""Rotary position encoding on the first dimensions of a head, in the rotate-half convention."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(
    width: int, theta: float, n_positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, width / 2] for the first ``width`` dimensions of a head.

    Angles are computed in float32 and the tables rounded to the model's dtype, as published code does.
    """
    exponent = torch.arange(0, width, 2, device=device).float() / width
    frequency = 1.0 / theta**exponent
    angle = torch.arange(n_positions, device=device).float()[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x_NHWD: Tensor, cos_N1Wh: Tensor, sin_N1Wh: Tensor) -> Tensor:
    """Turn the leading dimensions of every head; the trailing ones pass unchanged."""
    half = cos_N1Wh.shape[-1]
    a, b, rest = torch.tensor_split(x_NHWD, (half, 2 * half), dim=-1)
    turned = (a * cos_N1Wh - b * sin_N1Wh, b * cos_N1Wh + a * sin_N1Wh, rest)
    return torch.cat(turned, dim=-1)
