"""The network's building blocks in plain torch: any device, any dtype.

The counterpart with our own CUDA kernels is ``triton_ops``; both satisfy ``Ops`` and compute the same
function. Norms compute in float32 and round to the model's dtype before scaling, as published.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from orderlens.kernels.shapes import StackedExperts
from orderlens.models.engine.layer_parts import rms_norm, rotary_tables, swiglu, turned_heads
from orderlens.models.engine.packed import linear
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.window import Windows
from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.experts import can_group, grouped_product, loop_over_experts
from orderlens.models.llada2.routing import choose_experts, router_logits, with_shared
from orderlens.models.llada2.weights import DenseWeights, LayerWeights, SparseWeights


class Ops(Protocol):
    """What a forward is made of."""

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return how many parts the attention over the prefix is cut into (part of a graph's shape)."""
        ...

    def norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        """Return the normalised and scaled activations."""
        ...

    def after_attention(
        self, x_TC: Tensor, attended_TO: Tensor, layer: LayerWeights
    ) -> tuple[Tensor, Tensor]:
        """Return x + output projection(attended) and its norm."""
        ...

    def attention(
        self, h_TC: Tensor, index: int, layer: LayerWeights, windows: Windows, pool: PagePool, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] before the output projection; ``store`` also caches the keys."""
        ...

    def feed_forward(
        self, x_TC: Tensor, h_TC: Tensor, layer: LayerWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight."""
        ...


class TorchOps:
    """The portable implementation."""

    def __init__(self, config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.cos, self.sin = rotary_tables(*config.rotary, device, dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return 1: the portable attention is one piece."""
        del n_windows, longest_start
        return 1

    def norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        """Return the normalised and scaled activations."""
        return rms_norm(x_TC, weight_C, self.config.norm_eps)

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        total_TC = x_TC + delta_TC
        return total_TC, self.norm(total_TC, weight_C)

    def attention(
        self, h_TC: Tensor, index: int, layer: LayerWeights, windows: Windows, pool: PagePool, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] before the output projection; ``store`` also caches the keys."""
        fused_TO = linear(h_TC, layer.qkv_OC)
        q, k, v = turned_heads(fused_TO, layer, (self.cos, self.sin), windows.positions, self.config)
        if store:
            store_keys(k, v, index, windows, pool)
        o_NHWD = attend(q, k, v, index, windows, pool)
        return o_NHWD.transpose(1, 2).reshape(len(h_TC), -1)

    def after_attention(
        self, x_TC: Tensor, attended_TO: Tensor, layer: LayerWeights
    ) -> tuple[Tensor, Tensor]:
        """Return x + output projection(attended) and its norm."""
        return self.add_norm(x_TC, linear(attended_TO, layer.out_CO), layer.post_norm_C)

    def feed_forward(
        self, x_TC: Tensor, h_TC: Tensor, layer: LayerWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight."""
        block = layer.feed_forward
        y_TC = dense(h_TC, block) if isinstance(block, DenseWeights) else self.sparse(h_TC, block)
        return self.add_norm(x_TC, y_TC, next_norm_C)

    def sparse(self, h_TC: Tensor, block: SparseWeights) -> Tensor:
        """Return routed plus shared experts [T, C]."""
        chosen = choose_experts(router_logits(h_TC, block.router_EC), block.bias_E, self.config)
        ids_TK, weights_TK = with_shared(*chosen, self.config)
        if can_group(h_TC, block.experts) and isinstance(block.experts, StackedExperts):
            return grouped_product(h_TC, ids_TK, weights_TK, block.experts)
        return loop_over_experts(h_TC, ids_TK, weights_TK, block.experts)


def dense(h_TC: Tensor, block: DenseWeights) -> Tensor:
    """Return a plain SwiGLU feed-forward."""
    return linear(swiglu(linear(h_TC, block.gate_up_FC)), block.down_CF)
