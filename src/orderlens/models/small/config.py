"""The shape of the small transformer, read from its ``config.json``. Does not depend on tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, MAX_LAYERS, ConfigValues

MODEL_TYPE = "orderlens"
Attention: TypeAlias = Literal["block-causal", "full", "permutation", "causal"]


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of the network.

    Attributes:
        attention: the attention of its training; causal for autoregressive models, permutation for full
            attention in which only a hidden position itself sees that position.
        n_kv_heads: number of key/value heads, each shared by a group of query heads; 0 for ``n_heads``.
        qk_norm: whether queries and keys are normalised per head before the rotary encoding.
    """

    vocab_size: int = 8192
    n_layers: int = 12
    width: int = 384
    n_heads: int = 6
    ffn_width: int = 1024
    block_size: int = 32
    max_positions: int = 16384 + 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    attention: Attention = "block-causal"
    mask_id: int = 0
    eos_id: int = 1
    n_kv_heads: int = 0
    qk_norm: bool = True

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.n_heads


def parse_config(record: Mapping[str, Any], source: str = CONFIG) -> TransformerConfig:
    """Return the checked shape that a ``config.json`` describes.

    Raises:
        ModelLoadError: names the file and the first invalid value.
    """
    values, default = ConfigValues(record, source), TransformerConfig()
    if record.get("model_type") != MODEL_TYPE:
        raise values.error(f"model_type is {record.get('model_type')!r}, expected {MODEL_TYPE!r}")
    vocab_size = values.integer("vocab_size", default.vocab_size, low=2)
    max_positions = values.integer("max_positions", default.max_positions, high=MAX_CONTEXT)
    attention = values.choice("attention", get_args(Attention), default.attention)
    config = TransformerConfig(
        vocab_size=vocab_size,
        n_layers=values.integer("n_layers", default.n_layers, high=MAX_LAYERS),
        width=values.integer("width", default.width),
        n_heads=values.integer("n_heads", default.n_heads),
        ffn_width=values.integer("ffn_width", default.ffn_width),
        block_size=values.integer("block_size", default.block_size, high=max_positions),
        max_positions=max_positions,
        rope_theta=values.number("rope_theta", default.rope_theta),
        norm_eps=values.number("norm_eps", default.norm_eps),
        attention=cast(Attention, attention),
        mask_id=values.token("mask_id", vocab_size, default.mask_id),
        eos_id=values.token("eos_id", vocab_size, default.eos_id),
        n_kv_heads=values.integer("n_kv_heads", default.n_kv_heads, low=0),
        qk_norm=values.flag("qk_norm", default.qk_norm),
    )
    _check(config, values)
    return config


def _check(config: TransformerConfig, values: ConfigValues) -> None:
    """Refuse values that do not fit together."""
    rules = {
        "width must be a multiple of n_heads": config.width % config.n_heads == 0,
        "width / n_heads must be even (rotary encoding)": config.head_width % 2 == 0,
        "n_heads must be a multiple of n_kv_heads": config.n_heads % config.kv_heads == 0,
        "mask_id and eos_id must differ": config.mask_id != config.eos_id,
    }
    for rule, holds in rules.items():
        if not holds:
            raise values.error(rule)
