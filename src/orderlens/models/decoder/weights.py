"""The network's tensors as the forward wants them: queries, keys and values fused, gate and up fused.

Shape letters: V vocabulary, C model width, O outputs of a projection, F feed-forward width, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from orderlens.models.decoder.config import DenseConfig
from orderlens.models.engine import weights as shared


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: ``qkv`` holds query, key and value rows, ``gate_up`` gate rows and then up rows."""

    input_norm_C: Tensor
    qkv_OC: Tensor
    qkv_bias_O: Tensor | None
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    out_CO: Tensor
    post_norm_C: Tensor
    gate_up_FC: Tensor
    down_CF: Tensor


class Weights(shared.Weights[LayerWeights]):
    """The whole network."""

    def to(self, dtype: torch.dtype) -> Weights:
        """Return a copy in another dtype."""
        embedding_VC = self.embedding_VC.to(dtype)
        tied = self.unembed_VC is self.embedding_VC
        return Weights(
            embedding_VC,
            tuple(_cast(layer, dtype) for layer in self.layers),
            self.final_norm_C.to(dtype),
            embedding_VC if tied else self.unembed_VC.to(dtype),
        )


def _cast(layer: LayerWeights, dtype: torch.dtype) -> LayerWeights:
    def to(tensor: Any) -> Any:
        return None if tensor is None else tensor.to(dtype)

    return LayerWeights(*(to(getattr(layer, field.name)) for field in fields(layer)))


def random_weights(
    config: DenseConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0, std: float = 0.02
) -> Weights:
    """Draw weights of the given shape directly on ``device`` (for benchmarks and tests)."""
    draw = shared.RandomTensors(device, dtype, seed, std)
    V, C, D, F = config.vocab_size, config.hidden_size, config.head_width, config.ffn_width

    def layer() -> LayerWeights:
        q_norm_D, k_norm_D = (draw.scale(D), draw.scale(D)) if config.qk_norm else (None, None)
        return LayerWeights(
            draw.scale(C),
            draw.normal(config.qkv_width, C),
            draw.normal(config.qkv_width) if config.qkv_bias else None,
            q_norm_D,
            k_norm_D,
            draw.normal(C, config.n_heads * D),
            draw.scale(C),
            draw.normal(2 * F, C),
            draw.normal(C, F),
        )

    embedding_VC = draw.normal(V, C)
    layers = tuple(layer() for _ in range(config.n_layers))
    unembed_VC = embedding_VC if config.tied else draw.normal(V, C)
    return Weights(embedding_VC, layers, draw.scale(C), unembed_VC)
