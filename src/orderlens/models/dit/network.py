"""The forward of a DDiT: from token windows to hidden states for the output matrix.

The embedded noise level shifts, scales and gates every layer's norms. The caller defines attention: each
layer passes its queries, keys and values to an ``attend`` callable.

A state with m of n positions masked gets the level σ at which absorbing noise masks that share of positions
on average: 1 − e^(−σ) = m / n, clamped to the levels of the model's schedule. Networks without time
conditioning use σ = 0 at every state; its embedding still enters all their layers.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, D head width, K noise embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.dit.config import FREQUENCIES, ROPE_THETA, DitConfig
from orderlens.models.dit.weights import DitLayer, DitLinear, DitWeights
from orderlens.models.engine.layer_parts import rotary_tables, rotate
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.weights import with_one
from orderlens.models.engine.window import Windows

PERIOD = 10000.0


def matched_sigma(masked_NW: Tensor, sigmas: tuple[float, float]) -> Tensor:
    """Return each state's noise level [N]: the one that masks the same share of positions on average."""
    share_N = masked_NW.float().mean(dim=1)
    return (-torch.log1p(-share_N)).clamp(*sigmas)


def embed_sigma(sigma_N: Tensor, first: DitLinear, second: DitLinear) -> Tensor:
    """Return the vectors [N, K] that modulate every norm, in float32."""
    half = FREQUENCIES // 2
    steps = torch.arange(half, dtype=torch.float32, device=sigma_N.device)
    angle_NF = sigma_N[:, None].float() * torch.exp(-math.log(PERIOD) * steps / half)
    waves_NF = torch.cat((angle_NF.cos(), angle_NF.sin()), dim=1)
    silu = torch.nn.functional.silu
    return silu(second(silu(first(waves_NF))))


Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, q_NHWD, k_NHWD, v_NHWD) -> o_NHWD."""


class DitNetwork:
    """The network: its weights and its shape."""

    def __init__(self, weights: DitWeights, config: DitConfig) -> None:
        self.weights, self.config = weights, config
        self._cos, self._sin = rotary_tables(
            config.head_width, ROPE_THETA, config.max_positions, self.device, self.dtype
        )

    @property
    def device(self) -> torch.device:
        return self.weights.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding_VC.dtype

    @torch.no_grad()
    def forward(self, tokens_NW: Tensor, positions_NW: Tensor, attend: Attend) -> Tensor:
        """Return hidden states for the output matrix [N, W, X], extended by a 1 for its bias."""
        weights = self.weights
        condition_NK = embed_sigma(self._sigma(tokens_NW), weights.noise_in, weights.noise_out).to(self.dtype)
        places = positions_NW.clamp_max(self.config.max_positions - 1)  # padding may exceed the tables
        rotary = (self._cos[places][:, None], self._sin[places][:, None])
        x_NWC = functional.embedding(tokens_NW, weights.embedding_VC)
        for index, layer in enumerate(weights.layers):
            x_NWC = self._layer(x_NWC, condition_NK, rotary, layer, lambda *qkv, i=index: attend(i, *qkv))
        shift, scale = weights.final_modulation(condition_NK)[:, None].chunk(2, dim=2)
        return with_one(norm(x_NWC, weights.final_norm_C) * (1 + scale) + shift)

    def canvas(self, tokens_NW: Tensor) -> Tensor:
        positions_NW = torch.arange(tokens_NW.shape[1], device=self.device).expand(tokens_NW.shape)
        return self.forward(
            tokens_NW, positions_NW, lambda _, q, k, v: functional.scaled_dot_product_attention(q, k, v)
        )

    def _sigma(self, tokens_NW: Tensor) -> Tensor:
        """Return the noise level of every state [N], or one level for all [1]."""
        if self.config.sigmas is None:
            return torch.zeros(1, device=self.device)
        return matched_sigma(tokens_NW == self.config.mask_id, self.config.sigmas)

    def _layer(
        self,
        x_NWC: Tensor,
        condition_NK: Tensor,
        rotary: tuple[Tensor, Tensor],
        layer: DitLayer,
        attend: Callable[..., Tensor],
    ) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = layer.modulation(condition_NK)[:, None].chunk(6, dim=2)
        h_NWC = norm(x_NWC, layer.norm1_C) * (1 + scale1) + shift1
        heads = layer.qkv(h_NWC).view(*x_NWC.shape[:2], 3, self.config.n_heads, -1).permute(2, 0, 3, 1, 4)
        o_NHWD = attend(rotate(heads[0], *rotary), rotate(heads[1], *rotary), heads[2])
        x_NWC = x_NWC + gate1 * layer.out(o_NHWD.transpose(1, 2).flatten(2))
        h_NWC = norm(x_NWC, layer.norm2_C) * (1 + scale2) + shift2
        return x_NWC + gate2 * layer.down(functional.gelu(layer.up(h_NWC), approximate="tanh"))


def norm(x: Tensor, weight_C: Tensor) -> Tensor:
    """Return the layer norm without bias, computed in float32."""
    return functional.layer_norm(x.float(), weight_C.shape).to(x.dtype) * weight_C


class PagedDit:
    """Runs windows that see their slot's cached prefix and themselves."""

    gathers = True

    def __init__(self, network: DitNetwork) -> None:
        self.network = network

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def splits(self, n_windows: int, longest_start: int) -> int:
        del n_windows, longest_start
        return 1

    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        hidden_NWX = self.network.forward(
            windows.tokens,
            windows.positions,
            lambda index, q, k, v: attend(q, k, v, index, windows, pool),
        )
        return hidden_NWX.flatten(0, 1)

    def store(self, windows: Windows, pool: PagePool) -> None:

        def keep(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store_keys(k, v, index, windows, pool)
            return attend(q, k, v, index, windows, pool)

        self.network.forward(windows.tokens, windows.positions, keep)
