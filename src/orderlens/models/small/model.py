"""The Model protocol for the small transformer: plain forwards for inspection, cached sessions for decoding.

Block-causal networks cache keys and values of finished blocks, so a state costs one window. Full-attention
networks (the same layers without the block mask) cache nothing and see whole canvases.

Shape letters: B batch, T tokens, L sequence length, V vocabulary, C width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.models.engine.device import pick_dtype
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.checkpoint import tensors_digest
from orderlens.models.protocol import Anchor, FloatArray, Tokenizer, model_repr, token_ids
from orderlens.models.small.network import (
    Transformer,
    attention,
    block_causal_mask,
    revealed_mask,
    store_column_major,
)
from orderlens.models.small.session import TransformerSession


class TransformerModel:
    """The Model protocol around a :class:`Transformer`."""

    anchor: Anchor = "zero"
    precision: Literal["float32"] = "float32"

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        *,
        name: str,
        digest: str | None = None,
        special_ids: frozenset[int] = frozenset(),
        eos_ids: frozenset[int] = frozenset(),
        chat: ChatTemplate | None = None,
        block_size: int | None = None,
    ) -> None:
        if network.config.attention == "causal":
            raise UserInputError(
                f"{name} is autoregressive, so it has no reveal orders; give it to --evaluator instead"
            )
        self.network = network.eval().requires_grad_(False)
        if self.device.type == "cpu":
            store_column_major(network)
        self.tokenizer = tokenizer
        self.name, self.special_ids = name, special_ids
        self.digest = tensors_digest(network.state_dict(), network.config) if digest is None else digest
        self.block_size = network.config.block_size if block_size is None else block_size
        if not 1 <= self.block_size <= network.config.max_positions:
            raise UserInputError(
                f"block_size={block_size} must be between 1 and {network.config.max_positions}"
            )
        self.permuted = network.config.attention == "permutation"
        self.attention: Literal["block-causal", "full"] = (
            "block-causal" if network.config.attention == "block-causal" else "full"
        )
        self.vocab_size = network.config.vocab_size
        self.mask_id = network.config.mask_id
        self.eos_ids = eos_ids or frozenset({network.config.eos_id})
        self.chat = chat
        self.max_positions = network.config.max_positions

    def __repr__(self) -> str:
        return model_repr(self)

    @property
    def device(self) -> torch.device:
        return self.network.embedding.weight.device

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    def with_block_size(self, block_size: int) -> TransformerModel:
        return self._like(self.network, self.digest, block_size)

    def with_dtype(self, name: str) -> TransformerModel:
        network = copy.deepcopy(self.network).to(pick_dtype(name, torch.float32))
        return self._like(network, f"{self.digest}-{name}", self.block_size)

    def _like(self, network: Transformer, digest: str, block_size: int) -> TransformerModel:
        return TransformerModel(
            network,
            self.tokenizer,
            name=self.name,
            digest=digest,
            special_ids=self.special_ids,
            eos_ids=self.eos_ids,
            chat=self.chat,
            block_size=block_size,
        )

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        with torch.inference_mode():
            ids_BT = torch.as_tensor(token_ids(tokens, self.vocab_size), device=self.device)[None]
            positions_BT = torch.arange(ids_BT.shape[1], device=self.device)[None]
            mask = self._mask(ids_BT, grid_offset)
            hidden_BTC = self.network(ids_BT, positions_BT, lambda _, q, k, v: attention(q, k, v, mask))
            logits_TV = hidden_BTC[0].float() @ self.network.embedding.weight.T.float()
            logits_TV[:, self.mask_id] = -torch.inf
            return torch.log_softmax(logits_TV.cpu().double(), dim=1).numpy()  # float32 loses 1e-5

    def _mask(self, ids_BT: Tensor, grid_offset: int) -> Tensor | None:
        if self.permuted:
            return revealed_mask(ids_BT == self.mask_id)
        if self.attention == "full":
            return None
        return block_causal_mask(ids_BT.shape[1], self.block_size, grid_offset, self.device)

    def open_session(self) -> TransformerSession:
        return TransformerSession(self.network, self.block_size)
