"""The network's tensors as the fast path wants them: experts stacked, gate and up side by side.

Shared experts are stored behind the routed ones, as experts that every token visits: a shared feed-forward
of width S × F is the sum of S experts of width F. ``published_tensors`` gives the same storage back under
the published names, as views, for the readable reference.

Shape letters: V vocabulary, C model width, O outputs of a projection, E experts (routed then shared),
F expert width, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from orderlens.kernels.shapes import StackedExperts
from orderlens.models.engine import weights as shared
from orderlens.models.llada2.config import LLaDA2Config


@dataclass(frozen=True, slots=True)
class MappedExperts:
    """Experts left where the checkpoint is memory-mapped; read when a token needs them."""

    triples: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def __len__(self) -> int:
        return len(self.triples)

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert."""
        return self.triples[expert]


@dataclass(frozen=True, slots=True)
class CastExperts:
    """Memory-mapped experts in another precision, each cast when a token needs it."""

    mapped: MappedExperts
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.mapped)

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert."""
        gate_FC, up_FC, down_CF = self.mapped.matrices(expert)
        return gate_FC.to(self.dtype), up_FC.to(self.dtype), down_CF.to(self.dtype)


Experts: TypeAlias = StackedExperts | MappedExperts | CastExperts


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A plain SwiGLU feed-forward."""

    gate_up_FC: Tensor
    down_CF: Tensor


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """Router and experts. The bias steers the selection only and stays in float32."""

    router_EC: Tensor
    bias_E: Tensor
    experts: Experts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer."""

    input_norm_C: Tensor
    qkv_OC: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    out_CO: Tensor
    post_norm_C: Tensor
    feed_forward: DenseWeights | SparseWeights


class Weights(shared.Weights[LayerWeights]):
    """The whole network; the output matrix is its own tensor (untied)."""


def cast_weights(weights: Weights, dtype: torch.dtype) -> Weights:
    """Return a copy in another precision; the router's bias stays in float32."""

    def feed_forward(block: DenseWeights | SparseWeights) -> DenseWeights | SparseWeights:
        if isinstance(block, DenseWeights):
            return DenseWeights(block.gate_up_FC.to(dtype), block.down_CF.to(dtype))
        return SparseWeights(block.router_EC.to(dtype), block.bias_E, _cast_experts(block.experts, dtype))

    def layer(given: LayerWeights) -> LayerWeights:
        return LayerWeights(
            given.input_norm_C.to(dtype),
            given.qkv_OC.to(dtype),
            None if given.q_norm_D is None else given.q_norm_D.to(dtype),
            None if given.k_norm_D is None else given.k_norm_D.to(dtype),
            given.out_CO.to(dtype),
            given.post_norm_C.to(dtype),
            feed_forward(given.feed_forward),
        )

    return Weights(
        weights.embedding_VC.to(dtype),
        tuple(layer(given) for given in weights.layers),
        weights.final_norm_C.to(dtype),
        weights.unembed_VC.to(dtype),
    )


def _cast_experts(experts: Experts, dtype: torch.dtype) -> Experts:
    if isinstance(experts, StackedExperts):
        return StackedExperts(experts.gate_up_EFC.to(dtype), experts.down_ECF.to(dtype))
    return CastExperts(experts if isinstance(experts, MappedExperts) else experts.mapped, dtype)


def published_tensors(weights: Weights, config: LLaDA2Config) -> dict[str, Tensor]:
    """Return views of all weights under the published tensor names."""
    named = {
        "model.word_embeddings.weight": weights.embedding_VC,
        "model.norm.weight": weights.final_norm_C,
        "lm_head.weight": weights.unembed_VC,
    }
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        named |= {prefix + name: tensor for name, tensor in _layer_tensors(layer, config)}
    return named


def _layer_tensors(layer: LayerWeights, config: LLaDA2Config) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", layer.input_norm_C
    yield "post_attention_layernorm.weight", layer.post_norm_C
    yield "attention.query_key_value.weight", layer.qkv_OC
    yield "attention.dense.weight", layer.out_CO
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        yield "attention.query_layernorm.weight", layer.q_norm_D
        yield "attention.key_layernorm.weight", layer.k_norm_D
    block = layer.feed_forward
    if isinstance(block, DenseWeights):
        gate_FC, up_FC = block.gate_up_FC.chunk(2)
        yield from _triple("mlp.", gate_FC, up_FC, block.down_CF)
        return
    yield "mlp.gate.weight", block.router_EC
    yield "mlp.gate.expert_bias", block.bias_E
    for expert in range(config.n_experts):
        yield from _triple(f"mlp.experts.{expert}.", *block.experts.matrices(expert))
    shared = [block.experts.matrices(config.n_experts + i) for i in range(config.n_shared)]
    if shared:
        gates, ups, downs = zip(*shared, strict=True)
        yield from _triple("mlp.shared_experts.", torch.cat(gates), torch.cat(ups), torch.cat(downs, dim=1))


def _triple(prefix: str, gate_FC: Tensor, up_FC: Tensor, down_CF: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield prefix + "gate_proj.weight", gate_FC
    yield prefix + "up_proj.weight", up_FC
    yield prefix + "down_proj.weight", down_CF


def random_weights(
    config: LLaDA2Config, device: torch.device | str, dtype: torch.dtype, seed: int = 0, std: float = 0.02
) -> Weights:
    """Draw weights of the given shape directly on ``device`` (for benchmarks and tests)."""
    draw = shared.RandomTensors(device, dtype, seed, std)
    V, C, D, F = config.vocab_size, config.hidden_size, config.head_width, config.expert_width

    def feed_forward(index: int) -> DenseWeights | SparseWeights:
        if index < config.n_dense_layers:
            return DenseWeights(draw.normal(2 * config.dense_width, C), draw.normal(C, config.dense_width))
        E = config.n_experts + config.n_shared
        bias_E = draw.normal(config.n_experts, dtype=torch.float32)
        experts = StackedExperts(draw.normal(E, 2 * F, C), draw.normal(E, C, F))
        return SparseWeights(draw.normal(config.n_experts, C), bias_E, experts)

    def layer(index: int) -> LayerWeights:
        q_norm_D, k_norm_D = (draw.scale(D), draw.scale(D)) if config.use_qk_norm else (None, None)
        return LayerWeights(
            draw.scale(C),
            draw.normal(config.qkv_width, C),
            q_norm_D,
            k_norm_D,
            draw.normal(C, config.n_heads * D),
            draw.scale(C),
            feed_forward(index),
        )

    embedding_VC = draw.normal(V, C)
    layers = tuple(layer(index) for index in range(config.n_layers))
    return Weights(embedding_VC, layers, draw.scale(C), draw.normal(V, C))
