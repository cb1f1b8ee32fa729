"""A network behind the engine as a Model: facts, inspection, sessions and abilities, alike in every family.

A family brings its network, a slow readable forward, and the facts of its files. Knows no family, no
checkpoint and no order.

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
from orderlens.models.engine.session import PagedSession, ShiftedSession
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import Anchor, Attention, FloatArray, Session, Tokenizer, token_ids

Plain: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(ids [1, L], which columns each row sees [L, L]) → hidden states [1, L, X]; no cache."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network on a device: its engine (paged where block-causal), its plain forward, its output matrix."""

    engine: ForwardEngine
    plain: Plain
    unembed_VX: Tensor


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model whatever its precision and block size.

    Attributes:
        size: shape, for memory estimates and the longest sequence.
        vocab_size: rows of the output matrix; those from ``roles.valid_vocab`` on are padding.
        digest: of the files and settings that determine the numbers; called once, when it is asked for.
        shifted: the network's row i − 1 speaks about position i (and row 0 about position 0 as well).
        chat: the checkpoint's chat template.
        kind: what ``repr`` calls it.
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
    chat: ChatTemplate | None = None
    kind: str = "a model"


class NetworkModel:
    """The Model protocol, and the abilities of a network behind the engine."""

    precision: Literal["float32"] = "float32"

    def __init__(self, facts: Facts, loaded: Loaded, block_size: int) -> None:
        self.facts, self.loaded, self.block_size = facts, loaded, _checked(block_size, facts.size)
        self.name, self.tokenizer, self.chat = facts.name, facts.tokenizer, facts.chat
        self.attention, self.anchor = facts.attention, facts.anchor
        self.roles, self.vocab_size, self.mask_id = facts.roles, facts.vocab_size, facts.roles.mask_id
        self.eos_ids, self.special_ids = facts.roles.eos_ids, facts.roles.special_ids
        self.max_positions = facts.size.max_positions

    @property
    def engine(self) -> ForwardEngine:
        """What runs the network."""
        return self.loaded.engine

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return self.facts.size.n_parameters

    @property
    def device(self) -> torch.device:
        """Where the output matrix is (memory-mapped experts may lie elsewhere)."""
        return self.loaded.unembed_VX.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations."""
        return self.loaded.unembed_VX.dtype

    @cached_property
    def digest(self) -> str:
        """A digest of files, dtype, block size where it counts, and what can be revealed."""
        blocks = () if self.attention == "full" else (self.block_size,)
        parts = (self.facts.digest(), str(self.dtype), *blocks, self.mask_id, self.roles.valid_vocab)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V]: one plain forward of the whole sequence."""
        if len(tokens) > self.max_positions:
            raise UserInputError(f"{len(tokens)} tokens exceed the model's {self.max_positions} positions")
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        ids_1L = torch.as_tensor(token_ids(tokens, self.vocab_size), device=self.device)[None]
        block = len(tokens) if self.attention == "full" else self.block_size
        offset = 0 if self.attention == "full" else grid_offset
        seen_LL = block_causal(len(tokens), block, offset, self.device)
        with torch.no_grad():
            hidden_LX = self.loaded.plain(ids_1L, seen_LL)[0].float()
            if self.facts.shifted:
                hidden_LX = torch.cat((hidden_LX[:1], hidden_LX[:-1]))
            logits_LV = (hidden_LX @ self.loaded.unembed_VX.float().T).cpu().double()
            logits_LV[:, [self.mask_id, *range(self.roles.valid_vocab, self.vocab_size)]] = -torch.inf
            return np.asarray(torch.log_softmax(logits_LV, dim=1).numpy())

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
        head = (self.loaded.unembed_VX, (self.mask_id,), self.roles.valid_vocab)
        if self.attention == "full":
            return CanvasSession(self.engine, *head, shifted=self.facts.shifted)
        kind = ShiftedSession if self.facts.shifted else PagedSession
        return kind(self.engine, self.block_size, *head)

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return how many sequences of this length fit in the memory that is free now, at least 1."""
        pool, free = self.engine.pool, free_bytes(self.device)
        if free is not None:
            free += pool.n_free * pool.nbytes // pool.n_pages
        most = MAX_BATCH * self.engine.widest // MAX_TOKENS  # two halves in turn, each of the widest forward
        return suggested_sequences(self.facts.size, self.dtype, free, tokens_per_sequence, most)

    def release_memory(self) -> None:
        """Give memory that no session uses back to the device."""
        self.engine.release()

    def __repr__(self) -> str:
        kind, dtype = self.facts.kind, dtype_name(self.dtype)
        return f"<{kind} '{self.name}', {self.attention}, {dtype} on {self.device}>"


class CastableModel(NetworkModel):
    """A model that can also be had in another precision."""

    def __init__(
        self, facts: Facts, loaded: Loaded, block_size: int, load: Callable[[torch.dtype], Loaded]
    ) -> None:
        super().__init__(facts, loaded, block_size)
        self._load = load

    def with_dtype(self, name: str) -> Self:
        """Return this model read again in another precision."""
        return self._changed(loaded=self._load(pick_dtype(name, self.dtype)))


def block_causal(length: int, block_size: int, offset: int, device: torch.device | None = None) -> Tensor:
    """Return [L, L] booleans: a position sees its own block and all earlier ones.

    Blocks start at ``offset``; what lies before it is a block of its own.
    """
    block_L = (torch.arange(length, device=device) - offset) // block_size
    return block_L[None, :] <= block_L[:, None]


def _checked(block_size: int, size: Sized) -> int:
    if not 1 <= block_size <= size.max_positions:
        raise UserInputError(f"block_size={block_size} must lie between 1 and {size.max_positions}")
    return block_size
