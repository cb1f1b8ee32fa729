"""LLaDA-2.0, 2.1 and 2.2, mini and flash: experts in all but the first layers, block-causal, unshifted.

Versions and sizes share one architecture. LLaDA-2.2 limits the number of experts that the tokens of one block
use (``expert_capacity``). Its DELETE and SPLIT tokens move positions, so no order may reveal them. Missing
keys of ``config.json`` take the defaults of the published configuration class, except that biases are absent
and LLaDA-2.2, whose class is not known to us, must state ``rope_theta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import QWEN_HARMLESS, DecoderConfig, checked
from orderlens.models.decoder.loader import QWEN_PARTS, qwen_layout
from orderlens.models.decoder.model import DecoderModel, Dialect
from orderlens.models.files.configfile import (
    CONFIG,
    MAX_CONTEXT,
    MAX_LAYERS,
    ConfigValues,
    read_json,
    refuse_unsupported,
    rope_values,
)
from orderlens.models.files.roles import PublishedTokens
from orderlens.models.protocol import LoadOptions

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
}


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    if values.get("model_type") != MODEL_TYPE:
        raise ModelLoadError(
            f"config.json: model_type is {values.get('model_type')!r}, expected {MODEL_TYPE!r}"
        )
    refuse_unsupported(values, _ONLY)
    read, rope = ConfigValues(values), rope_values(values, is_partial=True)
    capacity = read.integer("expert_capacity", 0, low=0)
    groups = read.integer("n_group", 8), read.integer("topk_group", 4)
    n_dense = read.integer("first_k_dense_replace", 0, low=0)
    width, n_heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_width = read.integer("head_dim", width // n_heads)
    rotary = int(head_width * rope.number("partial_rotary_factor", 0.5, high=1.0))
    expert_width = read.integer("moe_intermediate_size")
    refuse_unsupported(
        values, {"rotary_dim": (rotary,), "moe_shared_expert_intermediate_size": (expert_width,)}
    )
    return checked(
        DecoderConfig(
            vocab_size=read.integer("vocab_size"),
            hidden_size=width,
            n_layers=read.integer("num_hidden_layers", high=MAX_LAYERS),
            ffn_width=read.integer("intermediate_size", None if n_dense else 1),
            n_heads=n_heads,
            n_kv_heads=read.integer("num_key_value_heads"),
            head_width=head_width,
            rope_theta=rope.number("rope_theta", None if capacity else 10000.0),
            norm_eps=read.number("rms_norm_eps", 1e-5),
            max_positions=read.integer("max_position_embeddings", 16384, high=MAX_CONTEXT),
            attention="block-causal",
            qk_norm=read.flag("use_qk_norm", True),
            rotary=rotary,
            n_experts=read.integer("num_experts", high=MAX_EXPERTS),
            n_dense_layers=n_dense,
            n_active=read.integer("num_experts_per_tok"),
            expert_width=expert_width,
            n_shared=read.integer("num_shared_experts", 0, low=0),
            n_groups=1 if capacity else groups[0],
            n_kept_groups=1 if capacity else groups[1],
            routed_scale=read.number("routed_scaling_factor", 2.5),
            expert_bias=read.flag("moe_router_enable_expert_bias", True),
            expert_capacity=capacity,
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
ROLES = PublishedTokens(
    156895,
    ("<|mask|>",),
    156892,
    ("<|role_end|>",),
    eos_in_config_only=True,
    excluded={"delete_token_id": None, "split_token_id": None},
)
SHAPES = {r"llada2.*mini": MINI, r"llada2.*flash": FLASH}
DIALECT = Dialect(
    LAYOUT,
    parse_config,
    ROLES,
    block_size=32,
    anchor="zero",
    block_keys=("block_size",),
    harmless=QWEN_HARMLESS,
    published=SHAPES,
)
EDITING_ROLES = replace(ROLES, excluded={"delete_token_id": 156930, "split_token_id": 156931})
READER = DIALECT.reader


def load_folder(folder: Path, name: str, options: LoadOptions, **changes: Any) -> DecoderModel:
    """Load a checkpoint folder of any version; ``changes`` are the arguments of ``Dialect.load``."""
    capacity = (read_json(folder / CONFIG) | changes).get("expert_capacity")
    dialect = replace(DIALECT, roles=EDITING_ROLES) if capacity else DIALECT
    return dialect.load(folder, name, options, **changes)


def load_llada2(
    folder: Path | str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    **options: Any,
) -> DecoderModel:
    """Load a checkpoint folder; further arguments are those of ``Dialect.load``."""
    return load_folder(Path(folder), str(folder), LoadOptions(device, dtype, weights), **options)
