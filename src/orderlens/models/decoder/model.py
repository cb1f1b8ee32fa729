"""A Llama-like model as a Model: everything the decoder needs, over our own network.

A family is a ``Dialect``: how its files are read, what its positions see and which row speaks about which
position. ``DenseModel`` can also be built from any weights, which is what benchmarks with random weights do.
Knows nothing of orders, targets or the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from orderlens.models.checkpoint_info import Look
from orderlens.models.decoder import reference
from orderlens.models.decoder.checkpoint import Layout, check_tensors, load_weights
from orderlens.models.decoder.config import DenseConfig
from orderlens.models.decoder.network import Network
from orderlens.models.decoder.weights import Weights
from orderlens.models.engine.device import pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.fit import Sized
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
"""More tokens are computed for longer than they take to launch, and padding costs as much as any window."""


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
        shifted: the network's row i − 1 speaks about position i.
        published: pattern of a hub repository's name → shape.
    """

    layout: Layout
    parse: Callable[[Mapping[str, Any]], DenseConfig]
    roles: Published
    block_size: int
    anchor: Anchor
    shifted: bool = False
    block_keys: tuple[str, ...] = ()
    published: Mapping[str, Sized] | None = None

    @property
    def look(self) -> Look:
        """How ``doctor`` describes a checkpoint that is not loaded."""
        return Look(self.parse, partial(check_tensors, self.layout), self.published or {})

    def block_of(self, values: Mapping[str, Any], max_positions: int) -> int:
        """Return the block size that ``config.json`` states, or the published one where it fits."""
        given, usual = Values(values), min(self.block_size, max_positions)
        return next((given.integer(key) for key in self.block_keys if key in given), usual)

    def load(self, folder: Path, name: str, options: LoadOptions) -> DenseModel:
        """Load a checkpoint folder in the published layout."""
        values = read_json(folder / CONFIG)
        config = self.parse(values)
        tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
        roles = find_roles(folder, values, config.vocab_size, tokenizer, self.roles)
        checkpoint = Checkpoint(folder)
        check_tensors(self.layout, checkpoint, config)
        device = with_index(pick_device(options.device, prefer=("cuda", "mps")))
        dtype = pick_dtype(options.dtype, checkpoint.main_dtype)
        weights = load_weights(self.layout, checkpoint, config, device, dtype)
        return DenseModel(
            weights,
            config,
            roles,
            self,
            name=name,
            tokenizer=tokenizer,
            digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
            block_size=self.block_of(values, config.max_positions),
        )


class DenseModel(NetworkModel):
    """A loaded model of any family of this body."""

    def __init__(
        self,
        weights: Weights,
        config: DenseConfig,
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
        block = dialect.block_size if block_size is None else block_size
        super().__init__(facts, _assembled(weights, config), block)

    def with_dtype(self, name: str) -> Self:
        """Return a copy whose weights and activations have another dtype."""
        weights = self.weights.to(pick_dtype(name, self.dtype))
        return self._changed(weights=weights, loaded=_assembled(weights, self.config))


def _assembled(weights: Weights, config: DenseConfig) -> Loaded:
    """Put engine and plain forward around the network."""
    network = Network(weights, config)
    engine = (
        canvas_engine(network, config.max_positions, max_graph_tokens=MAX_GRAPH_TOKENS)
        if config.attention == "full"
        else ForwardEngine(network, config)
    )
    return Loaded(
        engine,
        lambda ids_1L, seen_LL: reference.hidden_states(weights, config, ids_1L[0], seen_LL)[None],
        weights.unembed_VC,
    )
