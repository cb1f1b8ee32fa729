"""The small transformer as a model: folders that ``orderlens train`` writes, ``tiny``, the network of smol.

On a GPU a block-causal network in 16 bits runs on the Llama-like network with the shared engine (paged cache,
CUDA graphs, fused head). Its matrices already have the right layout, so nothing is copied. Plain forwards for
inspection, other devices, float32 and other kinds of attention use the small network itself.
"""

from __future__ import annotations

import copy
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from orderlens.kernels.gpu import runs_kernels
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.network import DecoderNetwork
from orderlens.models.decoder.weights import DecoderLayer, DecoderWeights, DenseFeedForward
from orderlens.models.engine.device import dtype_name, pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.model import CastableModel, LoadedNetwork, ModelFacts
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import LoadOptions, Tokenizer
from orderlens.models.small.folder import DTYPES, read_folder
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, TransformerConfig, attention

HALF = (torch.bfloat16, torch.float16)
UNUSED_TOKENS = ("<|pad|>", "<|reserved|>")
"""Tokens of our tokenizers that occur in no training window (ids 2 and 3); they do not count as content."""


def load_folder(folder: Path, name: str, options: LoadOptions) -> TransformerModel | FastModel:
    """Load a folder as a model that can be decoded; the default dtype is float32 on every device."""
    loaded = read_folder(folder)
    ids = (loaded.tokenizer.id_of(token) for token in UNUSED_TOKENS)
    special_ids = frozenset(item for item in ids if item is not None)
    config = loaded.config
    roles = TokenRoles(config.mask_id, frozenset({config.eos_id}), special_ids, config.vocab_size)
    return as_model(loaded.network, options, name, roles, loaded.tokenizer, loaded.digest)


def as_model(
    network: Transformer,
    options: LoadOptions,
    name: str,
    roles: TokenRoles,
    tokenizer: Tokenizer,
    digest: str,
    chat: ChatTemplate | None = None,
) -> TransformerModel | FastModel:
    """Return a float32 network on the CPU as a model with these options, on the engine where it applies."""
    dtype, device = pick_dtype(options.dtype, torch.float32, DTYPES), with_index(pick_device(options.device))
    if runs_fast(device, dtype) and network.config.attention == "block-causal":
        return fast_model(network, device, dtype, name, roles, tokenizer, digest, chat)
    return TransformerModel(
        network.to(device=device, dtype=dtype),
        tokenizer,
        name=name,
        digest=digest if dtype == torch.float32 else f"{digest}-{dtype_name(dtype)}",
        special_ids=roles.special_ids,
        eos_ids=roles.eos_ids,
        chat=chat,
    )


def runs_fast(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the engine's kernels apply: a 16-bit dtype on CUDA, with Triton."""
    return dtype in HALF and runs_kernels(device)


def fast_model(
    network: Transformer,
    device: torch.device,
    dtype: torch.dtype,
    name: str,
    roles: TokenRoles,
    tokenizer: Tokenizer,
    digest: str,
    chat: ChatTemplate | None = None,
) -> FastModel:
    """Return a block-causal network on the shared engine; its float32 copy is kept for other precisions."""

    def load(kind: torch.dtype) -> LoadedNetwork:
        return load_fast(copy.deepcopy(network).to(device=device, dtype=kind))

    facts = ModelFacts(
        name=name,
        size=dense_config(network.config),
        vocab_size=network.config.vocab_size,
        roles=roles,
        tokenizer=tokenizer,
        digest=lambda: digest,
        attention="block-causal",
        anchor="zero",
        chat=chat,
    )
    return FastModel(facts, load(dtype), network.config.block_size, load)


class FastModel(CastableModel):
    """A small transformer on the shared engine."""

    @cached_property
    def digest(self) -> str:
        """The digest of the plain path: the weights are the same, so a run may continue with either."""
        digest = self.facts.digest()
        return digest if self.dtype == torch.float32 else f"{digest}-{dtype_name(self.dtype)}"


def dense_config(config: TransformerConfig) -> DecoderConfig:
    """Return the network's shape as a ``DecoderConfig``."""
    return DecoderConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.width,
        n_layers=config.n_layers,
        ffn_width=config.ffn_width,
        n_heads=config.n_heads,
        n_kv_heads=config.kv_heads,
        head_width=config.head_width,
        rope_theta=config.rope_theta,
        norm_eps=config.norm_eps,
        max_positions=config.max_positions,
        attention="block-causal",
        qk_norm=config.qk_norm,
        tied=True,
        exact_rotary=True,
    )


def dense_weights(network: Transformer) -> DecoderWeights:
    """Return the network's tensors as ``DecoderWeights``, without a copy."""
    state = network.state_dict()

    def layer(index: int) -> DecoderLayer:
        own = {
            name.removeprefix(f"layers.{index}.").removesuffix(".weight"): tensor
            for name, tensor in state.items()
            if name.startswith(f"layers.{index}.")
        }
        return DecoderLayer(
            own["attention_norm"],
            own["attention.qkv"],
            None,
            own.get("attention.q_norm"),
            own.get("attention.k_norm"),
            own["attention.out"],
            own["ffn_norm"],
            DenseFeedForward(own["ffn.gate_up"], own["ffn.down"]),
        )

    layers = tuple(layer(index) for index in range(network.config.n_layers))
    embedding_VC = state["embedding.weight"]
    return DecoderWeights(embedding_VC, layers, state["final_norm.weight"], embedding_VC)


def load_fast(network: Transformer) -> LoadedNetwork:
    """Return the network on an engine, with the same device and dtype."""
    config, weights = dense_config(network.config), dense_weights(network)
    return LoadedNetwork(
        ForwardEngine(DecoderNetwork(weights, config), config), partial(_plain, network), weights.unembed_VC
    )


def _plain(network: Transformer, ids_1L: Tensor, seen_LL: Tensor) -> Tensor:
    positions_1L = torch.arange(ids_1L.shape[1], device=ids_1L.device)[None]
    hidden: Tensor = network(ids_1L, positions_1L, lambda _, q, k, v: attention(q, k, v, seen_LL))
    return hidden
