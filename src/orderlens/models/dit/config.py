"""Reads and checks ``config.json`` of MDLM, BD3-LM and SEDD checkpoints.

The three share one network. They differ in attention (BD3-LM is block-causal), in whether the noise level is
an input of the network, and in the layout of the file: SEDD publishes its training configuration. A value
that changes the computation and is not supported is refused by name. Does not depend on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, MAX_LAYERS, ConfigValues, short_repr
from orderlens.models.protocol import Attention

FREQUENCIES = 256
"""Number of sines and cosines in the embedding of the noise level."""
FEED_FORWARD = 4
"""Feed-forward width / model width."""
ROPE_THETA = 10000.0
DEFAULT_BLOCK = 32
"""Block size for decoding under full attention; the authors unmask anywhere (one block)."""
LAST_TIME = 1e-5
"""The time at which the published samplers of SEDD stop: they never use a lower noise level."""
LOGLINEAR_EPS = 1e-3
HARMLESS = (
    *("var_min", "sampling_eps_min", "sampling_eps_max", "scale_by_sigma", "sigma_min", "sigma_max"),
    *("name", "file", "report_all"),
)
"""Keys without influence on normalised probabilities; ``scale_by_sigma`` adds a constant to every logit."""
SEDD_PARTS = (
    "ngpus",
    "training",
    "data",
    "sampling",
    "eval",
    "optim",
    "hydra",
    "wandb_name",
    "work_dir",
    "seed",
)
"""Parts of SEDD's training configuration that do not describe the network."""


@dataclass(frozen=True, slots=True)
class DitConfig:
    """Shape of the network and its noise conditioning.

    Attributes:
        vocab_size: rows of the embedding, the mask included.
        cond_width: width of the noise embedding that modulates every norm.
        block_size: tokens per block.
        sigmas: smallest and largest noise level of the schedule; None for networks without time conditioning,
            which always use level 0.
        prefix: prefix of all tensor names in the checkpoint.
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
    """Return the shape of an MDLM checkpoint, which has full attention."""
    values = ConfigValues(record, source)
    timed = values.flag("time_conditioning", default=False)
    return _hub_config(values, "full", DEFAULT_BLOCK, loglinear_sigmas() if timed else None)


def parse_bd3lm(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
    """Return the shape of a BD3-LM checkpoint: block-causal, unless it was trained without blocks."""
    values = ConfigValues(record, source)
    if values.flag("causal", default=False):
        raise values.error("causal=true means an autoregressive model, which has no reveal orders")
    if not values.flag("adaln", default=True):
        raise values.error("adaln=false is not supported")
    timed, block = (
        values.flag("time_conditioning", default=False),
        values.integer("block_size", 1, high=MAX_CONTEXT),
    )
    if not values.flag("cross_attn", default=True):
        return _hub_config(values, "full", DEFAULT_BLOCK, loglinear_sigmas() if timed else None)
    if timed:
        raise values.error("time_conditioning=true is not supported with blocks (no exact prefix cache)")
    return _hub_config(values, "block-causal", block, None)


def parse_sedd(record: Mapping[str, Any], source: str = CONFIG) -> DitConfig:
    """Return the shape of a SEDD checkpoint from its published training configuration."""
    top = ConfigValues(record, source)
    graph, shape, noise = (_part(record, key, source) for key in ("graph", "model", "noise"))
    graph.choice("type", ("absorb",))
    shape.choice("type", ("ddit",), "ddit")
    tokens = top.integer("tokens", low=2)
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
            eos_id=top.token("eos_token_id", tokens, tokens - 1),
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
    """Return whether a ``config.json`` without ``model_type`` is a training configuration of SEDD."""
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
    values: ConfigValues, attention: Attention, block_size: int, sigmas: tuple[float, float] | None
) -> DitConfig:
    """Return the shape from the keys that MDLM and BD3-LM share; defaults are as published."""
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


def _checked(config: DitConfig, values: ConfigValues) -> DitConfig:
    if config.width % config.n_heads or config.head_width % 2:
        raise values.error(
            f"a width of {config.width} cannot be split into {config.n_heads} heads of even width"
        )
    if config.mask_id == config.eos_id:
        raise values.error(f"mask and EOS have the same id {config.mask_id}; they must differ")
    return config


def _geometric_sigmas(noise: ConfigValues) -> tuple[float, float]:
    low, high = noise.number("sigma_min", 1e-3), noise.number("sigma_max", 1.0)
    if low >= high:
        raise noise.error(f"sigma_min={low} must be below sigma_max={high}")
    return low, high


def _part(record: Mapping[str, Any], key: str, source: str) -> ConfigValues:
    value = record.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigValues(record, source).error(f"{key}={short_repr(value)} must be an object")
    return ConfigValues(value, f"{source}, {key}")
