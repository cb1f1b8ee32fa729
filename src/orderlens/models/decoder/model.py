"""A Llama-like model as a Model: everything the decoder needs, over our own network.

A family is a ``Dialect``: how its files are read, what its positions see and which row is about which
position. ``DecoderModel`` can also be built from any weights, which is what benchmarks with random weights
do. Does not depend on orders, targets or the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch

from orderlens.models.checkpoint_info import CheckpointReader
from orderlens.models.decoder import reference
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.loader import (
    ExpertPlace,
    Layout,
    check_tensors,
    load_weights,
    refuse_too_large,
)
from orderlens.models.decoder.network import DecoderNetwork, make_network
from orderlens.models.decoder.weights import DecoderWeights
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.full import canvas_engine
from orderlens.models.engine.model import Facts, Loaded, NetworkModel
from orderlens.models.engine.weights import tensors_digest
from orderlens.models.files.chat import find_template
from orderlens.models.files.checkpoint import Checkpoint, weights_digest
from orderlens.models.files.configfile import CONFIG, Values, read_json
from orderlens.models.files.roles import IdsOnly, Published, TokenRoles, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.options import LoadOptions
from orderlens.models.protocol import Anchor

MAX_GRAPH_TOKENS = 1024
"""More tokens of whole canvases are computed for longer than they take to launch, and padding costs as much
as any window."""
MAX_EXPERT_TOKENS = 81920
"""Tokens of one forward with experts: an expert's share (2,560 on average) fills its tiles."""
UNIT_SEQUENCES = 2 * MAX_EXPERT_TOKENS // 32
"""Work unit of a network with experts: two halves that advance alternately, each of the widest forward."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What makes a family of this body.

    Attributes:
        layout: names of its tensors.
        parse: from ``config.json`` to the network's shape.
        roles: its published token ids and names.
        block_size: the block its authors decode in.
        block_keys: keys of ``config.json`` that may give another one.
        anchor: where the block grid starts.
        shifted: the network's row i − 1 is about position i.
        published: pattern of a hub repository's name → shape.
    """

    layout: Layout
    parse: Callable[[Mapping[str, Any]], DecoderConfig]
    roles: Published
    block_size: int
    anchor: Anchor
    shifted: bool = False
    block_keys: tuple[str, ...] = ()
    published: Mapping[str, DecoderConfig] | None = None

    @property
    def reader(self) -> CheckpointReader:
        """How ``doctor`` describes a checkpoint that is not loaded."""
        return CheckpointReader(self.parse, partial(check_tensors, self.layout), self.published or {})

    def block_of(self, values: Mapping[str, Any], max_positions: int) -> int:
        """Return the block size that ``config.json`` states, or the published one where it fits."""
        given, usual = Values(values), min(self.block_size, max_positions)
        return next((given.integer(key) for key in self.block_keys if key in given), usual)

    def load(
        self,
        folder: Path,
        name: str,
        options: LoadOptions,
        *,
        experts: Literal["auto", "device", "host"] = "auto",
        block_size: int | None = None,
        **changes: Any,
    ) -> DecoderModel:
        """Load a checkpoint folder in the published layout.

        Args:
            folder: holds config.json, safetensors and (for text) tokenizer.json.
            name: the spec that loads this model again.
            options: device and dtype.
            experts: where expert matrices are: stacked on the device, or memory-mapped on the host.
            block_size: tokens per block instead of the family's.
            changes: values that replace those of config.json, e.g. ``mask_token_id``.
        """
        values = read_json(folder / CONFIG) | changes
        config = self.parse(values)
        tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
        roles = find_roles(folder, values, config.vocab_size, tokenizer, self.roles)
        checkpoint = Checkpoint(folder)
        check_tensors(self.layout, checkpoint, config)
        device = with_index(pick_device(options.device, prefer=("cuda", "mps")))
        dtype = pick_dtype(options.dtype, checkpoint.main_dtype)
        place = expert_place(experts, config, device, dtype)
        block = self.block_of(values, config.max_positions) if block_size is None else block_size
        weights = load_weights(self.layout, checkpoint, config, device, dtype, place)
        return DecoderModel(
            weights,
            config,
            roles,
            self,
            name=name,
            tokenizer=tokenizer,
            digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
            block_size=block,
        )


def expert_place(wanted: str, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> ExpertPlace:
    """Return where experts go; refuse early, in one line, what cannot fit."""
    if config.n_experts and (wanted == "host" or (wanted == "auto" and device.type == "cpu")):
        return "host"
    refuse_too_large(config, device, dtype)
    return "device"


class DecoderModel(NetworkModel):
    """A loaded model of any family of this body."""

    def __init__(
        self,
        weights: DecoderWeights,
        config: DecoderConfig,
        roles: TokenRoles,
        dialect: Dialect,
        *,
        name: str,
        tokenizer: FastTokenizer | None = None,
        digest: Callable[[], str] | None = None,
        block_size: int | None = None,
    ) -> None:
        self.weights, self.config = weights, config
        facts = Facts(
            name=name,
            size=config,
            vocab_size=config.vocab_size,
            roles=roles,
            tokenizer=tokenizer or IdsOnly(),
            digest=digest or partial(tensors_digest, weights, config),
            attention=config.attention,
            anchor=dialect.anchor,
            shifted=dialect.shifted,
            chat=find_template(tokenizer) if tokenizer else None,
            kind=dialect.layout.what,
        )
        if config.n_experts:
            self.unit_sequences = UNIT_SEQUENCES  # the ability PrefersUnitSize
        block = dialect.block_size if block_size is None else block_size
        super().__init__(facts, _assembled(weights, config), block)

    def with_dtype(self, name: str) -> Self:
        weights = self.weights.to(pick_dtype(name, self.dtype))
        return self._changed(weights=weights, loaded=_assembled(weights, self.config))


def _assembled(weights: DecoderWeights, config: DecoderConfig) -> Loaded:
    """Put engine and plain forward around the network."""
    return Loaded(
        _engine(make_network(weights, config), config),
        lambda ids_1L, seen_LL: reference.hidden_states(weights, config, ids_1L[0], seen_LL)[None],
        weights.unembed_VC,
    )


def _engine(network: DecoderNetwork, config: DecoderConfig) -> ForwardEngine:
    if config.attention == "full":
        return canvas_engine(network, config.max_positions, max_graph_tokens=MAX_GRAPH_TOKENS)
    if config.n_experts:
        return ForwardEngine(network, config, MAX_EXPERT_TOKENS, MAX_EXPERT_TOKENS)
    return ForwardEngine(network, config)
