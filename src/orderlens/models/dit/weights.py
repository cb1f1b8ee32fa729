"""The tensors of a DDiT checkpoint: published names and shapes, and their loading.

The bias of the output layer becomes a column of the output matrix, and every hidden state ends with a 1
(``models.engine.weights``). The noise embedding stays in float32, as published.

Shape letters: V vocabulary, C width, K width of the noise embedding, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orderlens.models.dit.config import FEED_FORWARD, FREQUENCIES, DitConfig
from orderlens.models.engine.weights import with_bias
from orderlens.models.files.checkpoint import Checkpoint

EMBEDDING = "vocab_embed.embedding"


@dataclass(frozen=True, slots=True)
class DitLinear:
    """A matrix [out, in] and its bias [out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product, in the matrix's dtype."""
        return torch.nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DitLayer:
    """One layer; ``modulation`` gives shift, scale and gate of both halves [6 C]."""

    norm1_C: Tensor
    qkv: DitLinear
    out: DitLinear
    norm2_C: Tensor
    up: DitLinear
    down: DitLinear
    modulation: DitLinear


@dataclass(frozen=True, slots=True)
class DitWeights:
    """All tensors, on one device; ``unembed_VX`` is the output matrix with the bias as a column."""

    embedding_VC: Tensor
    noise_in: DitLinear
    noise_out: DitLinear
    layers: tuple[DitLayer, ...]
    final_norm_C: Tensor
    final_modulation: DitLinear
    unembed_VX: Tensor


def expected_shapes(config: DitConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every published tensor, without the prefix."""
    V, C, K, F = config.vocab_size, config.width, config.cond_width, FEED_FORWARD * config.width
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (V, C), "output_layer.norm_final.weight": (C,)}
    shapes |= _linear("sigma_map.mlp.0", K, FREQUENCIES) | _linear("sigma_map.mlp.2", K, K)
    shapes |= _linear("output_layer.linear", V, C) | _linear("output_layer.adaLN_modulation", 2 * C, K)
    for index in range(config.n_layers):
        layer = f"blocks.{index}."
        shapes |= {
            layer + "norm1.weight": (C,),
            layer + "attn_qkv.weight": (3 * C, C),
            layer + "attn_out.weight": (C, C),
            layer + "norm2.weight": (C,),
            **_linear(layer + "mlp.0", F, C),
            **_linear(layer + "mlp.2", C, F),
            **_linear(layer + "adaLN_modulation", 6 * C, K),
        }
    return shapes


def check_tensors(checkpoint: Checkpoint, config: DitConfig) -> None:
    """Refuse tensors that are missing or unknown, or of a wrong shape or dtype; buffers may be missing."""
    buffers: dict[str, tuple[int, ...]] = {
        config.prefix + "rotary_emb.inv_freq": (config.head_width // 2,),
        "sampling_eps_min": (),
        "sampling_eps_max": (),
    }
    expected = {config.prefix + name: shape for name, shape in expected_shapes(config).items()}
    checkpoint.check(expected | buffers, "a DDiT of this shape", buffers)


def load_weights(
    checkpoint: Checkpoint, config: DitConfig, device: torch.device, dtype: torch.dtype
) -> DitWeights:
    """Return the tensors on ``device`` in ``dtype``."""

    def read(name: str, kind: torch.dtype = dtype) -> Tensor:
        return checkpoint.tensor(config.prefix + name).to(device, kind)

    def linear(name: str, kind: torch.dtype = dtype) -> DitLinear:
        return DitLinear(read(name + ".weight", kind), read(name + ".bias", kind))

    def layer(prefix: str) -> DitLayer:
        return DitLayer(
            norm1_C=read(prefix + "norm1.weight"),
            qkv=DitLinear(read(prefix + "attn_qkv.weight")),
            out=DitLinear(read(prefix + "attn_out.weight")),
            norm2_C=read(prefix + "norm2.weight"),
            up=linear(prefix + "mlp.0"),
            down=linear(prefix + "mlp.2"),
            modulation=linear(prefix + "adaLN_modulation"),
        )

    head = linear("output_layer.linear")
    assert head.bias is not None
    return DitWeights(
        embedding_VC=read(EMBEDDING),
        noise_in=linear("sigma_map.mlp.0", torch.float32),
        noise_out=linear("sigma_map.mlp.2", torch.float32),
        layers=tuple(layer(f"blocks.{index}.") for index in range(config.n_layers)),
        final_norm_C=read("output_layer.norm_final.weight"),
        final_modulation=linear("output_layer.adaLN_modulation"),
        unembed_VX=with_bias(head.weight, head.bias),
    )


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
