# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Grouped expert routing: one program per segment of tokens; it also writes the marks and counts for sorting.

Shared experts are appended with weight 1; every token uses them.

Shape letters: T tokens, E routed experts, K = active + shared choices of a token; N words, S segments and R
columns of marks and counts as in ``visits``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.experts.tiling import Visits, bits_set
from orderlens.kernels.shapes import SUM_FLOOR, RouterShape

WARPS = 8
"""Maximum warps of a program; each handles one or more tokens of a word."""


@triton.jit
def _best_two(first, second, other_first, other_second):
    """Return the two largest of two pairs, each of them in order."""
    least = tl.minimum(first, other_first)
    return tl.maximum(first, other_first), tl.maximum(least, tl.maximum(second, other_second))


@triton.jit
def _group_scores(grid):
    """Return the sums of the two best of every group [tokens, groups, experts of a group]."""
    first, second = tl.reduce((grid, tl.full(grid.shape, float("-inf"), tl.float32)), 2, _best_two)
    return first + second


@triton.jit
def _kept_groups(low, high, KEPT: tl.constexpr):
    """Return which lower and which higher groups are among the KEPT best; ties go to the lowest group."""
    tokens: tl.constexpr = low.shape[0]
    sets: tl.constexpr = low.shape[1]
    score = tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), (tokens, 2 * sets))
    group = tl.arange(0, 2 * sets)
    mine, other = score[:, :, None], score[:, None, :]
    better = (other > mine) | ((other == mine) & (group[None, None, :] < group[None, :, None]))
    kept = tl.sum(better.to(tl.int32), axis=2) < KEPT
    return tl.split(tl.permute(tl.reshape(kept, (tokens, 2, sets)), (0, 2, 1)))


