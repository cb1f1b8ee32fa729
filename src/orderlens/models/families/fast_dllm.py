"""Fast-dLLM v2: the body of Qwen2.5, block-causal in blocks of 32; row i − 1 speaks about position i.

The first token of a block is therefore predicted by the last token of the block before it, which is clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.models.decoder.config import DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.roles import Published


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration behind a published ``config.json``."""
    return parse_qwen(values, "block-causal", qkv_bias=True, qk_norm=False, rope_theta=10000.0)


DIALECT = Dialect(
    qwen_layout("a Fast-dLLM v2 model"),
    parse_config,
    Published(151665, ("|<MASK>|", "<|MASK|>"), 151645, ("<|im_end|>",)),
    block_size=32,
    anchor="zero",
    shifted=True,
    block_keys=("bd_size",),
)
READER, load_folder = DIALECT.reader, DIALECT.load
