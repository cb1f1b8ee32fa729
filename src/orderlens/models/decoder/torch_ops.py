"""The operations of a Llama-like forward (``Ops``), implemented in plain torch for any device and dtype.

``triton_ops`` implements them with our CUDA kernels and computes the same function. Norms compute in float32
and round to the model's dtype before scaling, as published.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, D head width.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.experts import visit_experts
from orderlens.models.decoder.weights import DecoderLayer, DenseFeedForward, SparseFeedForward
from orderlens.models.engine.layer_parts import linear, rms_norm, rotary_tables, rotated_heads, swiglu
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.window import Windows

FeedForward: TypeAlias = DenseFeedForward | SparseFeedForward


class Ops(Protocol):
    """The operations of a forward."""

    gathers: bool

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return the number of parts into which attention over a prefix is split (part of a graph's key)."""
        ...

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta (x itself without delta) and its norm."""
        ...

    def attend_pages(
        self, h_TC: Tensor, layer: DecoderLayer, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] over each window's cached prefix and itself."""
        ...

    def attend_canvas(self, h_TC: Tensor, layer: DecoderLayer, count: int) -> Tensor:
        """Return attention outputs [T, H·D] inside ``count`` canvases of equal width."""
        ...

    def after_attention(
        self, x_TC: Tensor, attended_TO: Tensor, layer: DecoderLayer
    ) -> tuple[Tensor, Tensor]:
        """Return x + output projection(attended) and its norm."""
        ...

    def feed_forward(
        self,
        x_TC: Tensor,
        h_TC: Tensor,
        block: FeedForward,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight.

        ``valid_NW`` marks the tokens that are not padding; only routing by blocks needs it.
        """
        ...


def rotary_tables_of(
    config: DecoderConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of all positions, in the family's precision of rotary encoding."""
    kind = torch.float32 if config.exact_rotary else dtype
    sizes = config.rotary_width, config.rope_theta, config.max_positions
    return rotary_tables(*sizes, device, kind, config.rotary_factors)


class TorchOps:
    """The portable implementation."""

    gathers = True

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.tables = config, rotary_tables_of(config, device, dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        del n_windows, longest_start
        return 1

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        total_TC = x_TC if delta_TC is None else x_TC + delta_TC
        return total_TC, rms_norm(total_TC, weight_C, self.config.norm_eps)

    def attend_pages(
        self, h_TC: Tensor, layer: DecoderLayer, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        q, k, v = self._heads(h_TC, layer, windows.positions)
        if store:
            store_keys(k, v, index, windows, pool)
        return _flat(attend(q, k, v, index, windows, pool))

    def attend_canvas(self, h_TC: Tensor, layer: DecoderLayer, count: int) -> Tensor:
        width = len(h_TC) // count
        positions_NW = torch.arange(width, device=h_TC.device).expand(count, width)
        q, k, v = self._heads(h_TC, layer, positions_NW)
        return _flat(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))

    def _heads(
        self, h_TC: Tensor, layer: DecoderLayer, positions_NW: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        fused_TO = linear(h_TC, layer.qkv_OC, layer.qkv_bias_O)
        return rotated_heads(fused_TO, layer, self.tables, positions_NW, self.config)

    def after_attention(
        self, x_TC: Tensor, attended_TO: Tensor, layer: DecoderLayer
    ) -> tuple[Tensor, Tensor]:
        return self.add_norm(x_TC, linear(attended_TO, layer.out_CO), layer.post_norm_C)

    def feed_forward(
        self,
        x_TC: Tensor,
        h_TC: Tensor,
        block: FeedForward,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(block, DenseFeedForward):
            y_TC = linear(swiglu(linear(h_TC, block.gate_up_FC)), block.down_CF)
        else:
            y_TC = visit_experts(h_TC, block, self.config, valid_NW)
        return self.add_norm(x_TC, y_TC, next_norm_C)


def _flat(o_NHWD: Tensor) -> Tensor:
    """Return [N·W, H·D]."""
    return o_NHWD.transpose(1, 2).flatten(2).flatten(0, 1)
