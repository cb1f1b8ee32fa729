"""``NetworkModel``: the Model protocol for a network that runs on the engine.

A family provides its network, a slow readable forward, and the facts from its files. Does not depend on a
family, a checkpoint or an order.

Shape letters: L positions, V vocabulary, X width of the output matrix.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orderlens.common.grid import block_edges
from orderlens.errors import UserInputError
from orderlens.models.engine.device import (
    MAX_BATCH,
    Sized,
    dtype_name,
    free_bytes,
    pick_dtype,
    suggested_sequences,
)
from orderlens.models.engine.engine import MAX_TOKENS, ForwardEngine
from orderlens.models.engine.full import CanvasSession
from orderlens.models.engine.session import PagedSession, SeededSession, ShiftedSession
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import Anchor, Attention, FloatArray, Session, Tokenizer, token_ids

PlainForward: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(ids [1, L], which columns each row sees [L, L]) → hidden states [1, L, X]; no cache."""


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network on a device: its engine (paged if block-causal), its plain forward, its output matrix."""

    engine: ForwardEngine
    plain: PlainForward
    unembed_VX: Tensor


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that do not depend on its precision and block size.

    Attributes:
        size: shape, for memory estimates and the longest sequence.
        vocab_size: rows of the output matrix; those from ``roles.valid_vocab`` on are padding.
        digest: returns a digest of the files and settings that determine the numbers; called at most once.
        shifted: the network's row i − 1 predicts position i (and row 0 also predicts position 0).
        causal_past: a token of a finished block sees no later token; a token of the current block sees the
            whole block. While nothing of a block is revealed, the token before it predicts its first one.
        chat: the checkpoint's chat template.
        kind: the kind of model, for ``repr``.
    """

    name: str
    size: Sized
    vocab_size: int
    roles: TokenRoles
    tokenizer: Tokenizer
    digest: Callable[[], str]
    attention: Attention
    anchor: Anchor
    shifted: bool = False
    causal_past: bool = False
    chat: ChatTemplate | None = None
    kind: str = "a model"


