"""The forward: token windows in, final hidden states out, over whichever building blocks fit the device.

One body for both kinds of attention: ``hidden`` and ``store`` run windows over the paged cache
(block-causal), ``canvas`` runs whole canvases (full). Knows nothing of sessions, shifts, graphs or the output
matrix.

Shape letters: N windows, W width, T = N·W tokens, C model width, O outputs of a projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.decoder.config import DenseConfig
from orderlens.models.decoder.ops import Ops, choose_ops
from orderlens.models.decoder.weights import LayerWeights, Weights
from orderlens.models.engine.packed import linear
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import Windows

Attend: TypeAlias = Callable[[Tensor, LayerWeights, int], Tensor]
"""(fused projection [T, O], layer, its index) → attention outputs [T, H·D]."""


class Network:
    """Weights and building blocks, put together."""

    def __init__(self, weights: Weights, config: DenseConfig, ops: Ops | None = None) -> None:
        self.weights, self.config = weights, config
        self.ops = ops or choose_ops(weights, config)
        self.splits: Callable[[int, int], int] = self.ops.splits
        self.gathers = self.ops.gathers

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
        """Return hidden states [T, C] of windows over cached prefixes, normalised for the output matrix."""
        return self._run(windows.tokens, self._paged(windows, pool, store=False))

    @torch.no_grad()
    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values in pages that the caller has reserved.

        Windows of one sequence may come together: each layer writes all keys before any window reads them.
        """
        self._run(windows.tokens, self._paged(windows, pool, store=True))

    @torch.no_grad()
    def advance(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states and cache the windows: earlier ones of a sequence are seen by later ones."""
        return self._run(windows.tokens, self._paged(windows, pool, store=True))

    @torch.no_grad()
    def canvas(self, tokens_NW: Tensor) -> Tensor:
        """Return hidden states [N, W, C] of whole canvases, every position seeing its whole own."""
        count, width = tokens_NW.shape
        hidden_TC = self._run(
            tokens_NW, lambda fused_TO, layer, _: self.ops.attend_canvas(fused_TO, layer, count)
        )
        return hidden_TC.view(count, width, -1)

    def _paged(self, windows: Windows, pool: PagePool, store: bool) -> Attend:
        return lambda fused_TO, layer, index: self.ops.attend_pages(
            fused_TO, layer, windows, pool, index, store
        )

    def _run(self, tokens_NW: Tensor, attend: Attend) -> Tensor:
        ops, layers = self.ops, self.weights.layers
        norms = [*(layer.input_norm_C for layer in layers[1:]), self.weights.final_norm_C]
        embedded_TC = functional.embedding(tokens_NW.reshape(-1), self.weights.embedding_VC)
        x_TC, h_TC = ops.add_norm(embedded_TC, None, layers[0].input_norm_C)
        for index, (layer, next_norm_C) in enumerate(zip(layers, norms, strict=True)):
            attended_TO = attend(ops.project(h_TC, layer.qkv_OC, layer.qkv_bias_O), layer, index)
            x_TC, h_TC = ops.add_norm(x_TC, ops.project(attended_TO, layer.out_CO, None), layer.post_norm_C)
            inner_TF = ops.swiglu(linear(h_TC, layer.gate_up_FC))
            x_TC, h_TC = ops.add_norm(x_TC, linear(inner_TF, layer.down_CF), next_norm_C)
        return h_TC
