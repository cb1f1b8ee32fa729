"""Nemotron-Labs-Diffusion: the network of Ministral 3; causal past, full attention inside the current block.

A block begins with an autoregressive token: the last token before it predicts its first one. Blocks of one
token are therefore the authors' ``ar_generate``. Rotary angles are scaled (YaRN). Queries are also scaled
from position ``original_max_position_embeddings`` on, so sequences end there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import QWEN_PARTS, Layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import ConfigValues, refuse_unsupported, rope_values
from orderlens.models.files.roles import PublishedTokens

_ONLY: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "sliding_window": (),
    "dlm_paradigm": ("bidirectional", "block_diff"),
    "causal_context": (True,),
}
_ROPE_ONLY: Mapping[str, tuple[object, ...]] = {
    "rope_type": ("yarn",),
    "type": ("yarn",),
    "attention_factor": (1,),
    "partial_rotary_factor": (1,),
    "truncate": (True,),
}


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    refuse_unsupported(values, _ONLY)
    ConfigValues(values).number("rms_norm_eps")
    config = parse_qwen(
        values, "block-causal", qkv_bias=False, qk_norm=False, rope_theta=1e6, head_width=128, scaled=True
    )
    places = ("rope_parameters", "rope_scaling")  # older versions of transformers write both
    found = {_scaling(key, values[key], config) for key in places if values.get(key)}
    if len(found) != 1:
        raise ModelLoadError(
            "config.json: rope_parameters must state one YaRN scaling, and rope_scaling, if present, the same"
        )
    rope_values(values, scaled=True).number("rope_theta")  # 1e9 in 14B, so no default is right
    original, factors = found.pop()
    return replace(config, max_positions=min(config.max_positions, original), rotary_factors=factors)


def _scaling(key: str, values: Mapping[str, Any], config: DecoderConfig) -> tuple[int, tuple[float, ...]]:
    """Return the length of the original context and the factors on the rotary frequencies."""
    refuse_unsupported(values, _ROPE_ONLY, f"{key}.")
    rope = ConfigValues(values, f"config.json: {key}")
    if "rope_type" not in rope and "type" not in rope:
        raise rope.error("lacks rope_type, which must be 'yarn'")
    if rope.number("mscale") != rope.number("mscale_all_dim"):
        raise rope.error("mscale and mscale_all_dim must be equal; others scale the attention")
    original = rope.integer("original_max_position_embeddings")
    return original, yarn_factors(rope, config.head_width, config.rope_theta)


def yarn_factors(rope: ConfigValues, width: int, theta: float) -> tuple[float, ...]:
    """Return the factor on each of the ``width / 2`` rotary frequencies.

    Frequencies with more than ``beta_fast`` turns in the original context stay, those with fewer than
    ``beta_slow`` turns are divided by ``factor``, and a linear ramp joins the two.
    """
    factor, original = rope.number("factor"), rope.integer("original_max_position_embeddings")

    def place(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(place(rope.number("beta_fast", 32.0))), 0)
    high = min(math.ceil(place(rope.number("beta_slow", 1.0))), width - 1)
    span = high - low or 0.001
    scaled = [min(max((i - low) / span, 0.0), 1.0) for i in range(width // 2)]
    return tuple(1 - part + part / factor for part in scaled)


LAYOUT = Layout(
    "a Nemotron-Labs-Diffusion model",
    "encoder.layers.{}.",
    "encoder.embed_tokens.weight",
    "encoder.norm.weight",
    "diffusion_head.weight",
    QWEN_PARTS,
)
NEMOTRON_8B = DecoderConfig(
    vocab_size=131072, hidden_size=4096, n_layers=34, ffn_width=14336, n_heads=32, n_kv_heads=8,
    head_width=128, rope_theta=1e6, norm_eps=1e-5, max_positions=16384, attention="block-causal",
)  # fmt: skip
"""The published 8B shape; rotary factors are in the file."""
NEMOTRON_3B = replace(NEMOTRON_8B, hidden_size=3072, n_layers=26, ffn_width=9216)
NEMOTRON_14B = replace(NEMOTRON_8B, hidden_size=5120, n_layers=40, ffn_width=16384, rope_theta=1e9)
DIALECT = Dialect(
    LAYOUT,
    parse_config,
    PublishedTokens(100, (), 11),
    block_size=32,
    anchor="prompt",
    causal_past=True,
    block_keys=("block_size",),
    harmless=("dp_varying_mask_ratio", "llama_4_scaling_beta", "max_position_embeddings"),
    published={
        r"nemotron-labs-diffusion-3b": NEMOTRON_3B,
        r"nemotron-labs-diffusion-8b": NEMOTRON_8B,
        r"nemotron-labs-diffusion-14b": NEMOTRON_14B,
    },
)
READER, load_folder = DIALECT.reader, DIALECT.load
