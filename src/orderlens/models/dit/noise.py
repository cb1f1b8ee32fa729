"""The noise level that a network is told, and its embedding.

A state with m of n positions masked is told the level σ at which absorbing noise masks that share of
positions on average: 1 − e^(−σ) = m / n, kept inside the levels of the model's schedule. Networks without
time conditioning read σ = 0 at every state, which still passes through all their layers.

Shape letters: N states, W positions, K width of the embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orderlens.models.dit.config import FREQUENCIES
from orderlens.models.dit.weights import Linear

PERIOD = 10000.0


def matched_sigma(masked_NW: Tensor, sigmas: tuple[float, float]) -> Tensor:
    """Return each state's noise level [N]: the one that masks as large a share of positions on average."""
    share_N = masked_NW.float().mean(dim=1)
    return (-torch.log1p(-share_N)).clamp(*sigmas)


def embed_sigma(sigma_N: Tensor, first: Linear, second: Linear) -> Tensor:
    """Return the vectors [N, K] that modulate every norm, in float32."""
    half = FREQUENCIES // 2
    steps = torch.arange(half, dtype=torch.float32, device=sigma_N.device)
    angle_NF = sigma_N[:, None].float() * torch.exp(-math.log(PERIOD) * steps / half)
    waves_NF = torch.cat((angle_NF.cos(), angle_NF.sin()), dim=1)
    silu = torch.nn.functional.silu
    return silu(second(silu(first(waves_NF))))
