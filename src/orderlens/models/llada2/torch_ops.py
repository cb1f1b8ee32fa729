"""The network's building blocks in plain torch: any device, any dtype.

The counterpart with our own CUDA kernels is ``triton_ops``; both satisfy ``Ops`` and compute the same
function. Norms compute in float32 and round to the model's dtype before scaling, as published.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.experts import can_group, grouped_product, loop_over_experts, swiglu
from orderlens.models.llada2.routing import choose_experts, router_logits, with_shared
from orderlens.models.llada2.weights import DenseWeights, LayerWeights, SparseWeights, StackedExperts
from orderlens.models.torch.pages import PAGE, PagePool
from orderlens.models.torch.rotary import rotary_tables, rotate
from orderlens.models.torch.window import Windows


class Ops(Protocol):
    """What a forward is made of."""

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return how many parts the attention over the prefix is cut into (part of a graph's shape)."""
        ...

    def norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        """Return the normalised and scaled activations."""
        ...

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        ...

    def attention(
        self, h_TC: Tensor, index: int, layer: LayerWeights, windows: Windows, pool: PagePool, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] before the output projection; ``store`` also caches the keys."""
        ...

    def feed_forward(
        self, x_TC: Tensor, h_TC: Tensor, layer: LayerWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight."""
        ...


class TorchOps:
    """The portable implementation."""

    def __init__(self, config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.cos, self.sin = rotary_tables(*config.rotary, device, dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return 1: the portable attention is one piece."""
        del n_windows, longest_start
        return 1

    def norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        """Return the normalised and scaled activations."""
        scale = torch.rsqrt(x_TC.float().pow(2).mean(dim=-1, keepdim=True) + self.config.norm_eps)
        return (x_TC.float() * scale).to(x_TC.dtype) * weight_C

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        total_TC = x_TC + delta_TC
        return total_TC, self.norm(total_TC, weight_C)

    def attention(
        self, h_TC: Tensor, index: int, layer: LayerWeights, windows: Windows, pool: PagePool, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] before the output projection; ``store`` also caches the keys."""
        config = self.config
        fused = functional.linear(h_TC, layer.qkv_OC).view(
            windows.count, windows.width, -1, config.head_width
        )
        first_k, first_v = config.n_heads, config.n_heads + config.n_kv_heads
        q, k, v = (part.transpose(1, 2) for part in torch.tensor_split(fused, (first_k, first_v), dim=2))
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            q, k = self.norm(q, layer.q_norm_D), self.norm(k, layer.k_norm_D)
        positions_NW = windows.positions.clamp_max(config.max_positions - 1)  # padding may run past the end
        cos, sin = self.cos[positions_NW][:, None], self.sin[positions_NW][:, None]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if store:
            store_keys(k, v, index, windows, pool)
        o_NHWD = attend(q, k, v, index, windows, pool)
        return o_NHWD.transpose(1, 2).reshape(len(h_TC), -1)

    def feed_forward(
        self, x_TC: Tensor, h_TC: Tensor, layer: LayerWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight."""
        block = layer.feed_forward
        y_TC = dense(h_TC, block) if isinstance(block, DenseWeights) else self.sparse(h_TC, block)
        return self.add_norm(x_TC, y_TC, next_norm_C)

    def sparse(self, h_TC: Tensor, block: SparseWeights) -> Tensor:
        """Return routed plus shared experts [T, C]."""
        chosen = choose_experts(router_logits(h_TC, block.router_EC), block.bias_E, self.config)
        ids_TK, weights_TK = with_shared(*chosen, self.config)
        if can_group(h_TC, block.experts) and isinstance(block.experts, StackedExperts):
            return grouped_product(h_TC, ids_TK, weights_TK, block.experts)
        return loop_over_experts(h_TC, ids_TK, weights_TK, block.experts)


def dense(h_TC: Tensor, block: DenseWeights) -> Tensor:
    """Return a plain SwiGLU feed-forward."""
    return functional.linear(swiglu(functional.linear(h_TC, block.gate_up_FC)), block.down_CF)


def store_keys(k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool) -> None:
    """Write the windows' keys and values into their slots' pages."""
    valid_NW = torch.arange(windows.width, device=k_NKWD.device) < windows.widths[:, None]
    positions_NW = windows.positions
    row_T = windows.rows[:, None].expand_as(positions_NW)[valid_NW]
    position_T = positions_NW[valid_NW]
    page_T = pool.table_RX[row_T.long(), (position_T // PAGE).long()].long()
    inside_T = (position_T % PAGE).long()
    pool.keys[index][page_T, :, inside_T] = k_NKWD.transpose(1, 2)[valid_NW]
    pool.values[index][page_T, :, inside_T] = v_NKWD.transpose(1, 2)[valid_NW]


def attend(
    q_NHWD: Tensor, k_NKWD: Tensor, v_NKWD: Tensor, index: int, windows: Windows, pool: PagePool
) -> Tensor:
    """Return attention outputs [N, H, W, D] over each window's cached prefix and the window itself."""
    n_pages = -(-windows.longest_start // PAGE)
    pages_NX = pool.table_RX[windows.rows.long(), :n_pages].long()
    past_k, past_v = (_unpaged(pages_PKSD[pages_NX]) for pages_PKSD in (pool.keys[index], pool.values[index]))
    keys, values = torch.cat((past_k, k_NKWD), dim=2), torch.cat((past_v, v_NKWD), dim=2)
    device = q_NHWD.device
    seen_past = torch.arange(n_pages * PAGE, device=device) < windows.starts[:, None]
    seen_self = torch.arange(windows.width, device=device) < windows.widths[:, None]
    mask_N11X = torch.cat((seen_past, seen_self), dim=1)[:, None, None]
    return functional.scaled_dot_product_attention(q_NHWD, keys, values, attn_mask=mask_N11X, enable_gqa=True)


def _unpaged(pages_NXKSD: Tensor) -> Tensor:
    """Return [N, K, X·S, D]."""
    return pages_NXKSD.transpose(1, 2).flatten(2, 3)
