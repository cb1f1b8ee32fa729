"""The network's building blocks on our CUDA kernels (bf16 or fp16, stacked experts).

Computes what ``TorchOps`` computes, in about ten launches per layer and without a word to the host, so that
a whole forward can be recorded as a CUDA graph. Plain projections stay with the vendor library, but for few
tokens: there they come in parts of their sums, which the kernels behind them add.

Shape letters: T tokens, C model width, O outputs of a projection, E experts, S parts of a sum.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.attention import attend, split_count
from orderlens.kernels.experts.experts import choose_tiling, combine, expert_rows
from orderlens.kernels.experts.route import choose_experts
from orderlens.kernels.few import WIDE, applies, product_parts
from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.queries_keys import prepare_heads
from orderlens.kernels.rowwise import add_rms_norm, swiglu
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.engine.layer_parts import rotary_tables
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import Windows
from orderlens.models.llada2 import routing
from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.torch_ops import dense
from orderlens.models.llada2.weights import DenseWeights, LayerWeights, SparseWeights


class TritonOps:
    """The CUDA implementation."""

    def __init__(self, config: LLaDA2Config, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.tables = rotary_tables(*config.rotary, device, dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return how many parts the attention over the prefix is cut into."""
        return split_count(n_windows * self.config.n_kv_heads, longest_start)

    def norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        """Return the normalised and scaled activations."""
        return add_rms_norm(x_TC, None, weight_C, self.config.norm_eps)[1]

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta and its norm."""
        return add_rms_norm(x_TC, delta_TC, weight_C, self.config.norm_eps)

    def attention(
        self, h_TC: Tensor, index: int, layer: LayerWeights, windows: Windows, pool: PagePool, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] before the output projection; ``store`` also caches the keys."""
        product_TO = projected(h_TC, layer.qkv_OC)
        parts_STO = product_TO if product_TO.dim() == 3 else None
        fused_TO = product_TO if parts_STO is None else h_TC.new_empty(product_TO.shape[1:])
        qk_THD = prepare_heads(
            fused_TO, layer, self.tables, windows, pool, index, self.config, store, parts_STO
        )
        splits = self.splits(windows.count, windows.longest_start)
        return attend(qk_THD, fused_TO, windows, pool, index, self.config, splits)

    def after_attention(
        self, x_TC: Tensor, attended_TO: Tensor, layer: LayerWeights
    ) -> tuple[Tensor, Tensor]:
        """Return x + output projection(attended) and its norm."""
        return self.add_norm(x_TC, projected(attended_TO, layer.out_CO), layer.post_norm_C)

    def feed_forward(
        self, x_TC: Tensor, h_TC: Tensor, layer: LayerWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + feed-forward(h) and its norm under the next layer's weight."""
        block = layer.feed_forward
        if isinstance(block, DenseWeights):
            return self.add_norm(x_TC, dense_product(h_TC, block), next_norm_C)
        return self.sparse(x_TC, h_TC, block, next_norm_C)

    def sparse(
        self, x_TC: Tensor, h_TC: Tensor, block: SparseWeights, next_norm_C: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + experts(h) and its norm."""
        assert isinstance(block.experts, StackedExperts)
        logits_TE = router_logits(h_TC, block.router_EC)
        ids_TK, weights_TK, visits = choose_experts(logits_TE, block.bias_E, self.config)
        tiling = choose_tiling(ids_TK.numel(), len(block.experts), gpu_of(h_TC.device))
        y_AC = expert_rows(h_TC, block.experts, ids_TK, visits, tiling)
        return combine(y_AC, weights_TK, x_TC, next_norm_C, self.config.norm_eps)


def projected(x_TC: Tensor, weight_OC: Tensor) -> Tensor:
    """Return x @ weightᵀ [T, O], or for few tokens its float32 parts [S, T, O]."""
    if applies(x_TC, weight_OC):
        return product_parts(x_TC, weight_OC)
    return functional.linear(x_TC, weight_OC)


def dense_product(h_TC: Tensor, block: DenseWeights) -> Tensor:
    """Return a plain SwiGLU feed-forward [T, C], or for few tokens its float32 parts [S, T, C]."""
    if applies(h_TC, block.gate_up_FC):
        inner_TF = swiglu(product_parts(h_TC, block.gate_up_FC, WIDE), h_TC.dtype)
        return product_parts(inner_TF, block.down_CF, WIDE)
    return dense(h_TC, block)


def router_logits(x_TC: Tensor, router_EC: Tensor) -> Tensor:
    """Return float32 logits [T, E], or for few tokens their parts [S, T, E]."""
    if applies(x_TC, router_EC):
        return product_parts(x_TC, router_EC)
    return routing.router_logits(x_TC, router_EC)
