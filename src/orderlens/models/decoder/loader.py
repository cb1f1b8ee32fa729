"""From published tensors to the network's: names by layout, every tensor checked, straight to the device.

Fused matrices and stacks of experts are allocated once on the target device and filled part by part, so no
second copy exists. Several layers load at a time. On the CPU (and for ``experts="host"`` on a small GPU)
expert matrices stay memory-mapped views of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from orderlens.errors import ModelLoadError
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.weights import (
    DecoderLayer,
    DecoderWeights,
    DenseFeedForward,
    MappedExperts,
    SparseFeedForward,
)
from orderlens.models.files.checkpoint import Checkpoint

ExpertPlace: TypeAlias = Literal["device", "host"]
Shapes: TypeAlias = dict[str, tuple[int, ...]]
READERS = 4
"""Layers loaded side by side: while one waits for pages of the file, another copies."""
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
    "router": "mlp.gate",
}
EXPERT, SHARED, BIAS = "mlp.experts.{}.", "mlp.shared_experts.", "mlp.gate.expert_bias"
"""Prefix of an expert's and of the shared experts' matrices, and the router's bias, in every layout."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a family calls its tensors.

    Attributes:
        what: the family, for messages.
        layer: prefix of a layer's tensors, with ``{}`` for its number.
        embedding, final_norm, unembed: whole names.
        parts: our word for a layer's tensor → its name after the prefix, without ``.weight``; with ``qkv``
            the projection is stored fused.
    """

    what: str
    layer: str
    embedding: str
    final_norm: str
    unembed: str
    parts: Mapping[str, str]

    def name(self, index: int, part: str, kind: str = "weight") -> str:
        """Return the published name of one tensor of a layer."""
        return f"{self.layer.format(index)}{self.parts[part]}.{kind}"

    @property
    def projections(self) -> tuple[str, ...]:
        """The parts of the fused query, key and value projection, in order."""
        return ("qkv",) if "qkv" in self.parts else ("q", "k", "v")


def qwen_layout(what: str) -> Layout:
    """Return the names that Dream, SDAR and Fast-dLLM v2 share with Qwen."""
    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    return Layout(what, "model.layers.{}.", *names, QWEN_PARTS)


def expected_shapes(layout: Layout, config: DecoderConfig) -> Shapes:
    """Return the shape of every published tensor."""
    V, C = config.vocab_size, config.hidden_size
    shapes: Shapes = {layout.embedding: (V, C), layout.final_norm: (C,), layout.unembed: (V, C)}
    for index in range(config.n_layers):
        shapes |= _attention_shapes(layout, config, index)
        if config.has_experts(index):
            shapes |= _sparse_shapes(layout, config, index)
        else:
            C, F = config.hidden_size, config.ffn_width
            shapes |= {layout.name(index, part): (F, C) for part in ("gate", "up")}
            shapes[layout.name(index, "down")] = (C, F)
    return shapes


def _attention_shapes(layout: Layout, config: DecoderConfig, index: int) -> Shapes:
    C, D = config.hidden_size, config.head_width
    Q, K = config.n_heads * D, config.n_kv_heads * D
    rows = {"qkv": config.qkv_width, "q": Q, "k": K, "v": K}
    parts: Shapes = {"input_norm": (C,), "post_norm": (C,), "out": (C, Q)}
    parts |= {part: (rows[part], C) for part in layout.projections}
    if config.qk_norm:
        parts |= {"q_norm": (D,), "k_norm": (D,)}
    shapes = {layout.name(index, part): shape for part, shape in parts.items()}
    if config.qkv_bias:
        shapes |= {layout.name(index, part, "bias"): (rows[part],) for part in layout.projections}
    return shapes


def _sparse_shapes(layout: Layout, config: DecoderConfig, index: int) -> Shapes:
    E, C, F = config.n_experts, config.hidden_size, config.expert_width
    prefix = layout.layer.format(index)
    shapes: Shapes = {layout.name(index, "router"): (E, C)}
    if config.router == "sigmoid":
        shapes[prefix + BIAS] = (E,)
    for expert in range(E):
        shapes |= _mlp_shapes(prefix + EXPERT.format(expert), C, F)
    if config.n_shared:
        shapes |= _mlp_shapes(prefix + SHARED, C, config.n_shared * F)
    return shapes


def _mlp_shapes(prefix: str, C: int, F: int) -> Shapes:
    gate, up, down = _mlp_names(prefix)
    return {gate: (F, C), up: (F, C), down: (C, F)}


def _mlp_names(prefix: str) -> list[str]:
    return [f"{prefix}{kind}_proj.weight" for kind in ("gate", "up", "down")]


def check_tensors(layout: Layout, checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """Refuse missing, unknown, misshaped and strangely typed tensors; what may be missing may be."""
    expected = expected_shapes(layout, config)
    optional = {layout.unembed} if config.tied else set[str]()
    if not config.expert_bias:
        optional |= {name for name in expected if name.endswith(BIAS)}
    checkpoint.check(expected, layout.what, optional)


def load_weights(
    layout: Layout,
    checkpoint: Checkpoint,
    config: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    place: ExpertPlace = "device",
) -> DecoderWeights:
    """Return the tensors on ``device`` in ``dtype``, experts stacked there or left memory-mapped."""
    check_tensors(layout, checkpoint, config)
    try:
        return _Loader(layout, checkpoint, config, device, dtype, place).weights()
    except torch.OutOfMemoryError:
        raise ModelLoadError(_too_large(config, device, dtype)) from None


def refuse_too_large(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse early, in one line, what cannot fit on the device."""
    needed = config.n_parameters * dtype.itemsize
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        raise ModelLoadError(_too_large(config, device, dtype))


