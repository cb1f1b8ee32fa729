"""LLaDA-8B and LLaDA-1.5: full attention, unshifted, tensors under OLMo-like names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import DecoderConfig, checked
from orderlens.models.decoder.loader import Layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import (
    MAX_CONTEXT,
    MAX_LAYERS,
    ConfigValues,
    refuse_unsupported,
    rope_values,
)
from orderlens.models.files.roles import PublishedTokens

LAYOUT = Layout(
    "a LLaDA model",
    "model.transformer.blocks.{}.",
    "model.transformer.wte.weight",
    "model.transformer.ln_f.weight",
    "model.transformer.ff_out.weight",
    {
        "input_norm": "attn_norm",
        "post_norm": "ff_norm",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "out": "attn_out",
        "gate": "ff_proj",
        "up": "up_proj",
        "down": "ff_out",
    },
)
_ONLY: Mapping[str, tuple[object, ...]] = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False,),
    "include_bias": (False,),
    "rope": (True,),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "block_group_size": (1,),
    "clip_qkv": (),
}
_REQUIRED = ("block_type", "activation_type", "layer_norm_type", "rope")
"""Keys that must be present: without them the published class builds another network."""


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    if values.get("num_experts") is not None:
        raise ModelLoadError(
            "config.json: num_experts belongs to LLaDA-MoE, another network than LLaDA-8B with the same "
            "model_type; name it in architectures (LLaDAMoEModelLM)"
        )
    refuse_unsupported(values, _ONLY)
    if missing := [key for key in _REQUIRED if values.get(key) is None]:
        raise ModelLoadError(
            f"config.json lacks {', '.join(missing)}; without it the published class computes another network"
        )
    read = ConfigValues(values)
    width, n_heads = read.integer("d_model"), read.integer("n_heads")
    if width % n_heads:
        raise ModelLoadError(f"config.json: d_model={width} is not a multiple of n_heads={n_heads}")
    shared = 1 if values.get("multi_query_attention") else n_heads
    return checked(
        DecoderConfig(
            vocab_size=read.integer("embedding_size", read.integer("vocab_size")),
            hidden_size=width,
            n_layers=read.integer("n_layers", high=MAX_LAYERS),
            ffn_width=read.integer("mlp_hidden_size", width * read.integer("mlp_ratio", 4)),
            n_heads=n_heads,
            n_kv_heads=read.integer("n_kv_heads", shared),
            head_width=width // n_heads,
            rope_theta=rope_values(values).number("rope_theta", 10000.0),
            norm_eps=read.number("rms_norm_eps", 1e-5),
            max_positions=read.integer("max_sequence_length", 1024, high=MAX_CONTEXT),
            attention="full",
            qkv_bias=read.flag("include_qkv_bias", False),
            tied=read.flag("weight_tying", True),
            exact_rotary=read.flag("rope_full_precision", True),
        )
    )


LLADA_8B = DecoderConfig(
    vocab_size=126464,
    hidden_size=4096,
    n_layers=32,
    ffn_width=12288,
    n_heads=32,
    n_kv_heads=32,
    head_width=128,
    rope_theta=500000.0,
    norm_eps=1e-5,
    max_positions=4096,
    attention="full",
    exact_rotary=True,
)
"""The published 8B shape (base, instruct and 1.5)."""

DIALECT = Dialect(
    LAYOUT,
    parse_config,
    PublishedTokens(126336, ("<|mdm_mask|>",), 126081, ("<|eot_id|>",)),
    block_size=32,
    anchor="prompt",
    harmless=("alibi_bias_max", "attention_layer_norm_with_affine"),
    published={r"llada-(8b|1\.5)": LLADA_8B},
)
READER, load_folder = DIALECT.reader, DIALECT.load
