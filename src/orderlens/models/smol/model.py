"""``smol`` for ``load_model`` (base and adapter, order-agnostic) and ``smol-ar`` (the original).

On a GPU the same weights run on the Llama-like network with the shared engine (paged cache, CUDA graphs,
fused head). The merged network's matrices already have the right layout, so nothing is copied. Plain forwards
for inspection use the merged network.
"""

from __future__ import annotations

import copy
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.kernels.gpu import runs_kernels
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.network import DecoderNetwork
from orderlens.models.decoder.weights import DecoderLayer, DecoderWeights, DenseFeedForward
from orderlens.models.engine.device import dtype_name, pick_device, pick_dtype, with_index
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.model import CastableModel, LoadedNetwork, ModelFacts, NetworkModel
from orderlens.models.evaluators.small import SmallEvaluator
from orderlens.models.files.chat import ChatTemplate
from orderlens.models.files.roles import TokenRoles
from orderlens.models.protocol import LoadOptions, Tokenizer
from orderlens.models.small.folder import DTYPES, LoadedModel
from orderlens.models.small.model import TransformerModel
from orderlens.models.small.network import Transformer, TransformerConfig, attention
from orderlens.models.smol.adapter import SETTINGS, Adapter, check_adapter, load_adapter, merge
from orderlens.models.smol.base import SHA256, check_base, require_base
from orderlens.models.smol.llama import CONTROL, GgufFile, read_network, read_shape, read_tokenizer

END_OF_TEXT, TURN_END = 0, 2
"""Ids of the end of a document and of the end of a turn: both end a text."""


def adapter_folder() -> Path:
    """Return the folder of the adapter inside the installed package."""
    return Path(str(files("orderlens"))) / "models" / "data" / "smol"


def load_smol(argument: str, options: LoadOptions) -> TransformerModel | NetworkModel:
    """Load ``smol``: the cached base file with the packaged adapter merged in."""
    if argument:
        raise UserInputError(f"model 'smol:{argument}': smol takes no options")
    path = require_base()
    check_base(path)
    if not (adapter_folder() / SETTINGS).is_file():
        raise ModelLoadError(
            "this installation has no adapter for smol; train one with recipes/smol.py or install a release"
        )
    return build(path, adapter_folder(), SHA256, options)


def build(
    base: Path, adapter: Path, base_digest: str, options: LoadOptions
) -> TransformerModel | NetworkModel:
    """Return the order-agnostic model of a base file and an adapter folder."""
    dtype = pick_dtype(options.dtype, torch.float32, DTYPES)
    device = with_index(pick_device(options.device))
    file, found = GgufFile(base), load_adapter(adapter)
    network = merged(file, found, adapter)
    digest, mask_id = f"{base_digest[:16]}-{found.digest}", found.settings.mask_id
    roles = TokenRoles(
        mask_id,
        frozenset({END_OF_TEXT, TURN_END}),
        control_ids(file) - {END_OF_TEXT, TURN_END, mask_id},
        network.config.vocab_size,
    )
    tokenizer = read_tokenizer(file.metadata)
    chat = ChatTemplate(file.metadata["tokenizer.chat_template"], {})
    if runs_fast(device, dtype):
        return fast_model(network, device, dtype, roles, tokenizer, chat, digest)
    return TransformerModel(
        network.to(device=device, dtype=dtype),
        tokenizer,
        name="smol",
        digest=digest if dtype == torch.float32 else f"{digest}-{dtype_name(dtype)}",
        special_ids=roles.special_ids,
        eos_ids=roles.eos_ids,
        chat=chat,
    )


def merged(file: GgufFile, adapter: Adapter, where: Path) -> Transformer:
    """Return the base's network with the adapter merged in, in float32 on the CPU."""
    settings = adapter.settings
    config = read_shape(
        file.metadata,
        "block-causal",
        block_size=settings.block_size,
        mask_id=settings.mask_id,
        eos_id=TURN_END,
    )
    network = read_network(file, config)
    check_adapter(adapter, network, where)
    merge(network, adapter.state, settings)
    return network


def fast_model(
    network: Transformer,
    device: torch.device,
    dtype: torch.dtype,
    roles: TokenRoles,
    tokenizer: Tokenizer,
    chat: ChatTemplate,
    digest: str,
) -> FastSmol:
    """Return the merged network on the shared engine; the float32 copy is kept for other precisions."""

    def load(kind: torch.dtype) -> LoadedNetwork:
        return load_fast(copy.deepcopy(network).to(device=device, dtype=kind))

    facts = ModelFacts(
        name="smol",
        size=dense_config(network.config),
        vocab_size=network.config.vocab_size,
        roles=roles,
        tokenizer=tokenizer,
        digest=lambda: digest,
        attention="block-causal",
        anchor="zero",
        chat=chat,
    )
    return FastSmol(facts, load(dtype), network.config.block_size, load)


def control_ids(file: GgufFile) -> frozenset[int]:
    """Return the ids of control tokens, which have no text."""
    kinds = file.metadata["tokenizer.ggml.token_type"]
    return frozenset(index for index, kind in enumerate(kinds) if kind == CONTROL)


def read_original(base: Path, mask_id: int, digest: str) -> LoadedModel:
    """Return the base as published: causal, each document preceded by the end-of-text token."""
    file = GgufFile(base)
    config = read_shape(file.metadata, "causal", mask_id=mask_id, eos_id=END_OF_TEXT)
    return LoadedModel(read_network(file, config), config, read_tokenizer(file.metadata), digest)


def load_evaluator(argument: str = "", device: str | None = None) -> SmallEvaluator:
    """Load the autoregressive original as an external evaluator."""
    if argument:
        raise UserInputError(f"evaluator 'smol-ar:{argument}': smol-ar takes no options")
    path = require_base()
    check_base(path)
    return SmallEvaluator(read_original(path, 16, SHA256), "smol-ar", device)


HALF = (torch.bfloat16, torch.float16)


def runs_fast(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the engine's kernels apply: a 16-bit dtype on CUDA, with Triton."""
    return dtype in HALF and runs_kernels(device)


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
        tied=True,
        exact_rotary=True,
    )


def dense_weights(network: Transformer) -> DecoderWeights:
    """Return the network's tensors as ``DecoderWeights``, without a copy."""
    state = network.state_dict()

    def layer(index: int) -> DecoderLayer:
        own = {name: state[f"layers.{index}.{name}.weight"] for name in _PARTS}
        return DecoderLayer(
            own["attention_norm"],
            own["attention.qkv"],
            None,
            None,
            None,
            own["attention.out"],
            own["ffn_norm"],
            DenseFeedForward(own["ffn.gate_up"], own["ffn.down"]),
        )

    layers = tuple(layer(index) for index in range(network.config.n_layers))
    embedding_VC = state["embedding.weight"]
    return DecoderWeights(embedding_VC, layers, state["final_norm.weight"], embedding_VC)


_PARTS = ("attention_norm", "attention.qkv", "attention.out", "ffn_norm", "ffn.gate_up", "ffn.down")


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


class FastSmol(CastableModel):
    """``smol`` on the shared engine."""

    @cached_property
    def digest(self) -> str:
        """The digest of the plain path: the weights are the same, so a run may continue with either."""
        digest = self.facts.digest()
        return digest if self.dtype == torch.float32 else f"{digest}-{dtype_name(self.dtype)}"
