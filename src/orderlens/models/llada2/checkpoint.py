"""From a published checkpoint to the network's tensors, straight to the device.

Experts are stacked as they load: the stack is allocated once on the target device and each expert is copied
into its place, so no second copy ever exists. Several layers load at a time. On the CPU (and for
``experts="host"`` on a small GPU) expert matrices stay memory-mapped views of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.files.checkpoint import Checkpoint
from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.weights import (
    DenseWeights,
    Experts,
    LayerWeights,
    MappedExperts,
    SparseWeights,
    Weights,
)

ExpertPlace: TypeAlias = Literal["device", "host"]
READERS = 4
"""Layers loaded side by side: while one waits for pages of the file, another copies."""

EMBEDDING = "model.word_embeddings.weight"


def check_tensors(checkpoint: Checkpoint, config: LLaDA2Config) -> None:
    """Refuse missing, unknown, misshaped and strangely typed tensors."""
    expected = expected_shapes(config)
    biases = set() if config.expert_bias else {name for name in expected if name.endswith("expert_bias")}
    checkpoint.check(expected, "a LLaDA-2 model", biases)


def expected_shapes(config: LLaDA2Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every published tensor."""
    V, C, D = config.vocab_size, config.hidden_size, config.head_width
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (V, C),
        "model.norm.weight": (C,),
        "lm_head.weight": (V, C),
    }
    for index in range(config.n_layers):
        layer = f"model.layers.{index}."
        shapes |= {
            layer + "input_layernorm.weight": (C,),
            layer + "post_attention_layernorm.weight": (C,),
            layer + "attention.query_key_value.weight": (config.qkv_width, C),
            layer + "attention.dense.weight": (C, config.n_heads * D),
        }
        if config.use_qk_norm:
            shapes |= {f"{layer}attention.{kind}_layernorm.weight": (D,) for kind in ("query", "key")}
        dense = index < config.n_dense_layers
        shapes |= (
            _mlp_shapes(layer + "mlp.", C, config.dense_width) if dense else _sparse_shapes(layer, config)
        )
    return shapes


def _sparse_shapes(layer: str, config: LLaDA2Config) -> dict[str, tuple[int, ...]]:
    E, C, F = config.n_experts, config.hidden_size, config.expert_width
    shapes: dict[str, tuple[int, ...]] = {
        layer + "mlp.gate.weight": (E, C),
        layer + "mlp.gate.expert_bias": (E,),
    }
    for expert in range(E):
        shapes |= _mlp_shapes(f"{layer}mlp.experts.{expert}.", C, F)
    if config.n_shared:
        shapes |= _mlp_shapes(layer + "mlp.shared_experts.", C, config.n_shared * F)
    return shapes


def _mlp_shapes(prefix: str, C: int, F: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gate_proj.weight": (F, C),
        prefix + "up_proj.weight": (F, C),
        prefix + "down_proj.weight": (C, F),
    }


def load_weights(
    checkpoint: Checkpoint, config: LLaDA2Config, device: torch.device, dtype: torch.dtype, place: ExpertPlace
) -> Weights:
    """Return the tensors on ``device`` in ``dtype``, experts stacked there or left memory-mapped."""
    check_tensors(checkpoint, config)
    loader = _Loader(checkpoint, config, device, dtype, place)
    try:
        return loader.weights()
    except torch.OutOfMemoryError:
        raise ModelLoadError(not_enough_memory(config, device, dtype)) from None


def not_enough_memory(config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> str:
    """Return the one line for a model that does not fit."""
    needed = config.n_parameters * dtype.itemsize / 1e9
    return (
        f"the weights need {needed:.1f} GB on {device}, more than is free there; "
        "use a larger GPU, experts='host' (slow: experts stay in host memory), or --device cpu "
        "(docs/scale.md, One GPU is too small)"
    )


class _Loader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        config: LLaDA2Config,
        device: torch.device,
        dtype: torch.dtype,
        place: ExpertPlace,
    ) -> None:
        self.checkpoint, self.config = checkpoint, config
        self.device, self.dtype, self.place = device, dtype, place

    def weights(self) -> Weights:
        with ThreadPoolExecutor(READERS) as threads:
            layers = tuple(threads.map(self.layer, range(self.config.n_layers)))
        return Weights(
            self.read(EMBEDDING), layers, self.read("model.norm.weight"), self.read("lm_head.weight")
        )

    def read(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(self.device, self.dtype)

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        names = [f"{prefix}attention.{kind}_layernorm.weight" for kind in ("query", "key")]
        norms = [self.read(name) for name in names] if self.config.use_qk_norm else [None, None]
        dense = index < self.config.n_dense_layers
        return LayerWeights(
            self.read(prefix + "input_layernorm.weight"),
            self.read(prefix + "attention.query_key_value.weight"),
            norms[0],
            norms[1],
            self.read(prefix + "attention.dense.weight"),
            self.read(prefix + "post_attention_layernorm.weight"),
            self.dense(prefix + "mlp.") if dense else self.sparse(prefix + "mlp."),
        )

    def dense(self, prefix: str) -> DenseWeights:
        F, C = self.config.dense_width, self.config.hidden_size
        gate_up_FC = torch.empty(2 * F, C, device=self.device, dtype=self.dtype)
        gate_up_FC[:F].copy_(self.checkpoint.tensor(prefix + "gate_proj.weight"))
        gate_up_FC[F:].copy_(self.checkpoint.tensor(prefix + "up_proj.weight"))
        return DenseWeights(gate_up_FC, self.read(prefix + "down_proj.weight"))

    def sparse(self, prefix: str) -> SparseWeights:
        router_EC = self.checkpoint.tensor(prefix + "gate.weight").to(
            self.device
        )  # keeps its stored precision
        bias_E = torch.zeros(self.config.n_experts, device=self.device)
        if prefix + "gate.expert_bias" in self.checkpoint:
            bias_E.copy_(self.checkpoint.tensor(prefix + "gate.expert_bias"))
        experts = self.stacked(prefix) if self.place == "device" else self.mapped(prefix)
        return SparseWeights(router_EC, bias_E, experts)

    def stacked(self, prefix: str) -> Experts:
        E = self.config.n_experts + self.config.n_shared
        F, C = self.config.expert_width, self.config.hidden_size
        gate_up_EFC = torch.empty(E, 2 * F, C, device=self.device, dtype=self.dtype)
        down_ECF = torch.empty(E, C, F, device=self.device, dtype=self.dtype)
        for expert, (gate_FC, up_FC, down_CF) in enumerate(self.triples(prefix)):
            gate_up_EFC[expert, :F].copy_(gate_FC)
            gate_up_EFC[expert, F:].copy_(up_FC)
            down_ECF[expert].copy_(down_CF)
        return StackedExperts(gate_up_EFC, down_ECF)

    def mapped(self, prefix: str) -> Experts:
        return MappedExperts(tuple(self.triples(prefix)))

    def triples(self, prefix: str) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Yield gate, up and down of every routed expert, then of every shared one."""
        read = self.checkpoint.tensor
        for expert in range(self.config.n_experts):
            name = f"{prefix}experts.{expert}."
            yield (
                read(name + "gate_proj.weight"),
                read(name + "up_proj.weight"),
                read(name + "down_proj.weight"),
            )
        if self.config.n_shared:
            name, F = prefix + "shared_experts.", self.config.expert_width
            gates = torch.split(read(name + "gate_proj.weight"), F)
            ups = torch.split(read(name + "up_proj.weight"), F)
            downs = torch.split(read(name + "down_proj.weight"), F, dim=1)
            yield from zip(gates, ups, downs, strict=True)
