"""LLaDA-2.x as a Model: everything the decoder needs, over our own network.

``load_llada2`` reads a checkpoint folder; ``LLaDA2Model`` can also be built from any weights, which is what
benchmarks with random weights do. Knows nothing of orders, targets or the hub.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.chat import ChatTemplate, find_template
from orderlens.models.configfile import read_json
from orderlens.models.llada2 import reference
from orderlens.models.llada2.checkpoint import (
    EMBEDDING,
    ExpertPlace,
    check_tensors,
    load_weights,
    not_enough_memory,
)
from orderlens.models.llada2.config import (
    PUBLISHED_BLOCK_SIZE,
    LLaDA2Config,
    parse_config,
)
from orderlens.models.llada2.network import Network
from orderlens.models.llada2.roles import find_roles
from orderlens.models.llada2.weights import Weights, published_tensors
from orderlens.models.options import LoadOptions
from orderlens.models.protocol import FloatArray, Tokenizer
from orderlens.models.roles import IdsOnly, TokenRoles
from orderlens.models.tokenizer import FastTokenizer, has_tokenizer
from orderlens.models.torch.checkpoint import Checkpoint, weights_digest
from orderlens.models.torch.device import pick_device, pick_dtype, with_index
from orderlens.models.torch.engine import Engine
from orderlens.models.torch.fit import suggested_sequences
from orderlens.models.torch.memory import free_bytes
from orderlens.models.torch.session import PagedSession


class LLaDA2Model:
    """A loaded LLaDA-2.x model."""

    attention: Literal["block-causal"] = "block-causal"
    anchor: Literal["zero"] = "zero"
    precision: Literal["float32"] = "float32"

    def __init__(
        self,
        weights: Weights,
        config: LLaDA2Config,
        roles: TokenRoles,
        *,
        name: str,
        tokenizer: Tokenizer | None = None,
        chat: ChatTemplate | None = None,
        digest: Callable[[], str] = lambda: "unknown",
        block_size: int = PUBLISHED_BLOCK_SIZE,
        engine: Engine | None = None,
    ) -> None:
        if not 1 <= block_size <= config.max_positions:
            raise UserInputError(f"block_size={block_size} must lie between 1 and {config.max_positions}")
        self.weights, self.config, self.roles = weights, config, roles
        self.name, self.tokenizer, self.chat = name, tokenizer or IdsOnly(), chat
        self.block_size, self._digest = block_size, digest
        self.engine = engine or Engine(Network(weights, config), config)

    @property
    def device(self) -> torch.device:
        """Where the weights are (memory-mapped experts may lie elsewhere)."""
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
        parts = (
            self._digest(),
            str(self.weights.dtype),
            self.block_size,
            self.roles.mask_id,
            self.roles.valid_vocab,
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V] from the readable reference, in float32 arithmetic."""
        if len(tokens) > self.max_positions:
            raise UserInputError(f"{len(tokens)} tokens exceed the model's {self.max_positions} positions")
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        ids_L = torch.tensor([int(token) for token in tokens], dtype=torch.long, device=self.weights.device)
        visible = reference.block_causal(len(tokens), self.block_size, grid_offset, self.weights.device)
        with torch.no_grad():
            log_p_LV = reference.log_probs(
                self._published, self.config, ids_L, visible, (self.mask_id,), self.roles.valid_vocab
            )
        return np.asarray(log_p_LV.cpu().numpy())

    @cached_property
    def _published(self) -> dict[str, torch.Tensor]:
        return published_tensors(self.weights, self.config)

    def with_block_size(self, block_size: int) -> LLaDA2Model:
        """Return this model with another block size; weights, cache and graphs are shared."""
        return LLaDA2Model(
            self.weights,
            self.config,
            self.roles,
            name=self.name,
            tokenizer=self.tokenizer,
            chat=self.chat,
            digest=self._digest,
            block_size=block_size,
            engine=self.engine,
        )

    def open_session(self) -> PagedSession:
        """Return a new session without slots."""
        return PagedSession(
            self.engine, self.block_size, self.weights.unembed_VC, (self.mask_id,), self.roles.valid_vocab
        )

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation up to the assistant's turn."""
        if self.chat is None:
            raise UserInputError(f"model '{self.name}' has no chat template; give plain prompts")
        return self.tokenizer.encode(self.chat.render(messages))

    def suggested_batch(self, tokens_per_sequence: int) -> int:
        """Return how many sequences of this length fit in the memory that is free now, at least 1."""
        pool, dtype = self.engine.pool, self.weights.dtype
        free = free_bytes(self.weights.device)
        if free is not None:
            free += pool.n_free * pool.nbytes // pool.n_pages
        return suggested_sequences(self.config, dtype, free, tokens_per_sequence)

    def release_memory(self) -> None:
        """Give cache memory that no session uses back to the device."""
        self.engine.release()


def load_folder(folder: Path, name: str, options: LoadOptions) -> LLaDA2Model:
    """Load a checkpoint for ``load_model``."""
    return load_llada2(folder, name=name, device=options.device or "auto", dtype=options.dtype or "auto")


def load_llada2(
    folder: Path | str,
    *,
    name: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    block_size: int = PUBLISHED_BLOCK_SIZE,
    experts: Literal["auto", "device", "host"] = "auto",
    mask_id: int | None = None,
    eos_ids: Sequence[int] | None = None,
) -> LLaDA2Model:
    """Load a checkpoint folder in the published layout.

    Args:
        folder: holds config.json, safetensors and (for text) tokenizer.json.
        name: the spec that loads this model again; the folder by default.
        device: ``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N``.
        dtype: ``auto`` (as stored), ``bfloat16``, ``float16`` or ``float32``.
        block_size: tokens per block.
        experts: where expert matrices lie: stacked on the device, or memory-mapped on the host.
        mask_id: overrides config.json and tokenizer.
        eos_ids: overrides config.json and tokenizer.
    """
    folder = Path(folder)
    values = read_json(folder / "config.json")
    config = parse_config(values)
    tokenizer = FastTokenizer.from_folder(folder) if has_tokenizer(folder) else None
    roles = find_roles(values, config, tokenizer, mask_id, eos_ids)
    checkpoint = Checkpoint(folder)
    check_tensors(checkpoint, config)
    place = with_index(pick_device(device, prefer=("cuda", "mps")))
    kind = pick_dtype(dtype, checkpoint.dtype_of(EMBEDDING))
    weights = load_weights(checkpoint, config, place, kind, _expert_place(experts, config, place, kind))
    return LLaDA2Model(
        weights,
        config,
        roles,
        name=name or str(folder),
        tokenizer=tokenizer,
        chat=find_template(tokenizer) if tokenizer else None,
        digest=lambda: f"{weights_digest(checkpoint.shards)}:{config}",
        block_size=block_size,
    )


def _expert_place(wanted: str, config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> ExpertPlace:
    """Return where experts go; refuse early, in one line, what cannot fit."""
    if wanted == "host" or (wanted == "auto" and device.type == "cpu"):
        return "host"
    needed = config.n_parameters * dtype.itemsize
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        raise ModelLoadError(not_enough_memory(config, device, dtype))
    return "device"
