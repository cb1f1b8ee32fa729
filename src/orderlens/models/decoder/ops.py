"""The building blocks of a Llama-like forward: plain torch anywhere, our kernels on CUDA in bf16 or fp16.

Plain projections stay with the vendor library.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.gpu import runs_kernels
from orderlens.models.decoder.config import DenseConfig
from orderlens.models.decoder.weights import LayerWeights, Weights
from orderlens.models.engine.layer_parts import rms_norm, rotary_tables, swiglu, turned_heads
from orderlens.models.engine.packed import linear
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.window import Windows

FEW_TOKENS = 512
"""Up to here a projection without a bias is asked for with one; measured at 160 (benchmarks/RESULTS.md)."""


class Ops(Protocol):
    """What a forward is made of."""

    gathers: bool

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return how many parts the attention over a prefix is cut into (part of a graph's shape)."""
        ...

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta (x itself without delta) and its norm."""
        ...

    def project(self, h_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return h · weightᵀ + bias of the attention's projections."""
        ...

    def swiglu(self, gate_up_TF: Tensor) -> Tensor:
        """Return silu(gate) · up."""
        ...

    def attend_pages(
        self, fused_TO: Tensor, layer: LayerWeights, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] over each window's cached prefix and itself."""
        ...

    def attend_canvas(self, fused_TO: Tensor, layer: LayerWeights, count: int) -> Tensor:
        """Return attention outputs [T, H·D] inside ``count`` canvases of equal width."""
        ...


def tables_of(config: DenseConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of all positions, in the precision that the family turns in."""
    kind = torch.float32 if config.exact_rotary else dtype
    return rotary_tables(config.rotary_width, config.rope_theta, config.max_positions, device, kind)


class TorchOps:
    """The portable implementation."""

    gathers = True

    def __init__(self, config: DenseConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.tables = config, tables_of(config, device, dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        """The portable attention is one piece."""
        del n_windows, longest_start
        return 1

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        total_TC = x_TC if delta_TC is None else x_TC + delta_TC
        return total_TC, rms_norm(total_TC, weight_C, self.config.norm_eps)

    def project(self, h_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return h · weightᵀ + bias."""
        return linear(h_TC, weight_OC, bias_O)

    def swiglu(self, gate_up_TF: Tensor) -> Tensor:
        """Return silu(gate) · up."""
        return swiglu(gate_up_TF)

    def attend_pages(
        self, fused_TO: Tensor, layer: LayerWeights, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] over each window's cached prefix and itself."""
        q, k, v = turned_heads(fused_TO, layer, self.tables, windows.positions, self.config)
        if store:
            store_keys(k, v, index, windows, pool)
        return _flat(attend(q, k, v, index, windows, pool))

    def attend_canvas(self, fused_TO: Tensor, layer: LayerWeights, count: int) -> Tensor:
        """Return attention outputs [T, H·D] inside whole canvases."""
        width = len(fused_TO) // count
        positions_NW = torch.arange(width, device=fused_TO.device).expand(count, width)
        q, k, v = turned_heads(fused_TO, layer, self.tables, positions_NW, self.config)
        return _flat(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


class TritonOps:
    """The CUDA implementation: eight launches per layer and not a word to the host, so it can be recorded."""

    gathers = False

    def __init__(self, config: DenseConfig, device: torch.device, dtype: torch.dtype) -> None:
        from orderlens.kernels import attention, canvas, queries_keys, rowwise

        self.config, self.tables = config, tables_of(config, device, dtype)
        self._attention, self._canvas = attention, canvas
        self._heads, self._rowwise = queries_keys, rowwise
        self._zeros = torch.zeros(max(config.qkv_width, config.hidden_size), device=device, dtype=dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return how many parts the attention over a prefix is cut into."""
        return self._attention.split_count(n_windows * self.config.n_kv_heads, longest_start)

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        return self._rowwise.add_rms_norm(x_TC, delta_TC, weight_C, self.config.norm_eps)

    def project(self, h_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return h · weightᵀ + bias.

        torch asks another interface of the vendor library for products with a bias, and that one picks faster
        kernels for these matrices while tokens are few: so a missing bias is given as zeros there.
        """
        if bias_O is None and len(h_TC) <= FEW_TOKENS:
            bias_O = self._zeros[: len(weight_OC)]
        return functional.linear(h_TC, weight_OC, bias_O)

    def swiglu(self, gate_up_TF: Tensor) -> Tensor:
        """Return silu(gate) · up."""
        return self._rowwise.swiglu(gate_up_TF)

    def attend_pages(
        self, fused_TO: Tensor, layer: LayerWeights, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] over each window's cached prefix and itself."""
        heads, config = self._heads.prepare_heads, self.config
        qk_THD = heads(fused_TO, layer, self.tables, windows, pool, index, config, store)
        splits = self.splits(windows.count, windows.longest_start)
        return self._attention.attend(qk_THD, fused_TO, windows, pool, index, config, splits)

    def attend_canvas(self, fused_TO: Tensor, layer: LayerWeights, count: int) -> Tensor:
        """Return attention outputs [T, H·D] inside whole canvases."""
        del layer  # no family with full attention has norms on its heads
        return self._canvas.attend_canvas(fused_TO, count, self.tables, self.config)


def choose_ops(weights: Weights, config: DenseConfig) -> Ops:
    """Return our CUDA kernels where they apply, plain torch elsewhere."""
    fast = runs_kernels(weights.device) and weights.dtype in (torch.bfloat16, torch.float16)
    fits = config.head_width >= 32 and config.head_width & (config.head_width - 1) == 0
    if fast and fits and not (config.attention == "full" and config.qk_norm):
        return TritonOps(config, weights.device, weights.dtype)
    return TorchOps(config, weights.device, weights.dtype)


def _flat(o_NHWD: Tensor) -> Tensor:
    """Return [N·W, H·D]."""
    return o_NHWD.transpose(1, 2).flatten(2).flatten(0, 1)
