"""Tensors of a decoder-like network: what every family keeps around its layers, and random ones for tests.

Shape letters: V vocabulary, C model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Layer = TypeVar("Layer")


@dataclass(frozen=True, slots=True)
class Weights(Generic[Layer]):
    """The whole network; a tied output matrix is the embedding itself."""

    embedding_VC: Tensor
    layers: tuple[Layer, ...]
    final_norm_C: Tensor
    unembed_VC: Tensor

    @property
    def device(self) -> torch.device:
        """Where the computation happens (memory-mapped experts may lie elsewhere)."""
        return self.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return self.embedding_VC.dtype


class RandomTensors:
    """Tensors drawn one after the other, directly on a device (for benchmarks and tests)."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int, std: float) -> None:
        nowhere = torch.device(device).type == "meta"  # shapes only
        self._generator = None if nowhere else torch.Generator(device=device).manual_seed(seed)
        self._device, self._dtype, self._std = device, dtype, std

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a matrix around 0."""
        empty = torch.empty(shape, device=self._device, dtype=dtype or self._dtype)
        return empty.normal_(0, self._std, generator=self._generator)

    def scale(self, size: int) -> Tensor:
        """Return the weights of a norm, around 1."""
        empty = torch.empty(size, device=self._device, dtype=self._dtype)
        return empty.uniform_(0.8, 1.2, generator=self._generator)
