"""The slow, readable forward: one sequence, head by head, float32, no cache. What ``model.log_probs`` runs.

Shares no code with the fast path; the tests hold the two together, and both to the published definition.

Shape letters: L positions, C model width, H heads, K key/value heads, D head width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orderlens.models.decoder.config import DenseConfig
from orderlens.models.decoder.weights import LayerWeights, Weights


def hidden_states(weights: Weights, config: DenseConfig, tokens_L: Tensor, visible_LL: Tensor) -> Tensor:
    """Return final hidden states [L, C] in float32; row i of ``visible_LL`` marks what position i may see."""
    x_LC = weights.embedding_VC[tokens_L].float()
    for layer in weights.layers:
        x_LC = x_LC + _attention(_norm(x_LC, layer.input_norm_C, config), layer, config, visible_LL)
        gate, up = (_norm(x_LC, layer.post_norm_C, config) @ layer.gate_up_FC.float().T).chunk(2, dim=1)
        x_LC = x_LC + (gate * torch.sigmoid(gate) * up) @ layer.down_CF.float().T
    return _norm(x_LC, weights.final_norm_C, config)


def _norm(x: Tensor, weight: Tensor, config: DenseConfig) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + config.norm_eps) * weight.float()


def _turn(x_LHD: Tensor, config: DenseConfig) -> Tensor:
    half = config.head_width // 2
    frequency = 1.0 / config.rope_theta ** (torch.arange(half, device=x_LHD.device).float() / half)
    angle = torch.arange(len(x_LHD), device=x_LHD.device)[:, None, None] * frequency
    a, b = x_LHD[..., :half], x_LHD[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def _attention(h_LC: Tensor, layer: LayerWeights, config: DenseConfig, visible_LL: Tensor) -> Tensor:
    fused_LO = h_LC @ layer.qkv_OC.float().T
    if layer.qkv_bias_O is not None:
        fused_LO = fused_LO + layer.qkv_bias_O.float()
    heads_LHD = fused_LO.view(len(h_LC), -1, config.head_width)
    first_k, first_v = config.n_heads, config.n_heads + config.n_kv_heads
    q, k, v = heads_LHD[:, :first_k], heads_LHD[:, first_k:first_v], heads_LHD[:, first_v:]
    if layer.q_norm_D is not None and layer.k_norm_D is not None:
        q, k = _norm(q, layer.q_norm_D, config), _norm(k, layer.k_norm_D, config)
    q, k = _turn(q, config), _turn(k, config)
    per_kv, outputs = config.n_heads // config.n_kv_heads, []
    for head in range(config.n_heads):
        scores_LL = q[:, head] @ k[:, head // per_kv].T / config.head_width**0.5
        weights_LL = scores_LL.masked_fill(~visible_LL, -torch.inf).softmax(dim=1)
        outputs.append(weights_LL @ v[:, head // per_kv])
    return torch.cat(outputs, dim=1) @ layer.out_CO.float().T
