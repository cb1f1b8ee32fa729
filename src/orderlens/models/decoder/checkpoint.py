"""From published tensors to the network's: names by layout, every tensor checked, straight to the device.

Fused matrices are allocated once on the target device and filled part by part, so no second copy exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError
from orderlens.models.decoder.config import DenseConfig
from orderlens.models.decoder.weights import LayerWeights, Weights
from orderlens.models.files.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Layout:
    """What a family calls its tensors.

    Attributes:
        what: the family, for messages.
        layer: prefix of a layer's tensors, with ``{}`` for its number.
        embedding, final_norm, unembed: whole names.
        parts: our word for a layer's tensor → its name behind the prefix, without ``.weight``.
    """

    what: str
    layer: str
    embedding: str
    final_norm: str
    unembed: str
    parts: Mapping[str, str] = field(default_factory=dict)

    def name(self, index: int, part: str, kind: str = "weight") -> str:
        """Return the published name of one tensor of a layer."""
        return f"{self.layer.format(index)}{self.parts[part]}.{kind}"


QWEN_PARTS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def qwen_layout(what: str) -> Layout:
    """Return the names that Dream, SDAR and Fast-dLLM v2 share with Qwen."""
    return Layout(
        what,
        "model.layers.{}.",
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        QWEN_PARTS,
    )


def expected_shapes(layout: Layout, config: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every published tensor."""
    V, C = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        layout.embedding: (V, C),
        layout.final_norm: (C,),
        layout.unembed: (V, C),
    }
    for index in range(config.n_layers):
        shapes |= _layer_shapes(layout, config, index)
    return shapes


def _layer_shapes(layout: Layout, config: DenseConfig, index: int) -> dict[str, tuple[int, ...]]:
    C, D, F = config.hidden_size, config.head_width, config.ffn_width
    Q, K = config.n_heads * D, config.n_kv_heads * D
    parts: dict[str, tuple[int, ...]] = {
        "input_norm": (C,),
        "post_norm": (C,),
        "q": (Q, C),
        "k": (K, C),
        "v": (K, C),
        "out": (C, Q),
        "gate": (F, C),
        "up": (F, C),
        "down": (C, F),
    }
    if config.qk_norm:
        parts |= {"q_norm": (D,), "k_norm": (D,)}
    shapes = {layout.name(index, part): shape for part, shape in parts.items()}
    if config.qkv_bias:
        shapes |= {layout.name(index, part, "bias"): (size,) for part, size in (("q", Q), ("k", K), ("v", K))}
    return shapes


def check_tensors(layout: Layout, checkpoint: Checkpoint, config: DenseConfig) -> None:
    """Refuse missing, unknown, misshaped and strangely typed tensors; a tied output matrix may be missing."""
    optional = {layout.unembed} if config.tied else set[str]()
    checkpoint.check(expected_shapes(layout, config), layout.what, optional)


def load_weights(
    layout: Layout, checkpoint: Checkpoint, config: DenseConfig, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Return the tensors on ``device`` in ``dtype``."""
    check_tensors(layout, checkpoint, config)
    _refuse_too_large(config, device, dtype)
    try:
        return _Loader(layout, checkpoint, config, device, dtype).weights()
    except torch.OutOfMemoryError:
        raise ModelLoadError(_too_large(config, device, dtype)) from None


def _refuse_too_large(config: DenseConfig, device: torch.device, dtype: torch.dtype) -> None:
    needed = config.n_parameters * dtype.itemsize
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        raise ModelLoadError(_too_large(config, device, dtype))


def _too_large(config: DenseConfig, device: torch.device, dtype: torch.dtype) -> str:
    needed = config.n_parameters * dtype.itemsize / 1e9
    return f"the weights need {needed:.1f} GB on {device}, more than is free there; use another device"


class _Loader:
    def __init__(
        self,
        layout: Layout,
        checkpoint: Checkpoint,
        config: DenseConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.layout, self.checkpoint, self.config = layout, checkpoint, config
        self.device, self.dtype = device, dtype

    def weights(self) -> Weights:
        layout = self.layout
        embedding_VC = self.read(layout.embedding)
        layers = tuple(self.layer(index) for index in range(self.config.n_layers))
        unembed_VC = embedding_VC if self.config.tied else self.read(layout.unembed)
        return Weights(embedding_VC, layers, self.read(layout.final_norm), unembed_VC)

    def read(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(self.device, self.dtype)

    def joined(self, names: list[str]) -> Tensor:
        """Return several tensors one behind the other."""
        parts = [self.checkpoint.tensor(name) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        whole = torch.empty(shape, device=self.device, dtype=self.dtype)
        first = 0
        for part in parts:
            whole[first : first + len(part)].copy_(part)
            first += len(part)
        return whole

    def layer(self, index: int) -> LayerWeights:
        def name(part: str, kind: str = "weight") -> str:
            return self.layout.name(index, part, kind)

        qk_norm = self.config.qk_norm
        biases = [name(part, "bias") for part in "qkv"] if self.config.qkv_bias else []
        return LayerWeights(
            self.read(name("input_norm")),
            self.joined([name(part) for part in "qkv"]),
            self.joined(biases) if biases else None,
            self.read(name("q_norm")) if qk_norm else None,
            self.read(name("k_norm")) if qk_norm else None,
            self.read(name("out")),
            self.read(name("post_norm")),
            self.joined([name("gate"), name("up")]),
            self.read(name("down")),
        )
