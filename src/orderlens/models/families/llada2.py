"""LLaDA-2.0 and 2.1, mini and flash: experts in all but the first layers, block-causal, unshifted.

Versions and sizes share one architecture. Missing keys of ``config.json`` take the defaults of the published
configuration class, except that biases are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import DecoderConfig, checked
from orderlens.models.decoder.loader import QWEN_PARTS, qwen_layout
from orderlens.models.decoder.model import DecoderModel, Dialect
from orderlens.models.files.configfile import MAX_CONTEXT, MAX_LAYERS, Values, refuse_others, rope_values
from orderlens.models.files.roles import Published
from orderlens.models.options import LoadOptions

MODEL_TYPE, MAX_EXPERTS = "llada2_moe", 4096
_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "tie_word_embeddings": (False,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "norm_topk_prob": (True,),
    "score_function": ("sigmoid",),
    "router_dtype": ("fp32", "float32"),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False,),
    "num_nextn_predict_layers": (0,),
    "quantization_config": (),
}


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    if values.get("model_type") != MODEL_TYPE:
        raise ModelLoadError(
            f"config.json: model_type is {values.get('model_type')!r}, expected {MODEL_TYPE!r}"
        )
    refuse_others(values, _ONLY)
    given, rope = Values(values), rope_values(values)
    n_dense = given.integer("first_k_dense_replace", 0, low=0)
    width, n_heads = given.integer("hidden_size"), given.integer("num_attention_heads")
    head_width = given.integer("head_dim", width // n_heads)
    return checked(
        DecoderConfig(
            vocab_size=given.integer("vocab_size"),
            hidden_size=width,
            n_layers=given.integer("num_hidden_layers", high=MAX_LAYERS),
            ffn_width=given.integer("intermediate_size", None if n_dense else 1),
            n_heads=n_heads,
            n_kv_heads=given.integer("num_key_value_heads"),
            head_width=head_width,
            rope_theta=rope.number("rope_theta", 10000.0),
            norm_eps=given.number("rms_norm_eps", 1e-5),
            max_positions=given.integer("max_position_embeddings", 16384, high=MAX_CONTEXT),
            attention="block-causal",
            qk_norm=given.flag("use_qk_norm", True),
            rotary=int(head_width * rope.number("partial_rotary_factor", 0.5)),
            n_experts=given.integer("num_experts", high=MAX_EXPERTS),
            n_dense_layers=n_dense,
            n_active=given.integer("num_experts_per_tok"),
            expert_width=given.integer("moe_intermediate_size"),
            n_shared=given.integer("num_shared_experts", 0, low=0),
            n_groups=given.integer("n_group", 8),
            n_kept_groups=given.integer("topk_group", 4),
            routed_scale=given.number("routed_scaling_factor", 2.5),
            expert_bias=given.flag("moe_router_enable_expert_bias", True),
        )
    )


MINI = DecoderConfig(
    vocab_size=157184, hidden_size=2048, n_layers=20, ffn_width=5120, n_heads=16, n_kv_heads=4,
    head_width=128, rotary=64, rope_theta=600000.0, norm_eps=1e-6, max_positions=32768,
    attention="block-causal", qk_norm=True, n_experts=256, n_dense_layers=1, n_active=8, expert_width=512,
    n_shared=1, n_groups=8, n_kept_groups=4, routed_scale=2.5, expert_bias=True,
)  # fmt: skip
"""The published mini shape (2.0 and 2.1)."""
FLASH = replace(MINI, hidden_size=4096, n_layers=32, ffn_width=9216, expert_width=1024, n_heads=32)
"""The published flash shape."""
LAYOUT = replace(
    qwen_layout("a LLaDA-2 model"),
    embedding="model.word_embeddings.weight",
    parts=QWEN_PARTS
    | {
        "qkv": "attention.query_key_value",
        "q_norm": "attention.query_layernorm",
        "k_norm": "attention.key_layernorm",
        "out": "attention.dense",
    },
)
ROLES = Published(156895, ("<|mask|>",), 156892, ("<|role_end|>",), eos_in_config_only=True)
SHAPES = {r"llada2.*mini": MINI, r"llada2.*flash": FLASH}
DIALECT = Dialect(LAYOUT, parse_config, ROLES, block_size=32, anchor="zero", published=SHAPES)
READER, load_folder = DIALECT.reader, DIALECT.load


def load_llada2(
    folder: Path | str, *, device: str | None = None, dtype: str | None = None, **options: Any
) -> DecoderModel:
    """Load a checkpoint folder; further arguments are those of ``Dialect.load``."""
    return DIALECT.load(Path(folder), str(folder), LoadOptions(device, dtype), **options)
