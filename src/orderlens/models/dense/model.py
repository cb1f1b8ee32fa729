"""A Llama-like model as a Model: everything the decoder needs, over our own network.

A family is a ``Dialect``: how its files are read, what its positions see and which row speaks about which
position. ``DenseModel`` can also be built from any weights, which is what benchmarks with random weights do.
Knows nothing of orders, targets or the hub.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from orderlens.errors import UserInputError
from orderlens.models.chat import ChatTemplate, find_template
from orderlens.models.configfile import CONFIG, Values, read_json
from orderlens.models.dense import reference
from orderlens.models.dense.checkpoint import Layout, check_tensors, load_weights
from orderlens.models.dense.config import DenseConfig
from orderlens.models.dense.network import Network
from orderlens.models.dense.weights import Weights
from orderlens.models.options import LoadOptions
from orderlens.models.protocol import Anchor, Attention, FloatArray, Session, Tokenizer
from orderlens.models.roles import IdsOnly, Published, TokenRoles, find_roles
from orderlens.models.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.torch.checkpoint import Checkpoint, weights_digest
from orderlens.models.torch.device import dtype_name, pick_device, pick_dtype, with_index
from orderlens.models.torch.engine import Engine
from orderlens.models.torch.fit import Sized, suggested_sequences
from orderlens.models.torch.full import CanvasSession, canvas_engine
from orderlens.models.torch.memory import free_bytes
from orderlens.models.torch.outlook import Look
from orderlens.models.torch.session import PagedSession
from orderlens.models.torch.shifted import ShiftedSession

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
            chat=find_template(tokenizer) if tokenizer else None,
            digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
            block_size=self.block_of(values, config.max_positions),
        )


class DenseModel:
    """A loaded model of any family of this body."""

    precision: Literal["float32"] = "float32"

    def __init__(
        self,
        weights: Weights,
        config: DenseConfig,
        roles: TokenRoles,
        dialect: Dialect,
        *,
        name: str,
        tokenizer: Tokenizer | None = None,
        chat: ChatTemplate | None = None,
        digest: Callable[[], str] = lambda: "unknown",
        block_size: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.block_size = dialect.block_size if block_size is None else block_size
        if not 1 <= self.block_size <= config.max_positions:
            raise UserInputError(
                f"block_size={self.block_size} must lie between 1 and {config.max_positions}"
            )
        self.weights, self.config, self.roles, self.dialect = weights, config, roles, dialect
        self.name, self.tokenizer, self.chat = name, tokenizer or IdsOnly(), chat
        self._digest = digest
        self.engine = engine or _engine(weights, config)

    @property
    def attention(self) -> Attention:
        """What a position sees."""
        return self.config.attention

    @property
    def anchor(self) -> Anchor:
        """Where the block grid starts by default."""
        return self.dialect.anchor

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.device

    @property
    def vocab_size(self) -> int:
        """Rows of the output matrix, padding included."""
        return self.config.vocab_size

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden token."""
        return self.roles.mask_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        return self.roles.eos_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Turn markers and other special tokens, EOS aside."""
        return self.roles.special_ids

    @property
    def max_positions(self) -> int:
        """Longest sequence the model accepts."""
        return self.config.max_positions

    @cached_property
    def digest(self) -> str:
        """A digest of weights, dtype, block size and token roles."""
        roles = self.roles
        parts = (self._digest(), str(self.weights.dtype), self.block_size, roles.mask_id, roles.valid_vocab)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V] from the readable reference, in float32 arithmetic."""
        length = len(tokens)
        if length > self.max_positions:
            raise UserInputError(f"{length} tokens exceed the model's {self.max_positions} positions")
        if not length:
            return np.empty((0, self.vocab_size))
        ids_L = torch.tensor([int(token) for token in tokens], dtype=torch.long, device=self.device)
        seen_LL = reference.visible(self.config, length, self.block_size, grid_offset, self.device)
        with torch.no_grad():
            hidden_LC = reference.hidden_states(self.weights, self.config, ids_L, seen_LL)
            if self.dialect.shifted:
                hidden_LC = torch.cat((hidden_LC[:1], hidden_LC[:-1]))
            logits_LV = (hidden_LC @ self.weights.unembed_VC.float().T).double()
            logits_LV[:, self.mask_id] = -torch.inf
            logits_LV[:, self.roles.valid_vocab :] = -torch.inf
            return np.asarray(torch.log_softmax(logits_LV, dim=1).cpu().numpy())

    def with_block_size(self, block_size: int) -> DenseModel:
        """Return this model with another block size; weights, cache and graphs are shared."""
        return self._like(self.weights, block_size, self.engine)

    def with_dtype(self, name: str) -> DenseModel:
        """Return a copy whose weights and activations have another dtype."""
        return self._like(self.weights.to(pick_dtype(name, self.weights.dtype)), self.block_size, None)

    def _like(self, weights: Weights, block_size: int, engine: Engine | None) -> DenseModel:
        return DenseModel(
            weights,
            self.config,
            self.roles,
            self.dialect,
            name=self.name,
            tokenizer=self.tokenizer,
            chat=self.chat,
            digest=self._digest,
            block_size=block_size,
            engine=engine,
        )

    def open_session(self) -> Session:
        """Return a new session without slots."""
        head = (self.weights.unembed_VC, (self.mask_id,), self.roles.valid_vocab)
        if self.attention == "full":
            return CanvasSession(self.engine, *head, shifted=self.dialect.shifted)
        kind = ShiftedSession if self.dialect.shifted else PagedSession
        return kind(self.engine, self.block_size, *head)

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return how many sequences of this length fit in the memory that is free now, at least 1."""
        pool, free = self.engine.pool, free_bytes(self.device)
        if free is not None:
            free += pool.n_free * pool.nbytes // pool.n_pages
        return suggested_sequences(self.config, self.weights.dtype, free, tokens_per_sequence)

    def release_memory(self) -> None:
        """Give cache memory that no session uses back to the device."""
        self.engine.release()

    def __repr__(self) -> str:
        kind = dtype_name(self.weights.dtype)
        return f"<{self.dialect.layout.what} '{self.name}', {self.attention}, {kind} on {self.device}>"


def _engine(weights: Weights, config: DenseConfig) -> Engine:
    network = Network(weights, config)
    if config.attention == "full":
        return canvas_engine(network, config.max_positions, max_graph_tokens=MAX_GRAPH_TOKENS)
    return Engine(network, config)