def _too_large(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> str:
    needed = config.n_parameters * dtype.itemsize / 1e9
    remedy = "use another device"
    if config.n_experts:
        remedy = (
            "use a larger GPU, experts='host' (slow: experts stay in host memory), or --device cpu "
            "(docs/scale.md, One GPU is too small)"
        )
    return f"the weights need {needed:.1f} GB on {device}, more than is free there; {remedy}"


@dataclass(frozen=True, slots=True)
class _Loader:
    layout: Layout
    checkpoint: Checkpoint
    config: DecoderConfig
    device: torch.device
    dtype: torch.dtype
    place: ExpertPlace

    def weights(self) -> DecoderWeights:
        layout = self.layout
        embedding_VC = self.read(layout.embedding)
        with ThreadPoolExecutor(READERS) as threads:
            layers = tuple(threads.map(self.layer, range(self.config.n_layers)))
        unembed_VC = embedding_VC if self.config.tied else self.read(layout.unembed)
        return DecoderWeights(embedding_VC, layers, self.read(layout.final_norm), unembed_VC)

    def read(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name).to(self.device, self.dtype)

    def joined(self, names: list[str]) -> Tensor:
        """Return several tensors one after the other."""
        if len(names) == 1:
            return self.read(names[0])
        parts = [self.checkpoint.tensor(name) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        whole = torch.empty(shape, device=self.device, dtype=self.dtype)
        first = 0
        for part in parts:
            whole[first : first + len(part)].copy_(part)
            first += len(part)
        return whole

    def layer(self, index: int) -> DecoderLayer:
        def name(part: str, kind: str = "weight") -> str:
            return self.layout.name(index, part, kind)

        qk_norm, projections = self.config.qk_norm, self.layout.projections
        biases = [name(part, "bias") for part in projections] if self.config.qkv_bias else []
        return DecoderLayer(
            self.read(name("input_norm")),
            self.joined([name(part) for part in projections]),
            self.joined(biases) if biases else None,
            self.read(name("q_norm")) if qk_norm else None,
            self.read(name("k_norm")) if qk_norm else None,
            self.read(name("out")),
            self.read(name("post_norm")),
            self.sparse(index) if self.config.has_experts(index) else self.dense(index),
        )

    def dense(self, index: int) -> DenseFeedForward:
        gate, up, down = (self.layout.name(index, part) for part in ("gate", "up", "down"))
        return DenseFeedForward(self.joined([gate, up]), self.read(down))

    def sparse(self, index: int) -> SparseFeedForward:
        router_EC = self.checkpoint.tensor(self.layout.name(index, "router"))  # keeps its stored precision
        bias_E = torch.zeros(self.config.n_experts, device=self.device)
        prefix = self.layout.layer.format(index)
        if prefix + BIAS in self.checkpoint:
            bias_E.copy_(self.checkpoint.tensor(prefix + BIAS))
        stacked = self.place == "device"
        experts = self.stacked(prefix) if stacked else MappedExperts(tuple(self.triples(prefix)))
        return SparseFeedForward(router_EC.to(self.device), bias_E, experts)

    def stacked(self, prefix: str) -> StackedExperts:
        E = self.config.n_experts + self.config.n_shared
        F, C = self.config.expert_width, self.config.hidden_size
        gate_up_EFC = torch.empty(E, 2 * F, C, device=self.device, dtype=self.dtype)
        down_ECF = torch.empty(E, C, F, device=self.device, dtype=self.dtype)
        for expert, (gate_FC, up_FC, down_CF) in enumerate(self.triples(prefix)):
            gate_up_EFC[expert, :F].copy_(gate_FC)
            gate_up_EFC[expert, F:].copy_(up_FC)
            down_ECF[expert].copy_(down_CF)
        return StackedExperts(gate_up_EFC, down_ECF)

    def triples(self, prefix: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield gate, up and down of every routed expert, then of every shared one."""
        read = self.checkpoint.tensor
        for expert in range(self.config.n_experts):
            gate, up, down = _mlp_names(prefix + EXPERT.format(expert))
            yield read(gate), read(up), read(down)
        if self.config.n_shared:
            F, (gate, up, down) = self.config.expert_width, _mlp_names(prefix + SHARED)
            gates, ups = torch.split(read(gate), F), torch.split(read(up), F)
            yield from zip(gates, ups, torch.split(read(down), F, dim=1), strict=True)
