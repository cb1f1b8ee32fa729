# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Drawing a token when the vocabulary was only seen panel by panel.

The draw inverts the distribution function over ascending ids at one uniform number, as the chunked head does:
first among the panels by their total weights, then inside the one panel that holds it, whose logits are
computed again. Sums over panels and inside the panel are float64; a panel's own weight was summed in float32.

Shape letters: P panels, R rows, D width.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.decode.cuda.panels import LOWEST, Panels

BLOCK_K = 256
"""Columns of the output matrix per load: one row's panel is half a megabyte, read once."""


@triton.jit
def _passed(cumulative, weight, goal, place):
    """Return the first place whose cumulative weight exceeds the goal, at most the last with any weight.

    Rounding may carry the goal past the last positive weight: the draw steps back onto it.
    """
    passed = tl.sum((cumulative <= goal).to(tl.int32), axis=0)
    return tl.minimum(passed, tl.max(tl.where(weight > 0, place, 0), axis=0))


@triton.jit
def _draw_kernel(
    hidden,
    unembed,
    excluded,
    uniform,
    top,
    heat,
    columns,
    token_out,
    chance_out,
    rows,
    panels,
    valid,
    temperature,
    N_EXCLUDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Draw one row's token; grid (R,).

    Reads temperature [1] and uniform [R] (float64), top and heat [P, R] (each panel's largest logit and its
    weight at the temperature), columns [R, COLUMNS] (the second one is the top token's log-probability),
    hidden [R, D] and one panel of unembed [V, D]; writes token [R] and chance [R, 2]: the draw's
    log-probability at temperature 1 and at the temperature, in float64.
    """
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK_P)
    heated = tl.load(temperature)
    tops = tl.load(top + p.to(tl.int64) * rows + row, mask=p < panels, other=LOWEST)
    largest = tl.max(tops, axis=0).to(tl.float64)
    mass = tl.load(heat + p.to(tl.int64) * rows + row, mask=p < panels, other=0.0).to(tl.float64)
    weight = tl.where(tops > LOWEST, mass * tl.exp((tops.to(tl.float64) - largest) / heated), 0.0)
    cumulative = tl.cumsum(weight, axis=0)
    total = tl.max(cumulative, axis=0)
    goal = tl.load(uniform + row) * total
    panel = _passed(cumulative, weight, goal, p)
    before = tl.sum(tl.where(p == panel - 1, cumulative, 0.0), axis=0)

    n, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    v = panel * BLOCK_N + n
    alive = v < valid
    hidden_at = hidden + row * D + k
    weight_at = unembed + (v.to(tl.int64) * D)[:, None] + k[None, :]
    logits = tl.zeros([BLOCK_N], tl.float32)
    for _ in range(0, D, BLOCK_K):
        left = tl.load(hidden_at).to(tl.float32)
        right = tl.load(weight_at, mask=alive[:, None], other=0.0).to(tl.float32)
        logits += tl.sum(right * left[None, :], axis=1)
        hidden_at += BLOCK_K
        weight_at += BLOCK_K
    for index in tl.static_range(N_EXCLUDED):
        alive = alive & (v != tl.load(excluded + index))
    below = logits.to(tl.float64) - largest
    chance = tl.where(alive, tl.exp(below / heated), 0.0)
    offset = _passed(before + tl.cumsum(chance, axis=0), chance, goal, n)
    picked = tl.sum(tl.where(n == offset, below, 0.0), axis=0)
    tl.store(token_out + row, (panel * BLOCK_N + offset).to(tl.int64))
    tl.store(chance_out + row * 2, tl.load(columns + row * COLUMNS + 1).to(tl.float64) + picked)
    tl.store(chance_out + row * 2 + 1, picked / heated - tl.log(total))


@lru_cache(maxsize=32)
def _number(value: float, device: torch.device) -> Tensor:
    """Return a float64 on the device: a kernel's plain arguments are float32."""
    return torch.tensor([value], dtype=torch.float64, device=device)


def draw_from_panels(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    valid_vocab: int,
    excluded: Tensor,
    panels: Panels,
    columns_RC: Tensor,
    block_n: int,
    temperature: float,
    uniforms_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return one drawn token per row [R] and its log-probabilities [R, 2] at temperature 1 and at this one.

    Args:
        hidden_RD: the rows that ``panels`` were made of.
        unembed_VD: output matrix.
        valid_vocab: ids from here on are padding.
        excluded: ids outside the softmax, int32 on the device.
        panels: with ``heat`` at this temperature.
        columns_RC: what ``merge_panels`` made of them.
        block_n: ids of a panel.
        temperature: positive.
        uniforms_R: one number in [0, 1) per row, float64, on the device.
    """
    rows, D = hidden_RD.shape
    token_R = torch.empty(rows, device=hidden_RD.device, dtype=torch.int64)
    chance_RC = torch.empty(rows, 2, device=hidden_RD.device, dtype=torch.float64)
    _draw_kernel[(rows,)](
        hidden_RD,
        unembed_VD,
        excluded,
        uniforms_R,
        panels.top,
        panels.heat,
        columns_RC,
        token_R,
        chance_RC,
        rows,
        len(panels.top),
        valid_vocab,
        _number(temperature, hidden_RD.device),
        N_EXCLUDED=len(excluded),
        COLUMNS=columns_RC.shape[1],
        D=D,
        BLOCK_P=triton.next_power_of_2(len(panels.top)),
        BLOCK_N=block_n,
        BLOCK_K=min(BLOCK_K, D & -D),
        num_warps=8,
    )
    return token_R, chance_RC
