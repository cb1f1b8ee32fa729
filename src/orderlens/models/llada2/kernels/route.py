# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped expert choice, one program per token; shared experts are appended with weight 1.

Shape letters: T tokens, E experts, K = active + shared choices of a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.models.llada2.config import LLaDA2Config
from orderlens.models.llada2.routing import SUM_FLOOR


@triton.jit
def _route_kernel(
    logits,
    bias,
    ids,
    weights,
    scale,
    floor,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    ACTIVE: tl.constexpr,
    SHARED: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Choose the experts of one token; grid (T,), one warp.

    Reads logits [T, E] and bias [E] (float32); writes ids [T, K] (int32) and weights [T, K] (float32). Groups
    are ranked by the sum of their two best biased scores, and KEPT of them stay; among their experts the best
    ACTIVE are taken one by one, the lowest id among equals. The bias only chooses: weights are the plain
    sigmoids, divided by their sum and scaled. One warp holds all E scores.
    """
    token = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = EXPERTS // GROUPS
    expert = tl.arange(0, EXPERTS)
    sigmoid = tl.sigmoid(tl.load(logits + token * EXPERTS + expert))
    selection = sigmoid + tl.load(bias + expert)

    grid = tl.reshape(selection, (GROUPS, size))
    place = tl.arange(0, size)[None, :]
    first, where = tl.max(grid, axis=1, return_indices=True)
    second = tl.max(tl.where(place == where[:, None], float("-inf"), grid), axis=1)
    group = tl.arange(0, GROUPS)
    group_score = first + second
    kept = tl.zeros([GROUPS], tl.int32)
    for _ in tl.static_range(KEPT):
        best = tl.argmax(group_score, axis=0)
        kept = tl.where(group == best, 1, kept)
        group_score = tl.where(group == best, float("-inf"), group_score)

    allowed = tl.reshape(tl.where(kept[:, None] > 0, grid, float("-inf")), (EXPERTS,))
    slot = tl.arange(0, SLOTS)
    chosen = tl.where(slot < ACTIVE + SHARED, EXPERTS + slot - ACTIVE, 0)
    weight = tl.where(slot < ACTIVE + SHARED, 1.0, 0.0)
    total = 0.0
    for k in tl.static_range(ACTIVE):
        best = tl.argmax(allowed, axis=0)
        picked = tl.sum(tl.where(expert == best, sigmoid, 0.0), axis=0)
        chosen = tl.where(slot == k, best, chosen)
        weight = tl.where(slot == k, picked, weight)
        total += picked
        allowed = tl.where(expert == best, float("-inf"), allowed)
    if ACTIVE > 1:
        weight = tl.where(slot < ACTIVE, weight / (total + floor), weight)
    weight = tl.where(slot < ACTIVE, weight * scale, weight)
    target = token * (ACTIVE + SHARED) + slot
    tl.store(ids + target, chosen.to(tl.int32), mask=slot < ACTIVE + SHARED)
    tl.store(weights + target, weight, mask=slot < ACTIVE + SHARED)


def choose_experts(logits_TE: Tensor, bias_E: Tensor, config: LLaDA2Config) -> tuple[Tensor, Tensor]:
    """Return expert ids [T, K] (int32) and combine weights [T, K] (float32), shared experts last."""
    tokens, slots = len(logits_TE), config.n_active + config.n_shared
    ids_TK = torch.empty(tokens, slots, device=logits_TE.device, dtype=torch.int32)
    weights_TK = torch.empty(tokens, slots, device=logits_TE.device, dtype=torch.float32)
    _route_kernel[(tokens,)](
        logits_TE,
        bias_E,
        ids_TK,
        weights_TK,
        config.routed_scale,
        SUM_FLOOR,
        EXPERTS=config.n_experts,
        GROUPS=config.n_groups,
        KEPT=config.n_kept_groups,
        ACTIVE=config.n_active,
        SHARED=config.n_shared,
        SLOTS=triton.next_power_of_2(slots),
        num_warps=1,
    )
    return ids_TK, weights_TK
