"""The operations of a Llama-like forward on our CUDA kernels (bf16 or fp16, stacked experts).

Computes the same function as ``TorchOps``, in about ten launches per layer and without host synchronisation,
so that a forward can be recorded as a CUDA graph. Plain projections use the vendor library.

Shape letters: T tokens, C model width, O outputs of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.attention import attend, attend_canvas, split_count
from orderlens.kernels.experts.experts import choose_tiling, combine, expert_rows
from orderlens.kernels.experts.route import choose_experts
from orderlens.kernels.experts.tiling import Visits
from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.pairs import Pairs
from orderlens.kernels.rowwise import add_rms_norm, prepare_heads, swiglu
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder import torch_ops
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.torch_ops import rotary_tables_of, route, router_logits
from orderlens.models.decoder.weights import DecoderLayer, SparseFeedForward
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import Windows

FEW_TOKENS = 512
"""Up to this number of tokens, a dense network's projections get a zero bias (benchmarks/RESULTS.md)."""


def routing_supported(config: DecoderConfig) -> bool:
    """Return whether our routing kernel supports this router; other routers run in plain torch."""
    plain = config.router == "sigmoid" and config.normalised
    return plain and not config.weighted_bias and not config.expert_capacity


class TritonOps:
    """The CUDA implementation."""

    gathers = False

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.tables = config, rotary_tables_of(config, device, dtype)
        self._adds_zeros = config.n_experts == 0
        self._zeros = torch.zeros(max(config.qkv_width, config.hidden_size), device=device, dtype=dtype)

    def splits(self, n_windows: int, longest_start: int) -> int:
        return split_count(n_windows * self.config.n_kv_heads, longest_start)

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x_TC, delta_TC, weight_C, self.config.norm_eps)

    def attend_pages(
        self, h_TC: Tensor, layer: DecoderLayer, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        fused_TO = self.project(h_TC, layer.qkv_OC, layer.qkv_bias_O)
        qk_THD = prepare_heads(fused_TO, layer, self.tables, windows, pool, index, self.config, store)
        splits = self.splits(windows.count, windows.longest_start)
        return attend(qk_THD, fused_TO, windows, pool, index, self.config, splits)

    def attend_canvas(self, h_TC: Tensor, layer: DecoderLayer, count: int) -> Tensor:
        if layer.q_norm_D is not None:  # which our kernel does not know
            return torch_ops.attend_canvas(h_TC, layer, count, self.tables, self.config)
        fused_TO = self.project(h_TC, layer.qkv_OC, layer.qkv_bias_O)
        return attend_canvas(fused_TO, count, self.tables, self.config)

    def after_attention(
        self,
        x_TC: Tensor,
        attended_TO: Tensor,
        layer: DecoderLayer,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        delta_TC, block, pairs = self.project(attended_TO, layer.out_CO), layer.feed_forward, None
        if isinstance(block, SparseFeedForward) and block.multiplies_pairs:
            pairs = Pairs.empty(len(x_TC), x_TC.shape[1], 1, x_TC.device)
        x_TC, h_TC = add_rms_norm(x_TC, delta_TC, layer.post_norm_C, self.config.norm_eps, pairs)
        if isinstance(block, SparseFeedForward):
            return self.sparse(x_TC, h_TC, block, next_norm_C, valid_NW, pairs)
        inner_TF = swiglu(functional.linear(h_TC, block.gate_up_FC))
        return self.add_norm(x_TC, functional.linear(inner_TF, block.down_CF), next_norm_C)

    def sparse(
        self,
        x_TC: Tensor,
        h_TC: Tensor,
        block: SparseFeedForward,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
        pairs: Pairs | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return x + experts(h) and its norm; ``pairs`` are h, for float8 units."""
        experts, gpu = block.experts, gpu_of(h_TC.device)
        assert isinstance(experts, StackedExperts)
        if routing_supported(self.config):
            logits_TE = router_logits(h_TC, block.router_EC)
            ids_TK, weights_TK, visits = choose_experts(logits_TE, block.bias_E, self.config)
        else:
            ids_TK, weights_TK = route(h_TC, block, self.config, valid_NW)
            ids_TK, visits = ids_TK.int(), Visits.of(ids_TK, len(experts))
        if pairs is not None:
            from orderlens.kernels.experts.float8_hopper import float8_rows

            y_AC = float8_rows(pairs, experts, ids_TK, visits, h_TC.dtype)
        else:
            tiling = choose_tiling(ids_TK.numel(), len(experts), gpu, float8=experts.is_float8)
            y_AC = expert_rows(h_TC, experts, ids_TK, visits, tiling)
        return combine(y_AC, weights_TK, x_TC, next_norm_C, self.config.norm_eps)

    def project(self, x_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return x · weightᵀ + bias [T, O] of the attention's projections.

        For products with a bias, torch calls another interface of the vendor library. For few tokens it
        selects faster kernels for a dense network's matrices, so a missing bias becomes zeros.
        """
        if bias_O is None and self._adds_zeros and len(x_TC) <= FEW_TOKENS:
            bias_O = self._zeros[: len(weight_OC)]
        return functional.linear(x_TC, weight_OC, bias_O)
