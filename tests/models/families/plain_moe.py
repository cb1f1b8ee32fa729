"""The published definitions of LLaDA-MoE and SDAR-MoE: one sequence, one token and one expert after another.

Reads tensors by their published names and shares no code with the package. Float32, no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from support.moe import is_dense

Named = Mapping[str, Tensor]


def logits(tensors: Named, config: dict[str, Any], ids: list[int], block: int | None) -> Tensor:
    """Return logits [L, V]; a position sees its block of ``block`` and all earlier ones, or everything."""
    number = torch.arange(len(ids)) // (block or len(ids))
    seen = number[None, :] <= number[:, None]
    x = tensors["model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{n}."): value
            for name, value in tensors.items()
            if name.startswith(f"model.layers.{n}.")
        }
        h = rms(x, layer["input_layernorm.weight"], config)
        x = x + attention(h, layer, config, seen)
        h = rms(x, layer["post_attention_layernorm.weight"], config)
        x = x + (mlp(h, layer, "mlp.") if is_dense(config, n) else experts(h, layer, config))
    return rms(x, tensors["model.norm.weight"], config) @ tensors["lm_head.weight"].T


def rms(x: Tensor, weight: Tensor, config: dict[str, Any]) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


def attention(h: Tensor, layer: Named, config: dict[str, Any], seen: Tensor) -> Tensor:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    q, k, v = (
        (h @ layer[f"self_attn.{name}_proj.weight"].T).view(len(h), -1, width).transpose(0, 1)
        for name in "qkv"
    )
    if config.get("qk_layernorm", True):
        q, k = (rms(x, layer[f"self_attn.{name}_norm.weight"], config) for x, name in ((q, "q"), (k, "k")))
    turned = int(width * config.get("partial_rotary_factor", 1.0))
    q, k = (rotated(x, turned, config["rope_theta"]) for x in (q, k))
    k, v = (x.repeat_interleave(heads // len(x), dim=0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) / width**0.5).masked_fill(~seen, -torch.inf)
    out = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return out @ layer["self_attn.o_proj.weight"].T


def rotated(x: Tensor, turned: int, theta: float) -> Tensor:
    angle = torch.outer(torch.arange(x.shape[1]).float(), theta ** -(torch.arange(0, turned, 2) / turned))
    a, b = x[..., :turned].chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., turned:]), dim=-1)


def mlp(h: Tensor, layer: Named, prefix: str) -> Tensor:
    gate, up, down = (layer[f"{prefix}{kind}_proj.weight"] for kind in ("gate", "up", "down"))
    return (functional.silu(h @ gate.T) * (h @ up.T)) @ down.T


def experts(h: Tensor, layer: Named, config: dict[str, Any]) -> Tensor:
    """Softmax over all; LLaDA-MoE keeps the probabilities as they are, with the bias in them."""
    scores = (h @ layer["mlp.gate.weight"].T).softmax(-1)
    if "mlp.expert_bias" in layer:
        scores = scores + layer["mlp.expert_bias"]
    rows = []
    for row, token in zip(scores, h, strict=True):
        weights, chosen = row.topk(config["num_experts_per_tok"])
        if config["norm_topk_prob"] and "moe_layer_freq" not in config:
            weights = weights / weights.sum()
        outputs = [mlp(token, layer, f"mlp.experts.{expert}.") for expert in chosen.tolist()]
        rows.append(sum(weight * output for weight, output in zip(weights, outputs, strict=True)))
    return torch.stack(rows)
