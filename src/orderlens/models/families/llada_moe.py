"""LLaDA-MoE: experts in the layers that ``moe_layer_freq`` marks, full attention, unshifted.

The router is a softmax over all experts. As in the published code, its chosen probabilities are never
divided by their sum and ``norm_topk_prob`` has no effect. The router's bias, if
there is one, is part of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import DecoderConfig, checked
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import (
    MAX_CONTEXT,
    MAX_LAYERS,
    ConfigValues,
    refuse_unsupported,
    rope_values,
)
from orderlens.models.files.roles import PublishedTokens

_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "clip_qkv": (),
    "shared_expert_intermediate_size": (),
    "moe_router_score_function": ("softmax",),
    "routed_scaling_factor": (1,),
    "router_num_group": (-2, -1, 0, 1),
    "router_topk_group": (-2, -1, 0, 1),
}
"""The published code reads the router's four keys and never uses them; other values would be ambiguous."""


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    read, rope = ConfigValues(values), rope_values(values, is_partial=True)
    width, n_heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_width, n_layers = width // n_heads, read.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_unsupported(values, {**_ONLY, "head_dim": (head_width,)})
    dense = _dense_layers(values.get("moe_layer_freq"), n_layers)
    return checked(
        DecoderConfig(
            vocab_size=read.integer("vocab_size"),
            hidden_size=width,
            n_layers=n_layers,
            ffn_width=read.integer("dense_intermediate_size", None if dense else 1),
            n_heads=n_heads,
            n_kv_heads=read.integer("num_key_value_heads", n_heads),
            head_width=head_width,
            rope_theta=rope.number("rope_theta"),
            norm_eps=read.number("rms_norm_eps", 1e-5),
            max_positions=read.integer("max_position_embeddings", 4096, high=MAX_CONTEXT),
            attention="full",
            qk_norm=read.flag("qk_layernorm", False),
            tied=read.flag("tie_word_embeddings", False),
            rotary=int(head_width * rope.number("partial_rotary_factor", 1.0, high=1.0)),
            n_experts=read.integer("num_experts"),
            dense_layers=dense,
            n_active=read.integer("num_experts_per_tok"),
            expert_width=read.integer("expert_intermediate_size"),
            router="softmax",
            normalised=False,
            expert_bias=read.flag("moe_router_enable_expert_bias", False),
            weighted_bias=True,
        )
    )


def _dense_layers(marks: object, n_layers: int) -> tuple[int, ...]:
    """Return the layers that ``moe_layer_freq`` marks with 0."""
    if not isinstance(marks, list) or len(marks) < n_layers or not all(mark in (0, 1) for mark in marks):
        raise ModelLoadError(
            f"config.json: moe_layer_freq={marks!r:.60} must be a list of 0 or 1 for each of "
            f"{n_layers} layers"
        )
    return tuple(layer for layer in range(n_layers) if not marks[layer])


MOE_7B = DecoderConfig(
    vocab_size=157184, hidden_size=2048, n_layers=16, ffn_width=8192, n_heads=16, n_kv_heads=16,
    head_width=128, rope_theta=50000.0, norm_eps=1e-5, max_positions=8192, attention="full", qk_norm=True,
    n_experts=64, n_active=8, expert_width=1024, router="softmax", normalised=False, weighted_bias=True,
)  # fmt: skip
"""The published 7B-A1B shape; vocabulary and rotary base as in LLaDA-2."""
DIALECT = Dialect(
    replace(qwen_layout("a LLaDA-MoE model"), bias="mlp.expert_bias"),
    parse_config,
    PublishedTokens(156895, ("<|mask|>",), 156892, ("<|role_end|>",), eos_in_config_only=True),
    block_size=32,
    anchor="prompt",
    harmless=("norm_topk_prob",),
    published={r"llada-moe": MOE_7B},
)
READER, load_folder = DIALECT.reader, DIALECT.load
