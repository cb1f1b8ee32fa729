"""The forward: token windows in, final hidden states out, over whichever building blocks fit the device.

Knows nothing of sessions, slots, graphs or the output matrix.

Shape letters: T tokens of all windows, C model width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.gpu import runs_kernels
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import Windows
from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.torch_ops import Ops, TorchOps
from orderlens.models.llada2.weights import SparseWeights, Weights


class Network:
    """Weights and building blocks, put together."""

    def __init__(self, weights: Weights, config: LLaDA2Config, ops: Ops | None = None) -> None:
        self.weights, self.config = weights, config
        self.ops = ops or choose_ops(weights, config)
        self.splits: Callable[[int, int], int] = self.ops.splits
        self.gathers = isinstance(self.ops, TorchOps)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.weights.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its activations."""
        return self.weights.dtype

    @torch.no_grad()
    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, C], normalised for the output matrix."""
        return self._forward(windows, pool, store=False)

    @torch.no_grad()
    def advance(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return the same, and cache the windows: earlier ones of a sequence are seen by later ones."""
        return self._forward(windows, pool, store=True)

    @torch.no_grad()
    def picked(self, windows: Windows, pool: PagePool, rows_R: Tensor, store: bool) -> Tensor:
        """Return the hidden states [R, C] of some tokens; the last layer skips the rest of the others."""
        return self._forward(windows, pool, store=store, rows_R=rows_R)

    @torch.no_grad()
    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values in pages that the caller has reserved.

        Windows of one sequence may come together: each layer writes all keys before any window reads them.
        """
        ops, layers = self.ops, self.weights.layers
        x_TC, h_TC = self._embed(windows)
        for index in range(len(layers) - 1):
            attended = ops.attention(h_TC, index, layers[index], windows, pool, store=True)
            x_TC, h_TC = self._after_attention(x_TC, attended, index)
        ops.attention(h_TC, len(layers) - 1, layers[-1], windows, pool, store=True)

    def _forward(self, windows: Windows, pool: PagePool, store: bool, rows_R: Tensor | None = None) -> Tensor:
        ops, layers = self.ops, self.weights.layers
        x_TC, h_TC = self._embed(windows)
        for index in range(len(layers)):
            attended = ops.attention(h_TC, index, layers[index], windows, pool, store=store)
            if rows_R is not None and index == len(layers) - 1:
                x_TC, attended = x_TC[rows_R], attended[rows_R]
            x_TC, h_TC = self._after_attention(x_TC, attended, index)
        return h_TC

    def _embed(self, windows: Windows) -> tuple[Tensor, Tensor]:
        x_TC = functional.embedding(windows.tokens.reshape(-1), self.weights.embedding_VC)
        return x_TC, self.ops.norm(x_TC, self.weights.layers[0].input_norm_C)

    def _after_attention(self, x_TC: Tensor, attended_TO: Tensor, index: int) -> tuple[Tensor, Tensor]:
        layers, layer = self.weights.layers, self.weights.layers[index]
        last = index == len(layers) - 1
        next_norm_C = self.weights.final_norm_C if last else layers[index + 1].input_norm_C
        x_TC, h_TC = self.ops.after_attention(x_TC, attended_TO, layer)
        return self.ops.feed_forward(x_TC, h_TC, layer, next_norm_C)


def choose_ops(weights: Weights, config: LLaDA2Config) -> Ops:
    """Return our CUDA kernels where they apply, plain torch elsewhere."""
    if kernels_apply(config, weights.device, weights.dtype) and _stacked(weights):
        from orderlens.models.llada2.triton_ops import TritonOps

        return TritonOps(config, weights.device, weights.dtype)
    return TorchOps(config, weights.device, weights.dtype)


def kernels_apply(config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether our kernels compute this network there, if its experts are stacked on the device."""
    return runs_kernels(device) and dtype in (torch.bfloat16, torch.float16) and tiles_divide(config)


def tiles_divide(config: LLaDA2Config) -> bool:
    """Return whether the kernels' tiles divide this shape (all published ones; small ones may not)."""
    powers = (config.n_experts, config.n_groups, config.head_width, config.rotary_width)
    return all(value.bit_count() == 1 for value in powers) and not (
        config.hidden_size % 32 or config.expert_width % 32
    )


def _stacked(weights: Weights) -> bool:
    blocks = [layer.feed_forward for layer in weights.layers]
    return all(
        isinstance(block.experts, StackedExperts) for block in blocks if isinstance(block, SparseWeights)
    )
