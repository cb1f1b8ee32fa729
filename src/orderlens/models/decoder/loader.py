"""Loads published tensors into the network: maps names, checks every tensor, and copies to the device.

Fused matrices and stacks of experts are allocated once on the target device and filled part by part, without
a second copy; float8 experts are converted one at a time. Several layers load in parallel. On the CPU (and
for ``experts="host"`` on a small GPU) expert matrices stay memory-mapped views of the file.
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
from orderlens.models.decoder.float8 import Float8Stack, Matrix, group_width, row_scales, scales_per_row
from orderlens.models.decoder.weights import (
    DecoderLayer,
    DecoderWeights,
    DenseFeedForward,
    MappedExperts,
    SparseFeedForward,
)
from orderlens.models.files.checkpoint import FLOAT8, Checkpoint

ExpertPlace: TypeAlias = Literal["device", "host"]
Shapes: TypeAlias = dict[str, tuple[int, ...]]
ScaleBlock: TypeAlias = tuple[int, int] | None
READERS = 4
"""Layers loaded in parallel: while one waits for the disk, another copies."""
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
    """The tensor names of a family.

    Attributes:
        what: the kind of model, for messages.
        layer: prefix of a layer's tensors, with ``{}`` for its number.
        embedding, final_norm, unembed: full names.
        bias: the router's bias, after the prefix.
        parts: our name of a layer's tensor → its published name after the prefix, without ``.weight``; with
            ``qkv`` the projection is stored fused.
    """

    what: str
    layer: str
    embedding: str
    final_norm: str
    unembed: str
    parts: Mapping[str, str]
    bias: str = BIAS

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
    if config.has_router_bias:
        shapes[prefix + layout.bias] = (E,)
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
    """Refuse tensors that are missing or unknown, or that have a wrong shape or dtype."""
    expected = expected_shapes(layout, config)
    optional = {layout.unembed} if config.tied else set[str]()
    if not config.expert_bias:
        optional |= {name for name in expected if name.endswith(layout.bias)}
    checkpoint.check(expected, layout.what, optional, float8=True)


def stores_float8(layout: Layout, checkpoint: Checkpoint, config: DecoderConfig) -> bool:
    """Return whether all matrices of experts are stored in float8; a part of them does not count."""
    prefixes = [layout.layer.format(layer) for layer in range(config.n_layers) if config.has_experts(layer)]
    experts = [EXPERT.format(expert) for expert in range(config.n_experts)]
    experts += [SHARED] if config.n_shared else []
    names = (name for prefix in prefixes for expert in experts for name in _mlp_names(prefix + expert))
    return bool(prefixes) and all(checkpoint.kind(name) == FLOAT8 for name in names)


def load_weights(
    layout: Layout,
    checkpoint: Checkpoint,
    config: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    place: ExpertPlace = "device",
    float8: bool = False,
) -> DecoderWeights:
    """Return the tensors on ``device`` in ``dtype``; experts are stacked there or stay memory-mapped.

    Args:
        layout: the family's names of tensors.
        checkpoint: the files.
        config: the network's shape.
        device: device of the tensors.
        dtype: their dtype.
        place: location of expert matrices.
        float8: convert experts to float8; they stay so in any case if all of them are stored so.
    """
    check_tensors(layout, checkpoint, config)
    stays8 = float8 or stores_float8(layout, checkpoint, config)
    try:
        return _Loader(layout, checkpoint, config, device, dtype, place, stays8).weights()
    except torch.OutOfMemoryError:
        raise ModelLoadError(_too_large(config, device, dtype, stays8, checkpoint.block)) from None


def weight_bytes(
    config: DecoderConfig, dtype: torch.dtype, float8: bool = False, block: ScaleBlock = None
) -> int:
    """Return the bytes of all weights.

    Args:
        config: the network's shape.
        dtype: dtype of the weights that are not in float8.
        float8: experts have 1 byte per number, and float32 scales.
        block: rows and columns per stored scale; None for one scale per row.
    """
    n_experts = config.n_sparse_layers * (config.n_experts + config.n_shared)
    C, F = config.hidden_size, config.expert_width
    scales = 2 * F * scales_per_row(C, block) + C * scales_per_row(F, block)
    saved = 3 * C * F * (dtype.itemsize - 1) - 4 * scales
    return config.n_parameters * dtype.itemsize - (n_experts * saved if float8 else 0)


def refuse_too_large(
    config: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    float8: bool = False,
    block: ScaleBlock = None,
) -> None:
    """Refuse a network that cannot fit on the device, before it is loaded."""
    needed = weight_bytes(config, dtype, float8, block)
    if device.type == "cuda" and needed > torch.cuda.mem_get_info(device)[0]:
        raise ModelLoadError(_too_large(config, device, dtype, float8, block))


def _too_large(
    config: DecoderConfig, device: torch.device, dtype: torch.dtype, float8: bool, block: ScaleBlock
) -> str:
    needed = weight_bytes(config, dtype, float8, block) / 1e9
    remedy = "use another device"
    if config.n_experts:
        converted = weight_bytes(config, dtype, True, block) / 1e9
        smaller = "" if float8 else f"--weights fp8 ({converted:.1f} GB), "
        remedy = (
            f"use {smaller}a larger GPU, experts='host' (slow: experts stay in host memory), or --device cpu "
            "(docs/running.md, One GPU is too small)"
        )
    return f"the weights need {needed:.1f} GB on {device}, more than its free memory; {remedy}"


@dataclass(frozen=True, slots=True)
class _Loader:
    layout: Layout
    checkpoint: Checkpoint
    config: DecoderConfig
    device: torch.device
    dtype: torch.dtype
    place: ExpertPlace
    float8: bool

    def weights(self) -> DecoderWeights:
        layout = self.layout
        embedding_VC = self.read(layout.embedding)
        if self.config.tied and layout.unembed in self.checkpoint:
            self.refuse_other_unembed(embedding_VC)
        with ThreadPoolExecutor(READERS) as threads:
            layers = tuple(threads.map(self.layer, range(self.config.n_layers)))
        unembed_VC = embedding_VC if self.config.tied else self.read(layout.unembed)
        return DecoderWeights(embedding_VC, layers, self.read(layout.final_norm), unembed_VC)

    def refuse_other_unembed(self, embedding_VC: Tensor) -> None:
        """Refuse a tied output matrix that the files also hold, with other numbers."""
        if not torch.equal(self.read(self.layout.unembed), embedding_VC):
            raise ModelLoadError(
                f"config.json ties the output matrix to the embedding, but {self.layout.unembed} differs "
                f"from {self.layout.embedding}; set the key that ties them to false, or remove the tensor"
            )

    def stored(self, name: str, group_of: int | None = None) -> Matrix:
        """Return one tensor with its scales, if it has any, in groups that divide ``group_of`` columns."""
        values, scale_XY = self.checkpoint.tensor(name), self.checkpoint.scales(name)
        if scale_XY is None:
            return Matrix(values)
        rows, columns = values.shape
        assert self.checkpoint.block is not None
        group = group_width(group_of or columns, self.checkpoint.block)
        return Matrix(values, row_scales(scale_XY, rows, columns, self.checkpoint.block, group))

    def plain(self, name: str) -> Tensor:
        """Return one tensor as stored, or float8 times its scales as float32 on the device."""
        found = self.stored(name)
        return found.values_OC if found.scale_OS is None else found.to(self.device).plain()

    def read(self, name: str) -> Tensor:
        return self.plain(name).to(self.device, self.dtype)

    def joined(self, names: list[str]) -> Tensor:
        """Return several tensors, concatenated along the first dimension."""
        if len(names) == 1:
            return self.read(names[0])
        parts = [self.plain(name) for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        fused = torch.empty(shape, device=self.device, dtype=self.dtype)
        first = 0
        for part in parts:
            fused[first : first + len(part)].copy_(part)
            first += len(part)
        return fused

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
        router_EC = self.plain(self.layout.name(index, "router"))  # keeps its stored precision
        bias_E = torch.zeros(self.config.n_experts, device=self.device)
        prefix = self.layout.layer.format(index)
        if prefix + self.layout.bias in self.checkpoint:
            bias_E.copy_(self.checkpoint.tensor(prefix + self.layout.bias))
        stacked = self.place == "device"
        experts = self.stacked(prefix) if stacked else MappedExperts(tuple(self.triples(prefix)))
        return SparseFeedForward(router_EC.to(self.device), bias_E, experts)

    def stacked(self, prefix: str) -> StackedExperts:
        E = self.config.n_experts + self.config.n_shared
        F, C = self.config.expert_width, self.config.hidden_size
        if self.float8:
            stack = Float8Stack(E, F, C, self.device, self.checkpoint.block)
            for expert, triple in enumerate(self.triples(prefix)):
                stack.fill(expert, *triple)
            return stack.experts
        gate_up_EFC = torch.empty(E, 2 * F, C, device=self.device, dtype=self.dtype)
        down_ECF = torch.empty(E, C, F, device=self.device, dtype=self.dtype)
        for expert, (gate, up, down) in enumerate(self.triples(prefix)):
            gate_up_EFC[expert, :F].copy_(gate.plain())
            gate_up_EFC[expert, F:].copy_(up.plain())
            down_ECF[expert].copy_(down.plain())
        return StackedExperts(gate_up_EFC, down_ECF)

    def triples(self, prefix: str) -> Iterator[tuple[Matrix, Matrix, Matrix]]:
        """Yield gate, up and down of every routed expert, then of every shared one."""
        for expert in range(self.config.n_experts):
            gate, up, down = _mlp_names(prefix + EXPERT.format(expert))
            yield self.stored(gate), self.stored(up), self.stored(down)
        if self.config.n_shared:
            F, (gate, up, down) = self.config.expert_width, _mlp_names(prefix + SHARED)
            parts = self.stored(gate), self.stored(up), self.stored(down, group_of=F)
            for expert in range(self.config.n_shared):
                rows = slice(expert * F, (expert + 1) * F)
                yield parts[0].rows(rows), parts[1].rows(rows), parts[2].columns(rows)
