"""``DecoderModel``: the Model protocol for our Llama-like network.

A family is a ``Dialect``: how its files are read, what its positions see, and which row predicts which
position. ``DecoderModel`` can also be built from any weights; benchmarks build it from random weights. Does
not depend on orders, targets or the hub.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.checkpoint_info import CheckpointReader
from orderlens.models.decoder import reference
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.loader import (
    ExpertPlace,
    Layout,
    ScaleBlock,
    check_tensors,
    load_weights,
    refuse_too_large,
    stores_float8,
)
from orderlens.models.decoder.network import DecoderNetwork, make_network
from orderlens.models.decoder.weights import DecoderWeights
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.full import canvas_engine
from orderlens.models.engine.model import LoadedNetwork, ModelFacts, NetworkModel
from orderlens.models.files.chat import find_template
from orderlens.models.files.checkpoint import Checkpoint, tensors_digest, weights_digest
from orderlens.models.files.configfile import CONFIG, ConfigValues, parse_known, read_json, refuse_keys
from orderlens.models.files.roles import IdsOnlyTokenizer, PublishedTokens, TokenRoles, find_roles
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.protocol import Anchor, LoadOptions, check_weights

_log = logging.getLogger(__name__)
_BLOCK_IN_NAME = re.compile(r"-b([1-9]\d{0,3})(?=$|[-_@/])", re.IGNORECASE)
QK_NORM_KEYS = ("qk_norm", "use_qk_norm", "qk_layernorm")
"""Names of the switch for norms on queries and keys; false is another network where a family has them."""
MAX_GRAPH_TOKENS = 1024
"""Maximum tokens of a recorded forward of whole canvases: larger ones compute for longer than they take to
launch, and padding costs as much as any window."""
MAX_EXPERT_TOKENS = 81920
"""Maximum tokens of one forward with experts: an expert's share (2,560 on average) fills its tiles."""
UNIT_SEQUENCES = 2 * MAX_EXPERT_TOKENS // 32
"""Sequences per work unit of a network with experts: two alternating halves, each of the widest forward."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties in which a family differs from the others on this network.

    Attributes:
        layout: names of its tensors.
        parse: from ``config.json`` to the network's shape.
        roles: its published token ids and names.
        block_size: the block size of its authors' decoder.
        block_keys: keys of ``config.json`` that may state another block size.
        anchor: where the block grid starts.
        shifted: the network's row i − 1 predicts position i.
        causal_past: a token of a finished block sees no later token (see ``ModelFacts``).
        harmless: further keys of its ``config.json`` without influence on inference.
        block_in_name: published checkpoints with another block size have it in their name (``-b32``).
        published: pattern of a hub repository's name → shape.
    """

    layout: Layout
    parse: Callable[[Mapping[str, Any]], DecoderConfig]
    roles: PublishedTokens
    block_size: int
    anchor: Anchor
    shifted: bool = False
    causal_past: bool = False
    block_keys: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    block_in_name: bool = False
    published: Mapping[str, DecoderConfig] | None = None

    @property
    def reader(self) -> CheckpointReader:
        """Describes a checkpoint without loading it, for ``doctor``."""
        check, stores8 = partial(check_tensors, self.layout), partial(stores_float8, self.layout)
        return CheckpointReader(self.read, check, self.published or {}, self.read_block_size, stores8)

    def read(self, values: Mapping[str, Any]) -> DecoderConfig:
        """Return the shape that ``config.json`` describes; refuse keys that may change the computation."""
        shape = parse_known(self.parse, values, (*self.harmless, *self.block_keys, *self.roles.excluded))
        if shape.qk_norm:
            refuse_keys((key, False) for key in QK_NORM_KEYS if values.get(key) is False)
        return shape

    def read_block_size(self, values: Mapping[str, Any], max_positions: int, name: str = "") -> int:
        """Return the block size that ``config.json`` or the name states, else the family's."""
        read, usual = ConfigValues(values), min(self.block_size, max_positions)
        sizes = {key: read.integer(key) for key in self.block_keys if key in read}
        if len({*sizes.values()}) > 1:
            raise read.error(f"{' and '.join(sizes)} state different blocks: {[*sizes.values()]}; remove one")
        stated = next(iter(sizes.values()), None)
        match = _BLOCK_IN_NAME.search(_own_name(name)) if self.block_in_name else None
        named = int(match[1]) if match else None
        if named is not None and stated is None:
            _log.warning("%s: blocks of %d, from the name; config.json states no block size", name, named)
        elif named not in (None, stated):
            _log.warning("%s: blocks of %d, from config.json; the name states %d", name, stated, named)
        return stated or named or usual

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
            options: device, dtype and format of the weights.
            experts: location of expert matrices: stacked on the device, or memory-mapped on the host.
            block_size: tokens per block; None for the family's block size.
            changes: values that replace those of config.json, e.g. ``mask_token_id``.
        """
        values = read_json(folder / CONFIG) | changes
        config = self.read(values)
        tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
        roles = find_roles(folder, values, config.vocab_size, tokenizer, self.roles)
        checkpoint = Checkpoint(folder)
        check_tensors(self.layout, checkpoint, config)
        device = with_index(pick_device(options.device, prefer=("cuda", "mps")))
        dtype = pick_dtype(options.dtype, checkpoint.main_dtype)
        stored8 = stores_float8(self.layout, checkpoint, config)
        float8 = self._converts(options.weights, config, stored8)
        place = expert_place(
            experts, config, device, dtype, float8=float8, stored8=stored8, block=checkpoint.block
        )
        usual = self.read_block_size(values, config.max_positions, name)
        weights = load_weights(self.layout, checkpoint, config, device, dtype, place, float8)
        converted = ":fp8" if float8 else ""
        as_stored = partial(self._as_stored, folder, name, options, block_size, changes) if float8 else None
        return DecoderModel(
            weights,
            config,
            roles,
            self,
            name=name,
            tokenizer=tokenizer,
            digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}{converted}",
            block_size=usual if block_size is None else block_size,
            as_stored=as_stored,
        )

    def _as_stored(
        self,
        folder: Path,
        name: str,
        options: LoadOptions,
        block_size: int | None,
        changes: Mapping[str, Any],
    ) -> DecoderModel:
        """Load the checkpoint without conversion; experts stay on the host if the device is too small."""
        plain = replace(options, weights=None)
        load = partial(self.load, folder, name, plain, block_size=block_size, **changes)
        try:
            return load()
        except ModelLoadError:
            return load(experts="host")

    def _converts(self, wanted: str | None, config: DecoderConfig, stored8: bool) -> bool:
        """Return whether experts are converted to float8; refuse a network without experts."""
        check_weights(wanted)
        if wanted is not None and not config.n_sparse_layers:
            raise UserInputError(
                f"weights '{wanted}': {self.layout.what} of this shape has no experts, and only experts are "
                "converted; leave it out"
            )
        return wanted is not None and not stored8


def _own_name(name: str) -> str:
    """Return the repository or folder of a spec, without the folders that contain it."""
    parts = name.partition("@")[0].split("/") if name.startswith("hf:") else name.rstrip("/").split("/")
    return next((part for part in parts if part.startswith("models--")), parts[-1])  # the hub's cache


def expert_place(
    wanted: str,
    config: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    float8: bool = False,
    stored8: bool = False,
    block: ScaleBlock = None,
) -> ExpertPlace:
    """Return the location of expert matrices; refuse a network that cannot fit on the device.

    Args:
        wanted: the request: ``auto``, ``device`` or ``host``.
        config: the network's shape.
        device: where it computes.
        dtype: dtype of the other weights.
        float8: experts are converted to float8, which needs a copy on the device.
        stored8: experts are stored in float8.
        block: rows and columns per stored scale.
    """
    if wanted == "host" and float8:
        raise UserInputError("experts='host' reads experts as they are stored; leave out weights='fp8'")
    if config.n_experts and (wanted == "host" or (wanted == "auto" and device.type == "cpu" and not float8)):
        return "host"
    refuse_too_large(config, device, dtype, float8 or stored8, block)
    return "device"


class DecoderModel(NetworkModel):
    """A loaded model of any family on this network."""

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
        as_stored: Callable[[], DecoderModel] | None = None,
    ) -> None:
        self.weights, self.config, self._as_stored = weights, config, as_stored
        facts = ModelFacts(
            name=name,
            size=config,
            vocab_size=config.vocab_size,
            roles=roles,
            tokenizer=tokenizer or IdsOnlyTokenizer(),
            digest=digest or partial(tensors_digest, weights, config),
            attention=config.attention,
            anchor=dialect.anchor,
            shifted=dialect.shifted,
            causal_past=dialect.causal_past,
            chat=find_template(tokenizer) if tokenizer else None,
            kind=dialect.layout.what,
        )
        self.weight_format = "fp8" if weights.is_float8 else None  # the ability HasWeightFormat
        if config.n_experts and config.attention == "block-causal":
            self.unit_sequences = UNIT_SEQUENCES  # the ability PrefersUnitSize
        block = dialect.block_size if block_size is None else block_size
        super().__init__(facts, _assemble(weights, config), block)

    def with_dtype(self, name: str) -> Self:
        weights = self.weights.to(pick_dtype(name, self.dtype))
        return self._changed(weights=weights, loaded=_assemble(weights, self.config))

    def with_stored_weights(self) -> DecoderModel | None:
        """Return the model with weights as stored, None if they were not converted."""
        return self._as_stored() if self._as_stored else None


def _assemble(weights: DecoderWeights, config: DecoderConfig) -> LoadedNetwork:
    """Build the network, its engine and its plain forward."""
    return LoadedNetwork(
        _engine(make_network(weights, config), config),
        lambda ids_1L, seen_LL: reference.hidden_states(weights, config, ids_1L[0], seen_LL)[None],
        weights.unembed_VC,
    )


def _engine(network: DecoderNetwork, config: DecoderConfig) -> ForwardEngine:
    if config.attention == "full":
        recorded = not config.n_experts  # plain torch, which waits for the host
        return canvas_engine(
            network, config.max_positions, recorded=recorded, max_graph_tokens=MAX_GRAPH_TOKENS
        )
    if config.n_experts:
        return ForwardEngine(network, config, MAX_EXPERT_TOKENS, MAX_EXPERT_TOKENS)
    return ForwardEngine(network, config)
