"""SDAR: the body of Qwen3 (norms on queries and keys, heads of their own width), block-causal, unshifted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.models.decoder.config import DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.configfile import refuse_others
from orderlens.models.files.roles import Published


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration behind a published ``config.json``."""
    refuse_others(values, {"attention_bias": (False,)})
    config = {"head_dim": 128, **values}
    return parse_qwen(config, "block-causal", qkv_bias=False, qk_norm=True, rope_theta=10000.0)


DIALECT = Dialect(
    qwen_layout("an SDAR model"),
    parse_config,
    Published(151669, ("<|MASK|>",), 151643, ("<|im_end|>",)),
    block_size=4,
    anchor="zero",
    block_keys=("block_size", "block_length"),
)
READER, load_folder = DIALECT.reader, DIALECT.load
