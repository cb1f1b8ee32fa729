"""What ``config.json`` of an MDLM, BD3-LM or SEDD checkpoint says, checked, in our own words.

The three share one network. They differ in attention (BD3-LM is block-causal), in whether the noise level
reaches the network, and in the layout of the file: SEDD publishes its training configuration as it is. A
value that would change the computation and is not carried out is refused by name. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, MAX_LAYERS, Values
from orderlens.models.protocol import Attention

FREQUENCIES = 256
"""Sines and cosines of the noise level that enter the network."""
FEED_FORWARD = 4
"""Feed-forward width in model widths."""
ROPE_THETA = 10000.0
DEFAULT_BLOCK = 32
"""Block inside which orders choose, for full attention; the authors unmask anywhere (one block)."""
LAST_TIME = 1e-5
"""The time at which the published samplers of SEDD stop: no noise below it was ever asked for."""
LOGLINEAR_EPS = 1e-3


@dataclass(frozen=True, slots=True)
class DitConfig:
    """Shape of the network and what it is told of the noise.

    Attributes:
        vocab_size: rows of the embedding, the mask included.
        cond_width: width of the noise embedding that modulates every norm.
        block_size: tokens per block.
        sigmas: smallest and largest noise level of the schedule for networks that are told it; None where
            they always read level 0.
        prefix: what stands before every tensor's name in the checkpoint.
    """

    vocab_size: int
    width: int
    cond_width: int
    n_layers: int
    n_heads: int
    max_positions: int
    mask_id: int
    eos_id: int
    attention: Attention
    block_size: int
    sigmas: tuple[float, float] | None
    prefix: str

    @property
    def head_width(self) -> int:
        return self.width // self.n_heads

    @property
    def n_kv_heads(self) -> int:
        return self.n_heads

    @property
    def n_parameters(self) -> int:
        C, K, V = self.width, self.cond_width, self.vocab_size
        layer = 4 * C * C + 2 * C + 2 * FEED_FORWARD * C * C + (FEED_FORWARD + 1) * C + 6 * C * (K + 1)
        noise = K * (FREQUENCIES + 1) + K * (K + 1)
        return V * C + noise + self.n_layers * layer + C + 2 * C * (K + 1) + V * (C + 1)

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.n_layers * self.width if self.attention == "block-causal" else 0


def parse_mdlm(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
    """Return the shape of an MDLM checkpoint: full attention, no blocks of its own."""
    values = Values(record, source)
    timed = values.flag("time_conditioning", default=False)
    return _hub_config(values, "full", DEFAULT_BLOCK, loglinear_sigmas() if timed else None)


def parse_bd3lm(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
    """Return the shape of a BD3-LM checkpoint: block-causal, unless it was made without blocks."""
    values = Values(record, source)
    if values.flag("causal", default=False):
        raise values.error("causal=true is autoregressive: it has no reveal orders")
    if not values.flag("adaln", default=True):
        raise values.error("adaln=false is not supported")
    timed = values.flag("time_conditioning", default=False)
    if not values.flag("cross_attn", default=True):
        return _hub_config(values, "full", DEFAULT_BLOCK, loglinear_sigmas() if timed else None)
    if timed:
        raise values.error("time_conditioning=true is not supported with blocks (no exact prefix cache)")
    return _hub_config(values, "block-causal", values.integer("block_size", 1, high=MAX_CONTEXT), None)


def parse_sedd(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
    """Return the shape of a SEDD checkpoint from the training configuration that it publishes."""
    whole = Values(record, source)
    graph, shape, noise = (_part(record, key, source) for key in ("graph", "model", "noise"))
    graph.choice("type", ("absorb",))
    shape.choice("type", ("ddit",), "ddit")
    tokens = whole.integer("tokens", low=2)
    kind = noise.choice("type", ("loglinear", "geometric"), "loglinear")
    sigmas = loglinear_sigmas() if kind == "loglinear" else _geometric_sigmas(noise)
    return _checked(
        DitConfig(
            vocab_size=tokens + 1,
            width=shape.integer("hidden_size"),
            cond_width=shape.integer("cond_dim"),
            n_layers=shape.integer("n_blocks", high=MAX_LAYERS),
            n_heads=shape.integer("n_heads"),
            max_positions=shape.integer("length", 1024, high=MAX_CONTEXT),
            mask_id=tokens,
            eos_id=whole.token("eos_token_id", tokens, tokens - 1),
            attention="full",
            block_size=DEFAULT_BLOCK,
            sigmas=sigmas,
            prefix="",
        ),
        shape,
    )


def loglinear_sigmas() -> tuple[float, float]:
    """Return the first and last noise level of −log(1 − (1 − ε) t) with the published ε."""
    span = 1 - LOGLINEAR_EPS
    return -math.log1p(-span * LAST_TIME), -math.log1p(-span)


def is_sedd(record: Mapping[str, Any]) -> bool:
    """Say whether a ``config.json`` without ``model_type`` is the training configuration of SEDD."""
    graph, shape = record.get("graph"), record.get("model")
    return (
        "model_type" not in record
        and isinstance(record.get("tokens"), int)
        and isinstance(graph, Mapping)
        and "type" in graph
        and isinstance(shape, Mapping)
        and "n_blocks" in shape
    )


def _hub_config(
    values: Values, attention: Attention, block_size: int, sigmas: tuple[float, float] | None
) -> DitConfig:
    """Return what MDLM and BD3-LM write alike; missing keys take the defaults of the published classes."""
    vocab_size = values.integer("vocab_size", 50258, low=3)
    mask_id = values.token("mask_token_id", vocab_size, vocab_size - 1)
    return _checked(
        DitConfig(
            vocab_size=vocab_size,
            width=values.integer("hidden_dim", 768),
            cond_width=values.integer("cond_dim", 129),
            n_layers=values.integer("n_blocks", 12, high=MAX_LAYERS),
            n_heads=values.integer("n_heads", 12),
            max_positions=values.integer("model_length", 1024, high=MAX_CONTEXT),
            mask_id=mask_id,
            eos_id=values.token("eos_token_id", vocab_size, vocab_size - 2),
            attention=attention,
            block_size=block_size,
            sigmas=sigmas,
            prefix="backbone.",
        ),
        values,
    )


def _checked(config: DitConfig, values: Values) -> DitConfig:
    if config.width % config.n_heads or config.head_width % 2:
        raise values.error(
            f"a width of {config.width} cannot be cut into {config.n_heads} heads of even width"
        )
    if config.mask_id == config.eos_id:
        raise values.error("mask and EOS are the same id")
    return config


def _geometric_sigmas(noise: Values) -> tuple[float, float]:
    low, high = noise.number("sigma_min", 1e-3), noise.number("sigma_max", 1.0)
    if low >= high:
        raise noise.error(f"sigma_min={low} must be below sigma_max={high}")
    return low, high


def _part(record: Mapping[str, Any], key: str, source: str) -> Values:
    value = record.get(key)
    return Values(value if isinstance(value, Mapping) else {}, f"{source}, {key}")
