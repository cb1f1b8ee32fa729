"""The forward of the Llama-like network: from token windows to final hidden states.

One network for both kinds of attention and of feed-forward. ``hidden``, ``advance`` and ``store`` run windows
over the paged cache (block-causal); ``canvas`` runs whole canvases (full). Does not depend on sessions,
shifts, graphs or the output matrix.

Shape letters: N windows, W width, T = N·W tokens, R requested tokens, C model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.gpu import runs_kernels
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.torch_ops import Ops, TorchOps
from orderlens.models.decoder.weights import DecoderLayer, DecoderWeights
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import Windows

Attend: TypeAlias = Callable[[Tensor, DecoderLayer, int], Tensor]
"""(normalised activations [T, C], layer, its index) → attention outputs [T, H·D]."""


class DecoderNetwork:
    """The network: weights, and the operations that suit the device."""

    def __init__(self, weights: DecoderWeights, config: DecoderConfig, ops: Ops | None = None) -> None:
        self.weights, self.config = weights, config
        self.ops = ops or choose_ops(weights, config)
        self.splits: Callable[[int, int], int] = self.ops.splits
        self.gathers = self.ops.gathers

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @torch.no_grad()
    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        attend = self._paged(windows, pool, store=False)
        return self._run(windows.tokens, attend, valid_NW=self._valid(windows))

    @torch.no_grad()
    def advance(self, windows: Windows, pool: PagePool) -> Tensor:
        attend = self._paged(windows, pool, store=True)
        return self._run(windows.tokens, attend, valid_NW=self._valid(windows))

    @torch.no_grad()
    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values in pages that the caller has reserved.

        Several windows may belong to one sequence: each layer writes all keys before any window reads them.
        """
        attend = self._paged(windows, pool, store=True)
        self._run(windows.tokens, attend, only_store=True, valid_NW=self._valid(windows))

    @torch.no_grad()
    def canvas(self, tokens_NW: Tensor) -> Tensor:
        """Return hidden states [N, W, C] of whole canvases; every position sees its whole canvas."""
        count, width = tokens_NW.shape
        attend: Attend = lambda h_TC, layer, _: self.ops.attend_canvas(h_TC, layer, count)  # noqa: E731
        return self._run(tokens_NW, attend).view(count, width, -1)

    def _paged(self, windows: Windows, pool: PagePool, store: bool) -> Attend:
        return lambda h_TC, layer, index: self.ops.attend_pages(h_TC, layer, windows, pool, index, store)

    def _valid(self, windows: Windows) -> Tensor | None:
        """Return which tokens are not padding [N, W], if experts are chosen by block."""
        if not self.config.expert_capacity:
            return None
        return torch.arange(windows.width, device=self.device) < windows.widths[:, None]

    def _run(
        self,
        tokens_NW: Tensor,
        attend: Attend,
        rows_R: Tensor | None = None,
        only_store: bool = False,
        valid_NW: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states of all tokens or of ``rows_R``; the last layer skips unused rows."""
        ops, layers = self.ops, self.weights.layers
        norms = [*(layer.input_norm_C for layer in layers[1:]), self.weights.final_norm_C]
        embedded_TC = functional.embedding(tokens_NW.reshape(-1), self.weights.embedding_VC)
        x_TC, h_TC = ops.add_norm(embedded_TC, None, layers[0].input_norm_C)
        for index, (layer, next_norm_C) in enumerate(zip(layers, norms, strict=True)):
            attended_TO = attend(h_TC, layer, index)
            if index == len(layers) - 1 and only_store:
                break
            if index == len(layers) - 1 and rows_R is not None:
                x_TC, attended_TO = x_TC[rows_R], attended_TO[rows_R]
            x_TC, h_TC = ops.after_attention(x_TC, attended_TO, layer, next_norm_C, valid_NW)
        return h_TC


class ExpertNetwork(DecoderNetwork):
    """A network with experts; its last layer skips the experts of rows that are not requested."""

    @torch.no_grad()
    def hidden_rows(self, windows: Windows, pool: PagePool, rows_R: Tensor, store: bool) -> Tensor:
        """Return the hidden states [R, C] of some tokens; with ``store`` cache all windows."""
        return self._run(windows.tokens, self._paged(windows, pool, store=store), rows_R)


def make_network(weights: DecoderWeights, config: DecoderConfig) -> DecoderNetwork:
    """Return the network of these weights."""
    skips = config.n_experts and not config.expert_capacity  # which needs all tokens of a block
    return (ExpertNetwork if skips else DecoderNetwork)(weights, config)


def choose_ops(weights: DecoderWeights, config: DecoderConfig) -> Ops:
    """Return the operations on our CUDA kernels if they apply, else plain torch."""
    if kernels_apply(config, weights.device, weights.dtype) and weights.stacked:
        from orderlens.models.decoder.triton_ops import TritonOps

        return TritonOps(config, weights.device, weights.dtype)
    return TorchOps(config, weights.device, weights.dtype)


def kernels_apply(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether our kernels support this network on the device, if its experts are stacked there."""
    return runs_kernels(device) and dtype in (torch.bfloat16, torch.float16) and shape_supported(config)


def shape_supported(config: DecoderConfig) -> bool:
    """Return whether our kernels support this shape, on a GPU that runs them."""
    if config.n_experts and not experts_supported(config):
        return False
    wide = config.head_width >= 32 or config.n_experts > 0
    return wide and _power_of_two(config.head_width)


def experts_supported(config: DecoderConfig) -> bool:
    """Return whether the experts' kernels support this shape (as all published ones do)."""
    powers = (config.n_experts, config.n_groups, config.head_width, config.rotary_width)
    fits = not (config.hidden_size % 32 or config.expert_width % 32)
    return fits and all(map(_power_of_two, powers))


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
