"""The published definition of LLaDA-2: one sequence, one expert after another, float32, no cache.

Reads tensors by their published names and shares no code with the package.

Shape letters: L positions, C model width, H heads, D head width, E experts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.weights import DecoderLayer, DecoderWeights, DenseFeedForward

Named = Mapping[str, Tensor]


def hidden_states(tensors: Named, config: DecoderConfig, tokens_L: Tensor, visible_LL: Tensor) -> Tensor:
    """Return final hidden states [L, C] in float32; row i of ``visible_LL`` marks what position i may see."""
    x_LC = tensors["model.word_embeddings.weight"][tokens_L].float()
    for index in range(config.n_layers):
        layer = _Layer(tensors, f"model.layers.{index}.", config)
        x_LC = x_LC + layer.attention(layer.norm(x_LC, "input_layernorm"), visible_LL)
        x_LC = x_LC + layer.feed_forward(layer.norm(x_LC, "post_attention_layernorm"), index)
    return rms_norm(x_LC, tensors["model.norm.weight"], config.norm_eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square over the last dimension, then scale."""
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def rotate(x_LHD: Tensor, config: DecoderConfig) -> Tensor:
    """Turn the first ``rotary_width`` dimensions of every head by an angle that grows with the position."""
    half = config.rotary_width // 2
    frequency = 1.0 / config.rope_theta ** (torch.arange(half, device=x_LHD.device).float() / half)
    angle = torch.arange(len(x_LHD), device=x_LHD.device)[:, None, None] * frequency
    a, b, rest = x_LHD[..., :half], x_LHD[..., half : 2 * half], x_LHD[..., 2 * half :]
    turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest)
    return torch.cat(turned, dim=-1)


class _Layer:
    def __init__(self, tensors: Named, prefix: str, config: DecoderConfig) -> None:
        self.tensors, self.prefix, self.config = tensors, prefix, config

    def weight(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name].float()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weight(name + ".weight"), self.config.norm_eps)

    def attention(self, x_LC: Tensor, visible_LL: Tensor) -> Tensor:
        config = self.config
        fused_LO = x_LC @ self.weight("attention.query_key_value.weight").T
        heads_LHD = fused_LO.view(len(x_LC), -1, config.head_width)
        first_k, first_v = config.n_heads, config.n_heads + config.n_kv_heads
        q, k, v = heads_LHD[:, :first_k], heads_LHD[:, first_k:first_v], heads_LHD[:, first_v:]
        if config.qk_norm:
            q, k = self.norm(q, "attention.query_layernorm"), self.norm(k, "attention.key_layernorm")
        q, k = rotate(q, config), rotate(k, config)
        per_kv = config.n_heads // config.n_kv_heads
        outputs = []
        for head in range(config.n_heads):
            kv = head // per_kv
            scores_LL = q[:, head] @ k[:, kv].T / config.head_width**0.5
            weights_LL = scores_LL.masked_fill(~visible_LL, -torch.inf).softmax(dim=1)
            outputs.append(weights_LL @ v[:, kv])
        return torch.cat(outputs, dim=1) @ self.weight("attention.dense.weight").T

    def feed_forward(self, x_LC: Tensor, index: int) -> Tensor:
        if index < self.config.n_dense_layers:
            return self.mlp(x_LC, "mlp.")
        weights_LE = self.routing(x_LC)
        y_LC = torch.zeros_like(x_LC)
        for expert in range(self.config.n_experts):
            y_LC += weights_LE[:, expert, None] * self.mlp(x_LC, f"mlp.experts.{expert}.")
        if self.config.n_shared:
            y_LC += self.mlp(x_LC, "mlp.shared_experts.")
        return y_LC

    def mlp(self, x_LC: Tensor, name: str) -> Tensor:
        gate = x_LC @ self.weight(name + "gate_proj.weight").T
        up = x_LC @ self.weight(name + "up_proj.weight").T
        return (gate * torch.sigmoid(gate) * up) @ self.weight(name + "down_proj.weight").T

    def routing(self, x_LC: Tensor) -> Tensor:
        """Return combine weights [L, E], zero for experts a token does not visit."""
        config = self.config
        sigmoid_LE = torch.sigmoid(x_LC @ self.weight("mlp.gate.weight").T)
        selection_LE = sigmoid_LE + self.weight("mlp.gate.expert_bias")
        weights_LE = torch.zeros_like(sigmoid_LE)
        for position, row in enumerate(selection_LE.tolist()):
            chosen = _chosen_experts(row, config)
            picked = sigmoid_LE[position, chosen]
            weights_LE[position, chosen] = picked / (picked.sum() + 1e-20) if len(chosen) > 1 else picked
        return weights_LE * config.routed_scale


def _chosen_experts(scores: list[float], config: DecoderConfig) -> list[int]:
    size = config.n_experts // config.n_groups
    groups = [range(start, start + size) for start in range(0, config.n_experts, size)]
    by_score = sorted(groups, key=lambda group: -sum(sorted((scores[e] for e in group), reverse=True)[:2]))
    candidates = [expert for group in by_score[: config.n_kept_groups] for expert in group]
    return sorted(candidates, key=lambda expert: -scores[expert])[: config.n_active]


def published_tensors(weights: DecoderWeights, config: DecoderConfig) -> dict[str, Tensor]:
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


def _layer_tensors(layer: DecoderLayer, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", layer.input_norm_C
    yield "post_attention_layernorm.weight", layer.post_norm_C
    yield "attention.query_key_value.weight", layer.qkv_OC
    yield "attention.dense.weight", layer.out_CO
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        yield "attention.query_layernorm.weight", layer.q_norm_D
        yield "attention.key_layernorm.weight", layer.k_norm_D
    block = layer.feed_forward
    if isinstance(block, DenseFeedForward):
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
