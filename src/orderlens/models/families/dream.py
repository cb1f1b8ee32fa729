"""Dream-7B: the network of Qwen2.5 with full attention; row i − 1 of the network predicts position i."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.models.decoder.config import QWEN_HARMLESS, DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import refuse_unsupported
from orderlens.models.files.roles import PublishedTokens


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    refuse_unsupported(values, {"block_size": ()})  # later Dream models are block-causal and unshifted
    return parse_qwen(values, "full", qkv_bias=True, qk_norm=False, rope_theta=10000.0)


DREAM_7B = DecoderConfig(
    vocab_size=152064,
    hidden_size=3584,
    n_layers=28,
    ffn_width=18944,
    n_heads=28,
    n_kv_heads=4,
    head_width=128,
    rope_theta=1000000.0,
    norm_eps=1e-6,
    max_positions=131072,
    attention="full",
    qkv_bias=True,
)
"""The published 7B shape."""

DIALECT = Dialect(
    qwen_layout("a Dream model"),
    parse_config,
    PublishedTokens(151666, ("<|mask|>",), 151643, ("<|im_end|>",)),
    block_size=32,
    anchor="prompt",
    shifted=True,
    harmless=QWEN_HARMLESS,
    published={r"dream.*7b": DREAM_7B},
)
READER, load_folder = DIALECT.reader, DIALECT.load
