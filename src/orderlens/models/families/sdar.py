"""SDAR, dense and with experts: the network of Qwen3 or Qwen3-MoE, block-causal, unshifted.

Norms on queries and keys, explicit head width. The experts' router is a softmax over all experts; the chosen
ones are divided by their sum only if the file says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import QWEN_HARMLESS, DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import ConfigValues, refuse_unsupported
from orderlens.models.files.roles import PublishedTokens

_parse = partial(
    parse_qwen, attention="block-causal", qkv_bias=False, qk_norm=True, rope_theta=10000.0, head_width=128
)


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    refuse_unsupported(values, {"attention_bias": (False,)})
    return _parse(values)


def parse_moe_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a ``config.json`` with experts."""
    refuse_unsupported(values, {"attention_bias": (False,)})
    read = ConfigValues(values)
    experts = {
        "n_experts": read.integer("num_experts"),
        "n_active": read.integer("num_experts_per_tok"),
        "expert_width": read.integer("moe_intermediate_size"),
        "normalised": read.flag("norm_topk_prob", False),
        "dense_layers": _dense_layers(values, read),
        "router": "softmax",
    }
    return _parse(values, experts=experts)


def _dense_layers(values: Mapping[str, Any], read: ConfigValues) -> tuple[int, ...]:
    """Return the layers without experts: those listed, and those between every ``decoder_sparse_step``-th."""
    listed, step = values.get("mlp_only_layers") or [], read.integer("decoder_sparse_step", 1)
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise ModelLoadError(f"config.json: mlp_only_layers={listed!r} must be a list of layer numbers")
    layers = range(read.integer("num_hidden_layers"))
    return tuple(layer for layer in layers if layer in listed or (layer + 1) % step)


MOE_30B = DecoderConfig(
    vocab_size=151936, hidden_size=2048, n_layers=48, ffn_width=6144, n_heads=32, n_kv_heads=4,
    head_width=128, rope_theta=1000000.0, norm_eps=1e-6, max_positions=32768, attention="block-causal",
    qk_norm=True, n_experts=128, n_active=8, expert_width=768, router="softmax",
)  # fmt: skip
"""The published 30B-A3B shape."""
DIALECT = Dialect(
    qwen_layout("an SDAR model"),
    parse_config,
    PublishedTokens(151669, ("<|MASK|>",), 151643, ("<|im_end|>",)),
    block_size=4,
    anchor="zero",
    block_keys=("block_size", "block_length"),
    harmless=QWEN_HARMLESS,
    block_in_name=True,
)
MOE_DIALECT = replace(
    DIALECT,
    layout=qwen_layout("an SDAR model with experts"),
    parse=parse_moe_config,
    published={r"sdar-30b": MOE_30B},
)
READER, load_folder = DIALECT.reader, DIALECT.load
MOE_READER, load_moe_folder = MOE_DIALECT.reader, MOE_DIALECT.load
