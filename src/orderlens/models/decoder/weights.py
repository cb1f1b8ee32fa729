"""The network's tensors in the layout of the forward: queries, keys and values fused, gate and up fused.

Shared experts follow the routed ones, as experts that every token uses: a shared feed-forward of width S × F
is the sum of S experts of width F.

Shape letters: V vocabulary, C model width, O outputs of a projection, E experts (routed then shared),
F feed-forward width, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.float8 import Float8Stack, Matrix

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class MappedExperts:
    """Experts that stay memory-mapped in the checkpoint and are read when a token needs them.

    Attributes:
        triples: gate, up and down of every expert, as stored.
        dtype: dtype after reading, None for the stored one (float32 for scaled matrices).
    """

    triples: tuple[tuple[Matrix, Matrix, Matrix], ...]
    dtype: torch.dtype | None = None

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def is_float8(self) -> bool:
        """Whether all stored weights are float8 numbers with scales."""
        return all(matrix.scale_OS is not None for triple in self.triples for matrix in triple)

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert."""
        gate_FC, up_FC, down_CF = (matrix.plain() for matrix in self.triples[expert])
        if self.dtype is None:
            return gate_FC, up_FC, down_CF
        return gate_FC.to(self.dtype), up_FC.to(self.dtype), down_CF.to(self.dtype)


Experts: TypeAlias = StackedExperts | MappedExperts


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """A plain SwiGLU feed-forward: gate rows and then up rows."""

    gate_up_FC: Tensor
    down_CF: Tensor


@dataclass(frozen=True, slots=True)
class SparseFeedForward:
    """Router and experts; the bias only affects the selection and stays in float32."""

    router_EC: Tensor
    bias_E: Tensor
    experts: Experts

    @property
    def multiplies_pairs(self) -> bool:
        """Whether the experts are multiplied on float8 units, with tokens as pairs."""
        return isinstance(self.experts, StackedExperts) and self.experts.ordered


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: ``qkv`` holds query, key and value rows."""

    input_norm_C: Tensor
    qkv_OC: Tensor
    qkv_bias_O: Tensor | None
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    out_CO: Tensor
    post_norm_C: Tensor
    feed_forward: DenseFeedForward | SparseFeedForward


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of the network; a tied output matrix is the embedding itself."""

    embedding_VC: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm_C: Tensor
    unembed_VC: Tensor

    @property
    def device(self) -> torch.device:
        """The computing device (memory-mapped experts may be elsewhere)."""
        return self.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return self.embedding_VC.dtype

    @property
    def stacked(self) -> bool:
        """Whether the experts of all layers are stacked, not memory-mapped."""
        return all(isinstance(experts, StackedExperts) for experts in self._experts())

    @property
    def is_float8(self) -> bool:
        """Whether the experts' weights are float8 numbers with scales."""
        return {experts.is_float8 for experts in self._experts()} == {True}

    def _experts(self) -> Iterator[Experts]:
        blocks = (layer.feed_forward for layer in self.layers)
        return (block.experts for block in blocks if isinstance(block, SparseFeedForward))

    def to(self, dtype: torch.dtype) -> DecoderWeights:
        """Return a copy in another dtype; the router's bias stays in float32, float8 weights stay float8."""
        copy = _cast(self, dtype)
        tied = self.unembed_VC is self.embedding_VC
        return replace(copy, unembed_VC=copy.embedding_VC) if tied else copy


def _cast(part: Part, dtype: torch.dtype) -> Part:
    """Return a part of the weights, with all nested tensors in another dtype."""

    def cast(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if name == "bias_E" else value.to(dtype)
        if isinstance(value, MappedExperts):
            return replace(value, dtype=dtype)
        if isinstance(value, StackedExperts) and value.is_float8:
            return value
        if isinstance(value, tuple):
            return tuple(_cast(item, dtype) for item in value)
        return _cast(value, dtype) if is_dataclass(value) else value

    assert is_dataclass(part)
    assert not isinstance(part, type)
    return replace(
        part, **{field.name: cast(field.name, getattr(part, field.name)) for field in fields(part)}
    )


def stacked_float8(plain: StackedExperts) -> StackedExperts:
    """Return experts in float8, converted one at a time."""
    E, C, F = plain.down_ECF.shape
    stack = Float8Stack(E, F, C, plain.down_ECF.device, block=None)
    for expert in range(E):
        stack.fill(expert, *map(Matrix, plain.matrices(expert)))
    return stack.experts


class RandomTensors:
    """Draws random tensors directly on a device."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int, std: float) -> None:
        is_meta = torch.device(device).type == "meta"  # shapes only
        self._generator = None if is_meta else torch.Generator(device=device).manual_seed(seed)
        self._device, self._dtype, self._std = device, dtype, std

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normally distributed numbers around 0."""
        empty = torch.empty(shape, device=self._device, dtype=dtype or self._dtype)
        return empty.normal_(0, self._std, generator=self._generator)

    def scale(self, size: int) -> Tensor:
        """Return the weights of a norm, uniform around 1."""
        empty = torch.empty(size, device=self._device, dtype=self._dtype)
        return empty.uniform_(0.8, 1.2, generator=self._generator)


def random_weights(
    config: DecoderConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    std: float = 0.02,
    *,
    float8: bool = False,
) -> DecoderWeights:
    """Draw weights of the given shape directly on ``device`` (for benchmarks and tests).

    With ``float8`` the experts of each layer are converted after they are drawn: the same numbers, rounded.
    """
    draw = RandomTensors(device, dtype, seed, std)
    V, C, D = config.vocab_size, config.hidden_size, config.head_width

    def feed_forward(index: int) -> DenseFeedForward | SparseFeedForward:
        if not config.has_experts(index):
            return DenseFeedForward(draw.normal(2 * config.ffn_width, C), draw.normal(C, config.ffn_width))
        E, F = config.n_experts + config.n_shared, config.expert_width
        bias_E = draw.normal(config.n_experts, dtype=torch.float32)
        experts = StackedExperts(draw.normal(E, 2 * F, C), draw.normal(E, C, F))
        experts = stacked_float8(experts) if float8 else experts
        return SparseFeedForward(draw.normal(config.n_experts, C), bias_E, experts)

    def layer(index: int) -> DecoderLayer:
        q_norm_D, k_norm_D = (draw.scale(D), draw.scale(D)) if config.qk_norm else (None, None)
        return DecoderLayer(
            draw.scale(C),
            draw.normal(config.qkv_width, C),
            draw.normal(config.qkv_width) if config.qkv_bias else None,
            q_norm_D,
            k_norm_D,
            draw.normal(C, config.n_heads * D),
            draw.scale(C),
            feed_forward(index),
        )

    embedding_VC = draw.normal(V, C)
    layers = tuple(layer(index) for index in range(config.n_layers))
    unembed_VC = embedding_VC if config.tied else draw.normal(V, C)
    return DecoderWeights(embedding_VC, layers, draw.scale(C), unembed_VC)
