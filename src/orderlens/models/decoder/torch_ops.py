"""The operations of a Llama-like forward (``Ops``) and its experts, in plain torch for any device and dtype.

``triton_ops`` implements them with our CUDA kernels and computes the same function. Norms compute in float32
and round to the model's dtype before scaling, as published.

A token's experts are the ``n_active`` best by score + bias inside the ``n_kept_groups`` best groups. A
group's score is the sum of its two best. With an expert capacity, they are the best among the experts that
the token's block may use: those with the largest score + bias of any token of the block. Scores are sigmoids
or a softmax of the router's logits. The combine weights are the scores (in some families with bias), divided
by their sum if the family does so, times the routed scale. All in float32.

The loop over experts runs on every device and reads memory-mapped experts only when a token needs them; CPU,
MPS and small GPUs use it. The grouped product needs CUDA, bf16 and stacked experts without scales. Both, and
``kernels/experts``, add a token's experts in a fixed order, so results are deterministic.

Shape letters: N windows, W width, T = N·W tokens, C model width, H heads, D head width, G groups, K experts
per token, A = T·K assignments, E experts, F expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.shapes import SUM_FLOOR, StackedExperts
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.weights import DecoderLayer, DenseFeedForward, Experts, SparseFeedForward
from orderlens.models.engine.layer_parts import linear, rms_norm, rotary_tables, rotated_heads, swiglu
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.transfer import Windows


def visit_experts(
    h_TC: Tensor, block: SparseFeedForward, config: DecoderConfig, valid_NW: Tensor | None = None
) -> Tensor:
    """Return routed plus shared experts [T, C]; ``valid_NW`` is needed with an expert capacity."""
    ids_TK, weights_TK = route(h_TC, block, config, valid_NW)
    experts, on_tensor_cores = block.experts, h_TC.is_cuda and h_TC.dtype == torch.bfloat16
    if isinstance(experts, StackedExperts) and not experts.is_float8 and on_tensor_cores:
        return grouped_product(h_TC, ids_TK, weights_TK, experts)
    return loop_over_experts(h_TC, ids_TK, weights_TK, block.experts)


def route(
    h_TC: Tensor, block: SparseFeedForward, config: DecoderConfig, valid_NW: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ids [T, K] and weights [T, K] of each token's routed and shared experts."""
    chosen = choose_experts(router_logits(h_TC, block.router_EC), block.bias_E, config, valid_NW)
    return with_shared(*chosen, config)


def router_logits(x_TC: Tensor, router_EC: Tensor) -> Tensor:
    """Return float32 logits [T, E].

    Products of bf16 operands are exact in float32, so on CUDA the tensor cores are used if both operands are
    bf16.
    """
    if x_TC.is_cuda and x_TC.dtype == router_EC.dtype == torch.bfloat16:
        return torch.mm(x_TC, router_EC.T, out_dtype=torch.float32)
    return functional.linear(x_TC.float(), router_EC.float())