class NetworkModel:
    """The Model protocol and the optional abilities, for a network that runs on the engine."""

    precision: Literal["float32"] = "float32"

    def __init__(self, facts: ModelFacts, loaded: LoadedNetwork, block_size: int) -> None:
        self.facts, self.loaded, self.block_size = facts, loaded, _checked(block_size, facts.size)
        self.name, self.tokenizer, self.chat = facts.name, facts.tokenizer, facts.chat
        self.attention, self.anchor = facts.attention, facts.anchor
        self.roles, self.vocab_size, self.mask_id = facts.roles, facts.vocab_size, facts.roles.mask_id
        self.eos_ids, self.special_ids = facts.roles.eos_ids, facts.roles.special_ids
        self.max_positions = facts.size.max_positions
        self.seeds_blocks = facts.causal_past  # the ability SeedsBlocks

    @property
    def engine(self) -> ForwardEngine:
        """The engine that runs the network."""
        return self.loaded.engine

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return self.facts.size.n_parameters

    @property
    def device(self) -> torch.device:
        """The device of the output matrix (memory-mapped experts may be elsewhere)."""
        return self.loaded.unembed_VX.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations."""
        return self.loaded.unembed_VX.dtype

    @cached_property
    def digest(self) -> str:
        """A digest of files, dtype, block size (if block-causal), mask id and valid vocabulary."""
        blocks = () if self.attention == "full" else (self.block_size,)
        tokens = (self.mask_id, self.roles.valid_vocab, *self._excluded[1:])
        parts = (self.facts.digest(), str(self.dtype), *blocks, *tokens)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V]: one plain forward of the whole sequence."""
        if len(tokens) > self.max_positions:
            raise UserInputError(
                f"{len(tokens)} tokens exceed the model's {self.max_positions} positions; shorten the "
                "sequence"
            )
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        ids_1L = torch.as_tensor(token_ids(tokens, self.vocab_size), device=self.device)[None]
        with torch.no_grad():
            hidden_LX = self._plain_hidden(ids_1L, grid_offset)
            logits_LV = (hidden_LX @ self.loaded.unembed_VX.float().T).cpu().double()
            logits_LV[:, [*self._excluded, *range(self.roles.valid_vocab, self.vocab_size)]] = -torch.inf
            return np.asarray(torch.log_softmax(logits_LV, dim=1).numpy())

    def _plain_hidden(self, ids_1L: Tensor, grid_offset: int) -> Tensor:
        """Return the hidden states [L, X] that predict each position, without a cache."""
        length = ids_1L.shape[1]
        if self.facts.causal_past:
            edges = block_edges(length, self.block_size, grid_offset)
            return torch.cat([self._current_block(ids_1L[:, :high], low) for low, high in edges])
        block = length if self.attention == "full" else self.block_size
        offset = 0 if self.attention == "full" else grid_offset
        seen_LL = block_causal(length, block, offset, self.device)
        hidden_LX = self.loaded.plain(ids_1L, seen_LL)[0].float()
        return torch.cat((hidden_LX[:1], hidden_LX[:-1])) if self.facts.shifted else hidden_LX

    def _current_block(self, ids_1L: Tensor, low: int) -> Tensor:
        """Return the hidden states of the block from ``low`` to the end, after a causal past."""
        seen_LL = block_causal(ids_1L.shape[1], 1, 0, self.device)
        seen_LL[low:] = True
        hidden_LX = self.loaded.plain(ids_1L, seen_LL)[0].float()
        seeded = low > 0 and bool((ids_1L[0, low:] == self.mask_id).all())
        first = low - 1 if seeded else low
        return torch.cat((hidden_LX[first : first + 1], hidden_LX[low + 1 :]))

    def with_block_size(self, block_size: int) -> Self:
        """Return this model with another block size; weights, cache and graphs are shared."""
        return self._changed(block_size=_checked(block_size, self.facts.size))

    def _changed(self, **parts: Any) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("digest", None)
        other.__dict__.update(parts)
        return other

    def open_session(self) -> Session:
        """Return a new session without slots."""
        head = (self.loaded.unembed_VX, self._excluded, self.roles.valid_vocab)
        if self.attention == "full":
            return CanvasSession(self.engine, *head, shifted=self.facts.shifted)
        kind = ShiftedSession if self.facts.shifted else PagedSession
        kind = SeededSession if self.facts.causal_past else kind
        return kind(self.engine, self.block_size, *head)

    @property
    def unrevealed_ids(self) -> frozenset[int]:
        """Padding of the vocabulary, and tokens that move positions."""
        return self.roles.excluded_ids | frozenset(range(self.roles.valid_vocab, self.vocab_size))

    @property
    def _excluded(self) -> tuple[int, ...]:
        """The ids that no order may reveal, in the softmax −∞."""
        return (self.mask_id, *sorted(self.roles.excluded_ids))

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return the number of sequences of this length that fit in free memory now, at least 1."""
        pool, free = self.engine.pool, free_bytes(self.device)
        if free is not None:
            free += pool.n_free * pool.nbytes // pool.n_pages
        most = (
            MAX_BATCH * self.engine.widest // MAX_TOKENS
        )  # two alternating halves, each of the widest forward
        return suggested_sequences(self.facts.size, self.dtype, free, tokens_per_sequence, most)

    def release_memory(self) -> None:
        """Release memory that no session uses."""
        self.engine.release()

    def __repr__(self) -> str:
        kind, dtype = self.facts.kind, dtype_name(self.dtype)
        return f"<{kind} '{self.name}', {self.attention}, {dtype} on {self.device}>"


class CastableModel(NetworkModel):
    """A model that can be reloaded in another precision."""

    def __init__(
        self,
        facts: ModelFacts,
        loaded: LoadedNetwork,
        block_size: int,
        load: Callable[[torch.dtype], LoadedNetwork],
    ) -> None:
        super().__init__(facts, loaded, block_size)
        self._load = load

    def with_dtype(self, name: str) -> Self:
        """Return this model, reloaded in another precision."""
        return self._changed(loaded=self._load(pick_dtype(name, self.dtype)))


def block_causal(length: int, block_size: int, offset: int, device: torch.device | None = None) -> Tensor:
    """Return [L, L] booleans: a position sees its own block and all earlier ones.

    Blocks start at ``offset``; the positions before it form one block.
    """
    block_L = (torch.arange(length, device=device) - offset) // block_size
    return block_L[None, :] <= block_L[:, None]


def _checked(block_size: int, size: Sized) -> int:
    if not 1 <= block_size <= size.max_positions:
        raise UserInputError(f"block_size={block_size} must be between 1 and {size.max_positions}")
    return block_size
