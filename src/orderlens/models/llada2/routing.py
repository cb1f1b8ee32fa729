"""Choosing experts: grouped top-k of biased sigmoids, combined with the unbiased ones.

A token's experts are the ``n_active`` best by sigmoid + bias inside the ``n_kept_groups`` best groups, a
group's score being the sum of its two best. Their combine weights are the sigmoids without bias, divided by
their sum, times the routed scale. All in float32.

Shape letters: T tokens, E experts, G groups, K active experts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.shapes import SUM_FLOOR
from orderlens.models.llada2.config import LLaDA2Config


def router_logits(x_TC: Tensor, router_EC: Tensor) -> Tensor:
    """Return float32 logits [T, E].

    bf16 operands with float32 accumulation multiply exactly what float32 operands would, so on CUDA the
    matrix unit is used when both sides are bf16.
    """
    if x_TC.is_cuda and x_TC.dtype == router_EC.dtype == torch.bfloat16:
        return torch.mm(x_TC, router_EC.T, out_dtype=torch.float32)
    return functional.linear(x_TC.float(), router_EC.float())


def choose_experts(logits_TE: Tensor, bias_E: Tensor, config: LLaDA2Config) -> tuple[Tensor, Tensor]:
    """Return expert ids [T, K] (int64) and combine weights [T, K] (float32)."""
    sigmoid_TE = logits_TE.sigmoid()
    selection_TGe = (sigmoid_TE + bias_E).view(len(logits_TE), config.n_groups, -1)
    group_TG = selection_TGe.topk(2, dim=2).values.sum(dim=2)
    kept_TG = torch.zeros_like(group_TG, dtype=torch.bool)
    kept_TG.scatter_(1, group_TG.topk(config.n_kept_groups, dim=1).indices, True)
    allowed_TE = selection_TGe.masked_fill(~kept_TG[..., None], -torch.inf).flatten(1)
    ids_TK = allowed_TE.topk(config.n_active, dim=1).indices
    return ids_TK, combine_weights(sigmoid_TE.gather(1, ids_TK), config)


def combine_weights(chosen_TK: Tensor, config: LLaDA2Config) -> Tensor:
    """Return the weights of the chosen experts from their unbiased sigmoids."""
    if config.n_active > 1:
        chosen_TK = chosen_TK / (chosen_TK.sum(dim=1, keepdim=True) + SUM_FLOOR)
    return chosen_TK * config.routed_scale


def with_shared(ids_TK: Tensor, weights_TK: Tensor, config: LLaDA2Config) -> tuple[Tensor, Tensor]:
    """Append the shared experts, which every token visits with weight 1."""
    if not config.n_shared:
        return ids_TK, weights_TK
    shared = torch.arange(config.n_experts, config.n_experts + config.n_shared, device=ids_TK.device)
    shared_TS = shared.to(ids_TK.dtype).expand(len(ids_TK), -1)
    ones_TS = weights_TK.new_ones(len(ids_TK), config.n_shared)
    return torch.cat((ids_TK, shared_TS), dim=1), torch.cat((weights_TK, ones_TS), dim=1)
