"""A network behind the engine as a Model: facts, inspection, sessions and abilities, alike in every family.

A family brings a loader of its network, what its token ids mean, and its files' digest. Knows no family, no
checkpoint and no order.

Shape letters: L positions, V vocabulary, X width of the output matrix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, Attention, FloatArray, Session, Tokenizer
from orderlens.models.roles import TokenRoles
from orderlens.models.torch.device import dtype_name, pick_dtype
from orderlens.models.torch.engine import Engine
from orderlens.models.torch.fit import Sized, suggested_sequences
from orderlens.models.torch.full import CanvasSession
from orderlens.models.torch.memory import free_bytes
from orderlens.models.torch.session import PagedSession

Plain: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""(ids [1, L], which columns each row sees [L, L] or None for all) → hidden states [1, L, X]; no cache."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network on a device: its engine (paged where block-causal), its plain forward, its output matrix."""

    engine: Engine
    plain: Plain
    unembed_VX: Tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a model is made of.

    Attributes:
        load: dtype → network; called again for the model in another precision.
        size: shape, for memory estimates and the longest sequence.
        vocab_size: rows of the output matrix; those from ``roles.valid_vocab`` on are padding.
        digest: of the files and settings that determine the numbers; called once, when it is asked for.
    """

    name: str
    load: Callable[[torch.dtype], Loaded]
    size: Sized
    vocab_size: int
    roles: TokenRoles
    tokenizer: Tokenizer
    digest: Callable[[], str]
    attention: Attention
    anchor: Anchor


class NetworkModel:
    """The Model protocol, and the abilities of a network behind the engine."""

    precision: Literal["float32"] = "float32"

    def __init__(self, recipe: Recipe, loaded: Loaded, block_size: int) -> None:
        limit = recipe.size.max_positions
        if not 1 <= block_size <= limit:
            raise UserInputError(f"block_size={block_size} must lie between 1 and {limit}")
        self.recipe, self.loaded, self.block_size = recipe, loaded, block_size
        self.name, self.tokenizer = recipe.name, recipe.tokenizer
        self.attention, self.anchor = recipe.attention, recipe.anchor
        self.vocab_size, self.mask_id = recipe.vocab_size, recipe.roles.mask_id
        self.eos_ids, self.special_ids = recipe.roles.eos_ids, recipe.roles.special_ids
        self.max_positions = limit

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.loaded.unembed_VX.device

    @cached_property
    def digest(self) -> str:
        """A digest of files, dtype, block size where it counts, and what can be revealed."""
        roles = self.recipe.roles
        dtype = dtype_name(self.loaded.unembed_VX.dtype)
        parts = (self.recipe.digest(), dtype, roles.mask_id, roles.valid_vocab)
        blocks = () if self.attention == "full" else (self.block_size,)
        return hashlib.blake2b(repr((*parts, *blocks)).encode(), digest_size=16).hexdigest()

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V]: one plain forward of the whole sequence."""
        if len(tokens) > self.max_positions:
            raise UserInputError(f"{len(tokens)} tokens exceed the model's {self.max_positions} positions")
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        ids_1L = torch.tensor([[int(token) for token in tokens]], device=self.device)
        with torch.no_grad():
            hidden_LX = self.loaded.plain(ids_1L, self._visible(len(tokens), grid_offset))[0]
            logits_LV = hidden_LX.float() @ self.loaded.unembed_VX.float().T
            logits_LV[:, [self.mask_id, *range(self.recipe.roles.valid_vocab, self.vocab_size)]] = -torch.inf
            return np.asarray(torch.log_softmax(logits_LV, dim=1).double().cpu().numpy())

    def _visible(self, length: int, grid_offset: int) -> Tensor | None:
        """Return which columns each row sees [L, L]: its own block and all before, or None for all."""
        if self.attention == "full":
            return None
        position_L = torch.arange(length, device=self.device)
        block_L = torch.div(position_L - grid_offset, self.block_size, rounding_mode="floor")
        return block_L[:, None] >= block_L[None, :]

    def with_block_size(self, block_size: int) -> NetworkModel:
        """Return this model with another block size; weights, cache and graphs are shared."""
        return type(self)(self.recipe, self.loaded, block_size)

    def with_dtype(self, name: str) -> NetworkModel:
        """Return this model read again in another precision."""
        loaded = self.recipe.load(pick_dtype(name, self.loaded.unembed_VX.dtype))
        return type(self)(self.recipe, loaded, self.block_size)

    def open_session(self) -> Session:
        """Return a new session without slots."""
        loaded, roles = self.loaded, self.recipe.roles
        rows = (loaded.unembed_VX, (roles.mask_id,), roles.valid_vocab)
        if self.attention == "full":
            return CanvasSession(loaded.engine, *rows)
        return PagedSession(loaded.engine, self.block_size, *rows)

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return how many sequences of this length fit in the memory that is free now, at least 1."""
        free = free_bytes(self.device)
        return suggested_sequences(self.recipe.size, self.loaded.unembed_VX.dtype, free, tokens_per_sequence)

    def release_memory(self) -> None:
        """Give memory that no session uses back to the device."""
        self.loaded.engine.release()