def choose_experts(
    logits_TE: Tensor, bias_E: Tensor, config: DecoderConfig, valid_NW: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return expert ids [T, K] (int64) and combine weights [T, K] (float32).

    ``valid_NW`` marks the tokens of each block that are not padding; T = N·W.
    """
    scores_TE = logits_TE.sigmoid() if config.router == "sigmoid" else logits_TE.softmax(dim=1)
    selection_TE = scores_TE + bias_E
    if config.expert_capacity:
        assert valid_NW is not None
        allowed_TE = _within_capacity(selection_TE, valid_NW, config.expert_capacity)
    else:
        allowed_TE = _within_groups(selection_TE, config)
    ids_TK = _best(allowed_TE, config.n_active)
    weighed_TE = selection_TE if config.weighted_bias else scores_TE
    return ids_TK, combine_weights(weighed_TE.gather(1, ids_TK), config)


def _within_capacity(selection_TE: Tensor, valid_NW: Tensor, capacity: int) -> Tensor:
    """Return the selection scores [T, E], −∞ for experts that a token's block may not use; ties: lower id."""
    valid_NW1 = valid_NW[..., None]
    selection_NWE = selection_TE.view(*valid_NW.shape, -1)
    best_NE = selection_NWE.masked_fill(~valid_NW1, -torch.inf).amax(dim=1)
    chosen_NB = best_NE.argsort(dim=1, descending=True, stable=True)[:, :capacity]
    kept_NE = torch.zeros_like(best_NE, dtype=torch.bool).scatter_(1, chosen_NB, True)
    return selection_NWE.masked_fill(~kept_NE[:, None], -torch.inf).flatten(0, 1)


def _within_groups(selection_TE: Tensor, config: DecoderConfig) -> Tensor:
    """Return the selection scores [T, E], −∞ outside each token's best groups."""
    selection_TGe = selection_TE.view(len(selection_TE), config.n_groups, -1)
    group_TG = selection_TGe.topk(2, dim=2).values.sum(dim=2)
    kept_TG = torch.zeros_like(group_TG, dtype=torch.bool)
    kept_TG.scatter_(1, _best(group_TG, config.n_kept_groups), True)
    return selection_TGe.masked_fill(~kept_TG[..., None], -torch.inf).flatten(1)


def _best(scores_TX: Tensor, count: int) -> Tensor:
    """Return the indices [T, count] of the largest scores; ties: lower index (CUDA: any, for speed)."""
    if scores_TX.is_cuda:
        return scores_TX.topk(count, dim=1).indices
    return scores_TX.argsort(dim=1, descending=True, stable=True)[:, :count]


def combine_weights(chosen_TK: Tensor, config: DecoderConfig) -> Tensor:
    """Return the weights of the chosen experts from their scores."""
    if config.divides_scores:
        chosen_TK = chosen_TK / (chosen_TK.sum(dim=1, keepdim=True) + SUM_FLOOR)
    return chosen_TK * config.routed_scale


def with_shared(ids_TK: Tensor, weights_TK: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Append the shared experts, which every token uses with weight 1."""
    if not config.n_shared:
        return ids_TK, weights_TK
    shared = torch.arange(config.n_experts, config.n_experts + config.n_shared, device=ids_TK.device)
    shared_TS = shared.to(ids_TK.dtype).expand(len(ids_TK), -1)
    ones_TS = weights_TK.new_ones(len(ids_TK), config.n_shared)
    return torch.cat((ids_TK, shared_TS), dim=1), torch.cat((weights_TK, ones_TS), dim=1)


def loop_over_experts(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: Experts) -> Tensor:
    """Return the weighted sum of each token's experts [T, C], computed one expert at a time."""
    K = ids_TK.shape[1]
    order_A, counts = sort_by_expert(ids_TK, len(experts))
    weight_A = weights_TK.flatten()
    y_TC = torch.zeros(x_TC.shape, device=x_TC.device, dtype=torch.float32)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            chosen = order_A[start : start + count]
            rows = chosen // K
            output = _expert_output(x_TC[rows], experts, expert)
            y_TC.index_add_(0, rows, output.float() * weight_A[chosen, None])
            start += count
    return y_TC.to(x_TC.dtype)


def _expert_output(x_NC: Tensor, experts: Experts, expert: int) -> Tensor:
    """Return one expert's output [N, C]; its matrices are moved to the tokens' device and dtype if needed."""
    gate_FC, up_FC, down_CF = (part.to(x_NC.device, x_NC.dtype) for part in experts.matrices(expert))
    inner = functional.silu(linear(x_NC, gate_FC)) * linear(x_NC, up_FC)
    return linear(inner, down_CF)


def sort_by_expert(ids_TK: Tensor, n_experts: int) -> tuple[Tensor, Tensor]:
    """Return the assignments sorted by expert [A] and their number per expert [E], without a host sync."""
    flat_A = ids_TK.flatten()
    counts_E = torch.zeros(n_experts, dtype=torch.int64, device=flat_A.device)
    counts_E.scatter_add_(0, flat_A.long(), torch.ones_like(flat_A, dtype=torch.int64))
    return flat_A.argsort(stable=True), counts_E


def grouped_product(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: StackedExperts) -> Tensor:
    """Return the weighted sum of each token's experts [T, C] by two grouped matrix products."""
    multiply = grouped_mm()
    K = ids_TK.shape[1]
    order_A, counts_E = sort_by_expert(ids_TK, len(experts))
    ends_E = counts_E.cumsum(0).int()
    inner_AF = swiglu(multiply(x_TC[order_A // K], experts.gate_up_EFC.transpose(1, 2), offs=ends_E))
    sorted_AC = multiply(inner_AF, experts.down_ECF.transpose(1, 2), offs=ends_E)
    y_AC = torch.empty_like(sorted_AC)
    y_AC[order_A] = sorted_AC
    y_TKC = y_AC.view(len(x_TC), K, -1).float()
    return torch.sum(y_TKC * weights_TK[..., None], dim=1).to(x_TC.dtype)


def grouped_mm() -> Callable[..., Any]:
    """Return torch's grouped matrix product, whose name depends on the version."""
    found = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise RuntimeError(f"torch {torch.__version__} has no grouped matrix product")
    return found  # type: ignore[no-any-return]


class Ops(Protocol):
    """The operations of a forward."""

    gathers: bool

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return the number of parts into which attention over a prefix is split (part of a graph's key)."""

    def add_norm(self, x_TC: Tensor, delta_TC: Tensor | None, weight_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + delta (x itself without delta) and its norm."""

    def attend_pages(
        self, h_TC: Tensor, layer: DecoderLayer, windows: Windows, pool: PagePool, index: int, store: bool
    ) -> Tensor:
        """Return attention outputs [T, H·D] over each window's cached prefix and itself."""

    def attend_canvas(self, h_TC: Tensor, layer: DecoderLayer, count: int) -> Tensor:
        """Return attention outputs [T, H·D] inside ``count`` canvases of equal width."""

    def after_attention(
        self,
        x_TC: Tensor,
        attended_TO: Tensor,
        layer: DecoderLayer,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after the rest of the layer, and its norm under the next layer's weight.

        ``valid_NW`` marks the tokens that are not padding; only routing by blocks needs it.
        """


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
        q, k, v = _heads(h_TC, layer, windows.positions, self.tables, self.config)
        if store:
            store_keys(k, v, index, windows, pool)
        return _flat(attend(q, k, v, index, windows, pool))

    def attend_canvas(self, h_TC: Tensor, layer: DecoderLayer, count: int) -> Tensor:
        return attend_canvas(h_TC, layer, count, self.tables, self.config)

    def after_attention(
        self,
        x_TC: Tensor,
        attended_TO: Tensor,
        layer: DecoderLayer,
        next_norm_C: Tensor,
        valid_NW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x_TC, h_TC = self.add_norm(x_TC, linear(attended_TO, layer.out_CO), layer.post_norm_C)
        block = layer.feed_forward
        if isinstance(block, DenseFeedForward):
            y_TC = linear(swiglu(linear(h_TC, block.gate_up_FC)), block.down_CF)
        else:
            y_TC = visit_experts(h_TC, block, self.config, valid_NW)
        return self.add_norm(x_TC, y_TC, next_norm_C)


def attend_canvas(
    h_TC: Tensor, layer: DecoderLayer, count: int, tables: tuple[Tensor, Tensor], config: DecoderConfig
) -> Tensor:
    """Return attention outputs [T, H·D] inside ``count`` canvases of equal width."""
    width = len(h_TC) // count
    positions_NW = torch.arange(width, device=h_TC.device).expand(count, width)
    q, k, v = _heads(h_TC, layer, positions_NW, tables, config)
    return _flat(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def _heads(
    h_TC: Tensor,
    layer: DecoderLayer,
    positions_NW: Tensor,
    tables: tuple[Tensor, Tensor],
    config: DecoderConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    fused_TO = linear(h_TC, layer.qkv_OC, layer.qkv_bias_O)
    return rotated_heads(fused_TO, layer, tables, positions_NW, config)


def _flat(o_NHWD: Tensor) -> Tensor:
    """Return [N·W, H·D]."""
    return o_NHWD.transpose(1, 2).flatten(2).flatten(0, 1)
