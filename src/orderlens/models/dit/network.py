"""The forward of a DDiT: token windows in, hidden states for the output matrix out.

Every layer's norms are shifted, scaled and gated by the embedded noise level. What a position may attend to
is the caller's business: each layer hands its queries, keys and values to an ``attend`` callable.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, D head width, K noise embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.dit.config import ROPE_THETA, DitConfig
from orderlens.models.dit.noise import embed_sigma, matched_sigma
from orderlens.models.dit.weights import LayerWeights, Weights
from orderlens.models.engine.layer_parts import rotary_tables, rotate
from orderlens.models.engine.weights import with_one

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, q_NHWD, k_NHWD, v_NHWD) -> o_NHWD."""


class DitNetwork:
    """Weights and shape, put together."""

    def __init__(self, weights: Weights, config: DitConfig) -> None:
        self.weights, self.config = weights, config
        self._cos, self._sin = rotary_tables(
            config.head_width, ROPE_THETA, config.max_positions, self.device, self.dtype
        )

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.weights.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its activations."""
        return self.weights.embedding_VC.dtype

    @torch.no_grad()
    def forward(self, tokens_NW: Tensor, positions_NW: Tensor, attend: Attend) -> Tensor:
        """Return hidden states for the output matrix [N, W, X], a 1 behind them for its bias."""
        weights = self.weights
        condition_NK = embed_sigma(self._sigma(tokens_NW), weights.noise_in, weights.noise_out).to(self.dtype)
        places = positions_NW.clamp_max(self.config.max_positions - 1)  # padding may run past the end
        rotary = (self._cos[places][:, None], self._sin[places][:, None])
        x_NWC = functional.embedding(tokens_NW, weights.embedding_VC)
        for index, layer in enumerate(weights.layers):
            x_NWC = self._layer(x_NWC, condition_NK, rotary, layer, lambda *qkv, i=index: attend(i, *qkv))
        shift, scale = weights.final_modulation(condition_NK)[:, None].chunk(2, dim=2)
        return with_one(norm(x_NWC, weights.final_norm_C) * (1 + scale) + shift)

    def canvas(self, tokens_NW: Tensor) -> Tensor:
        """Return hidden states [N, W, X] of whole canvases, every position seeing all."""
        positions_NW = torch.arange(tokens_NW.shape[1], device=self.device).expand(tokens_NW.shape)
        return self.forward(
            tokens_NW, positions_NW, lambda _, q, k, v: functional.scaled_dot_product_attention(q, k, v)
        )

    def _sigma(self, tokens_NW: Tensor) -> Tensor:
        """Return the noise level of every state [N], or the one of all [1]."""
        if self.config.sigmas is None:
            return torch.zeros(1, device=self.device)
        return matched_sigma(tokens_NW == self.config.mask_id, self.config.sigmas)

    def _layer(
        self,
        x_NWC: Tensor,
        condition_NK: Tensor,
        rotary: tuple[Tensor, Tensor],
        layer: LayerWeights,
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
