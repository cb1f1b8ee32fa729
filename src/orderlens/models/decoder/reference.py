"""The slow, readable forward: one sequence, head by head, expert by expert, float32, no cache.

``model.log_probs`` runs this. It shares no code with the fast path; tests compare the two, and both with the
published definition.

Shape letters: L positions, C model width, H heads, D head width, E experts, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.weights import (
    DecoderLayer,
    DecoderWeights,
    DenseFeedForward,
    SparseFeedForward,
)


def hidden_states(
    weights: DecoderWeights, config: DecoderConfig, tokens_L: Tensor, visible_LL: Tensor
) -> Tensor:
    """Return final hidden states [L, C] in float32; row i of ``visible_LL`` marks what position i sees."""
    x_LC = weights.embedding_VC[tokens_L].float()
    for layer in weights.layers:
        x_LC = x_LC + _attention(_norm(x_LC, layer.input_norm_C, config), layer, config, visible_LL)
        h_LC = _norm(x_LC, layer.post_norm_C, config)
        x_LC = x_LC + _feed_forward(h_LC, layer.feed_forward, config, visible_LL)
    return _norm(x_LC, weights.final_norm_C, config)


def _norm(x: Tensor, weight: Tensor, config: DecoderConfig) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + config.norm_eps) * weight.float()


def _rotate(x_LHD: Tensor, config: DecoderConfig) -> Tensor:
    half = config.rotary_width // 2
    frequency = 1.0 / config.rope_theta ** (torch.arange(half, device=x_LHD.device).float() / half)
    if config.rotary_factors is not None:
        frequency = frequency * torch.tensor(config.rotary_factors, device=x_LHD.device)
    angle = torch.arange(len(x_LHD), device=x_LHD.device)[:, None, None] * frequency
    a, b, rest = x_LHD[..., :half], x_LHD[..., half : 2 * half], x_LHD[..., 2 * half :]
    rotated = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest)
    return torch.cat(rotated, dim=-1)


def _attention(h_LC: Tensor, layer: DecoderLayer, config: DecoderConfig, visible_LL: Tensor) -> Tensor:
    fused_LO = h_LC @ layer.qkv_OC.float().T
    if layer.qkv_bias_O is not None:
        fused_LO = fused_LO + layer.qkv_bias_O.float()
    heads_LHD = fused_LO.view(len(h_LC), -1, config.head_width)
    first_k, first_v = config.n_heads, config.n_heads + config.n_kv_heads
    q, k, v = heads_LHD[:, :first_k], heads_LHD[:, first_k:first_v], heads_LHD[:, first_v:]
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        q, k = _norm(q, layer.q_norm_D, config), _norm(k, layer.k_norm_D, config)
    q, k = _rotate(q, config), _rotate(k, config)
    per_kv, outputs = config.n_heads // config.n_kv_heads, []
    for head in range(config.n_heads):
        scores_LL = q[:, head] @ k[:, head // per_kv].T / config.head_width**0.5
        weights_LL = scores_LL.masked_fill(~visible_LL, -torch.inf).softmax(dim=1)
        outputs.append(weights_LL @ v[:, head // per_kv])
    return torch.cat(outputs, dim=1) @ layer.out_CO.float().T


def _feed_forward(
    h_LC: Tensor, block: DenseFeedForward | SparseFeedForward, config: DecoderConfig, visible_LL: Tensor
) -> Tensor:
    if isinstance(block, DenseFeedForward):
        gate_FC, up_FC = block.gate_up_FC.chunk(2)
        return _swiglu(h_LC, gate_FC, up_FC, block.down_CF)
    weights_LE = _routing(h_LC, block, config, visible_LL)
    y_LC = torch.zeros_like(h_LC)
    for expert in range(config.n_experts):
        y_LC += weights_LE[:, expert, None] * _swiglu(h_LC, *block.experts.matrices(expert))
    for expert in range(config.n_experts, config.n_experts + config.n_shared):
        y_LC += _swiglu(h_LC, *block.experts.matrices(expert))
    return y_LC


def _swiglu(h_LC: Tensor, gate_FC: Tensor, up_FC: Tensor, down_CF: Tensor) -> Tensor:
    gate, up = h_LC @ gate_FC.float().T, h_LC @ up_FC.float().T
    return (gate * torch.sigmoid(gate) * up) @ down_CF.float().T


def _routing(h_LC: Tensor, block: SparseFeedForward, config: DecoderConfig, visible_LL: Tensor) -> Tensor:
    """Return combine weights [L, E], zero for experts that a token does not use."""
    logits_LE = h_LC @ block.router_EC.float().T
    scores_LE = torch.sigmoid(logits_LE) if config.router == "sigmoid" else torch.softmax(logits_LE, dim=1)
    weights_LE = torch.zeros_like(scores_LE)
    selection_LE = scores_LE + block.bias_E.float()
    selection, ends = selection_LE.tolist(), visible_LL.sum(dim=1).tolist()
    for position, row in enumerate(selection):
        mates = [other for other, end in zip(selection, ends, strict=True) if end == ends[position]]
        chosen = (
            _chosen_in_block(row, mates, config) if config.expert_capacity else _chosen_experts(row, config)
        )
        picked = (selection_LE if config.weighted_bias else scores_LE)[position, chosen]
        divisor = picked.sum() + 1e-20 if config.divides_scores else 1.0
        weights_LE[position, chosen] = picked / divisor
    return weights_LE * config.routed_scale


def _chosen_in_block(scores: list[float], mates: list[list[float]], config: DecoderConfig) -> list[int]:
    """Return a token's experts among those that its block may use; ``mates`` are all tokens of the block."""
    best = [max(row[expert] for row in mates) for expert in range(config.n_experts)]
    allowed = sorted(range(config.n_experts), key=lambda expert: -best[expert])[: config.expert_capacity]
    return sorted(sorted(allowed), key=lambda expert: -scores[expert])[: config.n_active]


def _chosen_experts(scores: list[float], config: DecoderConfig) -> list[int]:
    size = config.n_experts // config.n_groups
    groups = [range(start, start + size) for start in range(0, config.n_experts, size)]
    by_score = sorted(groups, key=lambda group: -sum(sorted((scores[e] for e in group), reverse=True)[:2]))
    candidates = [expert for group in by_score[: config.n_kept_groups] for expert in group]
    return sorted(candidates, key=lambda expert: -scores[expert])[: config.n_active]