@triton.jit
def _ordered(x):
    """Return integers in the order of these float32, none of them the smallest integer.

    A warp finds its largest integer, but not its largest float, in one instruction.
    """
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _route_kernel(
    logits,
    bias,
    ids,
    weights,
    marks,
    counts,
    tokens,
    words,
    scale,
    floor,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    ACTIVE: tl.constexpr,
    SHARED: tl.constexpr,
    SLOTS: tl.constexpr,
    WORD: tl.constexpr,
    ROW: tl.constexpr,
    SPARE: tl.constexpr,
):
    """Choose the experts of one segment's tokens, a word at a time; grid (S,).

    Reads logits [T, E] and bias [E] (float32); writes ids [T, K] (int32), weights [T, K]
    (float32), marks [N, R] and counts [S, R]. Groups are ranked by the sum of their two best biased scores,
    and the best KEPT remain; from their experts the best ACTIVE are chosen, with ties to the lowest id. The
    bias only affects the choice: weights are the plain sigmoids, divided by their sum and scaled.

    Scores are stored in two halves, so that a warp holds whole rows (128 float32 per load). A token then
    belongs to one warp, and only the marks are exchanged between warps.
    """
    half: tl.constexpr = EXPERTS // 2
    sets: tl.constexpr = GROUPS // 2
    gone: tl.constexpr = -(2**31)
    e, t = tl.arange(0, half), tl.arange(0, WORD)
    slot, spare = tl.arange(0, SLOTS)[None, :], tl.arange(0, SPARE)
    low, high = e[None, :], (half + e)[None, :]
    bias_low, bias_high = tl.load(bias + low), tl.load(bias + high)
    count_low, count_high = tl.zeros([half], tl.int32), tl.zeros([half], tl.int32)
    for nth in range(words):
        word = tl.program_id(0) * words + nth
        token = word * WORD + t
        real = token < tokens
        row = logits + (token.to(tl.int64) * EXPERTS)[:, None]
        sigmoid_low = tl.sigmoid(tl.load(row + low, mask=real[:, None], other=0.0))
        sigmoid_high = tl.sigmoid(tl.load(row + high, mask=real[:, None], other=0.0))
        key_low, key_high = sigmoid_low + bias_low, sigmoid_high + bias_high
        if KEPT < GROUPS:
            grid_low = tl.reshape(key_low, (WORD, sets, half // sets))
            grid_high = tl.reshape(key_high, (WORD, sets, half // sets))
            kept_low, kept_high = _kept_groups(_group_scores(grid_low), _group_scores(grid_high), KEPT)
            key_low = tl.reshape(tl.where(kept_low[:, :, None], grid_low, float("-inf")), (WORD, half))
            key_high = tl.reshape(tl.where(kept_high[:, :, None], grid_high, float("-inf")), (WORD, half))
        key_low, key_high = _ordered(key_low), _ordered(key_high)
        bits_low = sigmoid_low.to(tl.int32, bitcast=True)
        bits_high = sigmoid_high.to(tl.int32, bitcast=True)

        chosen = tl.where(slot < ACTIVE + SHARED, EXPERTS + slot - ACTIVE, 0) + tl.zeros((WORD, 1), tl.int32)
        weight = tl.where(slot < ACTIVE + SHARED, 1.0, 0.0) + tl.zeros((WORD, 1), tl.float32)
        total = tl.zeros([WORD], tl.float32)
        for k in tl.static_range(ACTIVE):
            most = tl.max(tl.maximum(key_low, key_high), axis=1)[:, None]
            where_high = tl.where(key_high == most, high, EXPERTS)
            best = tl.min(tl.where(key_low == most, low, where_high), axis=1)
            at_low, at_high = low == best[:, None], high == best[:, None]
            key_low, key_high = tl.where(at_low, gone, key_low), tl.where(at_high, gone, key_high)
            bits = tl.max(tl.where(at_low, bits_low, tl.where(at_high, bits_high, 0)), axis=1)
            picked = bits.to(tl.float32, bitcast=True)  # a sigmoid is not negative: its bits are in order
            chosen = tl.where(slot == k, best[:, None], chosen)
            weight = tl.where(slot == k, picked[:, None], weight)
            total += picked
        if ACTIVE > 1:
            weight = tl.where(slot < ACTIVE, weight / (total + floor)[:, None], weight)
        weight = tl.where(slot < ACTIVE, weight * scale, weight)
        target = (token.to(tl.int64) * (ACTIVE + SHARED))[:, None] + slot
        written = real[:, None] & (slot < ACTIVE + SHARED)
        tl.store(ids + target, chosen, mask=written)
        tl.store(weights + target, weight, mask=written)

        bit = tl.where(real, 1 << t, 0)
        mark_low = tl.sum(tl.where(key_low == gone, bit[:, None], 0), axis=0)
        mark_high = tl.sum(tl.where(key_high == gone, bit[:, None], 0), axis=0)
        count_low += bits_set(mark_low)
        count_high += bits_set(mark_high)
        begun = word * WORD < tokens
        own = marks + word * ROW
        tl.store(own + e, mark_low, mask=begun)
        tl.store(own + half + e, mark_high, mask=begun)
        if ROW > EXPERTS:
            everyone = tl.where(spare < SHARED, tl.sum(bit, axis=0), 0)
            tl.store(own + EXPERTS + spare, everyone, mask=(spare < ROW - EXPERTS) & begun)

    counts += tl.program_id(0) * ROW
    tl.store(counts + e, count_low.to(counts.dtype.element_ty))
    tl.store(counts + half + e, count_high.to(counts.dtype.element_ty))
    if ROW > EXPERTS:
        held = tl.minimum(tokens - tl.program_id(0) * (words * WORD), words * WORD)
        visits = tl.where(spare < SHARED, held, 0).to(counts.dtype.element_ty)
        tl.store(counts + EXPERTS + spare, visits, mask=spare < ROW - EXPERTS)


def choose_experts(logits_TE: Tensor, bias_E: Tensor, config: RouterShape) -> tuple[Tensor, Tensor, Visits]:
    """Return expert ids [T, K] (int32), combine weights [T, K] (float32) and visits; shared experts last."""
    n_tokens, slots, device = len(logits_TE), config.n_active + config.n_shared, logits_TE.device
    visits = Visits.empty(n_tokens, config.n_experts + config.n_shared, device)
    segments, row = visits.counts_SR.shape
    ids_TK = torch.empty(n_tokens, slots, device=device, dtype=torch.int32)
    weights_TK = torch.empty(n_tokens, slots, device=device, dtype=torch.float32)
    _route_kernel[(segments,)](
        logits_TE,
        bias_E,
        ids_TK,
        weights_TK,
        visits.marks_NR,
        visits.counts_SR,
        n_tokens,
        visits.words,
        config.routed_scale,
        SUM_FLOOR,
        EXPERTS=config.n_experts,
        GROUPS=config.n_groups,
        KEPT=config.n_kept_groups,
        ACTIVE=config.n_active,
        SHARED=config.n_shared,
        SLOTS=triton.next_power_of_2(slots),
        WORD=visits.word,
        ROW=row,
        SPARE=triton.next_power_of_2(max(1, row - config.n_experts)),
        num_warps=min(visits.word, WARPS),
    )
    return ids_TK, weights_TK, visits
