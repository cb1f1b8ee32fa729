"""Fast-dLLM v2: the network of Qwen2.5, block-causal in blocks of 32; row i − 1 predicts position i.

So the last token of a block, which is clean, predicts the first token of the next block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderlens.models.decoder.config import QWEN_HARMLESS, DecoderConfig, parse_qwen
from orderlens.models.decoder.loader import qwen_layout
from orderlens.models.decoder.model import Dialect
from orderlens.models.files.roles import PublishedTokens


def parse_config(values: Mapping[str, Any]) -> DecoderConfig:
    """Return the checked configuration of a published ``config.json``."""
    return parse_qwen(values, "block-causal", qkv_bias=True, qk_norm=False, rope_theta=10000.0)


DIALECT = Dialect(
    qwen_layout("a Fast-dLLM v2 model"),
    parse_config,
    PublishedTokens(151665, ("|<MASK>|", "<|MASK|>"), 151645, ("<|im_end|>",)),
    block_size=32,
    anchor="zero",
    shifted=True,
    block_keys=("bd_size",),
    harmless=(*QWEN_HARMLESS, "conplemenrary_mask"),  # training only; the published spelling
)
READER, load_folder = DIALECT.reader, DIALECT.load
