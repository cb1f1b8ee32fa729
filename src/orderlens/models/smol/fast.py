"""``smol`` on a GPU: the same weights behind the shared engine (paged cache, CUDA graphs, fused head).

The merged network's matrices are already laid out as the Llama-like body wants them, so nothing is copied.
Plain forwards for inspection stay with the merged network. Knows nothing of files or adapters.
"""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from orderlens.kernels.gpu import runs_kernels
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.network import DecoderNetwork
from orderlens.models.decoder.weights import DecoderLayer, DecoderWeights, DenseFeedForward
from orderlens.models.engine.device import dtype_name
from orderlens.models.engine.engine import ForwardEngine
from orderlens.models.engine.model import CastableModel, Loaded
from orderlens.models.small.config import TransformerConfig
from orderlens.models.small.network import Transformer, attention

HALF = (torch.bfloat16, torch.float16)


def runs_fast(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the engine's kernels apply: 16 bits on CUDA, with Triton."""
    return dtype in HALF and runs_kernels(device)


def dense_config(config: TransformerConfig) -> DecoderConfig:
    """Return the network's shape in the words of the Llama-like body."""
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
    """Return the network's own tensors under the body's names."""
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


def load_fast(network: Transformer) -> Loaded:
    """Return the network behind an engine; it stays on its device and in its dtype."""
    config, weights = dense_config(network.config), dense_weights(network)
    return Loaded(
        ForwardEngine(DecoderNetwork(weights, config), config), partial(_plain, network), weights.unembed_VC
    )


def _plain(network: Transformer, ids_1L: Tensor, seen_LL: Tensor) -> Tensor:
    positions_1L = torch.arange(ids_1L.shape[1], device=ids_1L.device)[None]
    hidden: Tensor = network(ids_1L, positions_1L, lambda _, q, k, v: attention(q, k, v, seen_LL))
    return hidden


class FastSmol(CastableModel):
    """``smol`` behind the engine."""

    @cached_property
    def digest(self) -> str:
        """What the slower path says too: the same weights, so a run may go on with either."""
        digest = self.facts.digest()
        return digest if self.dtype == torch.float32 else f"{digest}-{dtype_name(self.dtype)}"
