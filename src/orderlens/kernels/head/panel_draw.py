# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Draws a token from a vocabulary that was reduced panel by panel.

The draw inverts the cumulative distribution over ascending ids at one uniform number, as the chunked head
does. It first selects a panel by the panels' total weights, then recomputes that panel's logits and selects
an id in it. Sums over panels and inside the panel are float64; a panel's weight was summed in float32.

Shape letters: P panels, R rows, D width.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.gpu import divisor
from orderlens.kernels.head.panels import LOWEST, Panels

BLOCK_K = 256
"""Columns of the output matrix per load: one row's panel is half a megabyte and is read once."""
PARTS, WARPS = ((32, 8), (128, 4), (1024, 2)), 8
"""(maximum number of rows, maximum programs per row); warps of a program."""
LOADED = 8
"""Numbers of the output matrix per load of a thread (16 bytes); the thread adds them before the reduction."""


@triton.jit
def _passed(cumulative, weight, goal, place):
    """Return the first place whose cumulative weight exceeds the goal, at most the last with positive weight.

    Rounding can move the goal beyond the last positive weight; the draw then takes that last place.
    """
    passed = tl.sum((cumulative <= goal).to(tl.int32), axis=0)
    return tl.minimum(passed, tl.max(tl.where(weight > 0, place, 0), axis=0))


@triton.jit
def _search(uniform, top, heat, temperature, row, rows, panels, BLOCK_P: tl.constexpr):
    """Return the panel of a row's draw, the weight before that panel, and the goal.

    Then the total weight of all panels, the largest logit and the temperature, all float64.
    """
    p = tl.arange(0, BLOCK_P)
    heated, number = tl.load(temperature), tl.load(uniform + row)
    tops = tl.load(top + p.to(tl.int64) * rows + row, mask=p < panels, other=LOWEST)
    mass = tl.load(heat + p.to(tl.int64) * rows + row, mask=p < panels, other=0.0).to(tl.float64)
    largest = tl.max(tops, axis=0).to(tl.float64)
    weight = tl.where(tops > LOWEST, mass * tl.exp((tops.to(tl.float64) - largest) / heated), 0.0)
    cumulative = tl.cumsum(weight, axis=0)
    total = tl.max(cumulative, axis=0)
    goal = number * total
    panel = _passed(cumulative, weight, goal, p)
    before = tl.sum(tl.where(p == panel - 1, cumulative, 0.0), axis=0)
    return panel, before, goal, total, largest, heated


@triton.jit
def _finish(
    excluded,
    columns,
    token_out,
    chance_out,
    row,
    panel,
    before,
    goal,
    total,
    largest,
    heated,
    logits,
    valid,
    N_EXCLUDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Draw inside the panel from its logits, and write the row's token and log-probabilities."""
    n = tl.arange(0, BLOCK_N)
    v = panel * BLOCK_N + n
    alive = v < valid
    for index in tl.static_range(N_EXCLUDED):
        alive = alive & (v != tl.load(excluded + index))
    below = logits.to(tl.float64) - largest
    chance = tl.where(alive, tl.exp(below / heated), 0.0)
    offset = _passed(before + tl.cumsum(chance, axis=0), chance, goal, n)
    picked = tl.sum(tl.where(n == offset, below, 0.0), axis=0)
    tl.store(token_out + row, (panel * BLOCK_N + offset).to(tl.int64))
    tl.store(chance_out + row * 2, tl.load(columns + row * COLUMNS + 1).to(tl.float64) + picked)
    tl.store(chance_out + row * 2 + 1, picked / heated - tl.log(total))


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
    shared,
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
    PARTS: tl.constexpr,
):
    """Draw one row's token; grid (R × PARTS,).

    Reads temperature [1] and uniform [R] (float64), top and heat [P, R] (each panel's largest logit and its
    weight at the temperature), columns [R, COLUMNS] (the second one is the top token's log-probability),
    hidden [R, D] and one panel of unembed [V, D]; writes token [R] and chance [R, 2]: the draw's
    log-probability at temperature 1 and at the temperature, in float64.

    The PARTS programs of a row share its panel: each stores its logits in shared (int32 [R, BLOCK_N],
    followed by [R] counters of finished programs), and the last one to finish draws. Every logit is summed in
    the same order as by a single program, so the number of parts does not change any result.
    """
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    panel, before, goal, total, largest, heated = _search(
        uniform, top, heat, temperature, row, rows, panels, BLOCK_P
    )
    LANES: tl.constexpr = BLOCK_N // PARTS
    n, k = part * LANES + tl.arange(0, LANES), tl.arange(0, BLOCK_K)
    v = panel * BLOCK_N + n
    alive = v < valid
    hidden_at = hidden + row * D + k
    weight_at = unembed + (v.to(tl.int64) * D)[:, None] + k[None, :]
    logits = tl.zeros([LANES], tl.float32)
    if PARTS == 1:
        for _ in range(0, D, BLOCK_K):
            left = tl.load(hidden_at).to(tl.float32)
            right = tl.load(weight_at, mask=alive[:, None], other=0.0).to(tl.float32)
            logits += tl.sum(right * left[None, :], axis=1)
            hidden_at += BLOCK_K
            weight_at += BLOCK_K
        _finish(
            excluded, columns, token_out, chance_out, row, panel, before, goal, total, largest, heated,
            logits, valid, N_EXCLUDED, COLUMNS, BLOCK_N,
        )  # fmt: skip
    else:
        # Few numbers per thread, so all loads are in flight together. Each thread loads its own operands:
        # exchanging a row between threads would delay every product.
        again_at = tl.broadcast_to(hidden_at[None, :], [LANES, BLOCK_K])
        for d in tl.static_range(0, D, BLOCK_K):
            left = tl.load(again_at + d).to(tl.float32)
            right = tl.load(weight_at + d, mask=alive[:, None], other=0.0).to(tl.float32)
            logits += tl.sum(right * left, axis=1)
        tl.store(shared + row * BLOCK_N + n, logits.to(tl.int32, bitcast=True))
        tl.debug_barrier()  # all numbers of this program are written before it counts as finished
        if tl.atomic_add(shared + rows * BLOCK_N + row, 1, sem="acq_rel") == PARTS - 1:
            every = shared + row * BLOCK_N + tl.arange(0, BLOCK_N)
            found = tl.load(every, cache_modifier=".cg").to(tl.float32, bitcast=True)
            _finish(
                excluded, columns, token_out, chance_out, row, panel, before, goal, total, largest, heated,
                found, valid, N_EXCLUDED, COLUMNS, BLOCK_N,
            )  # fmt: skip


@lru_cache(maxsize=32)
def _number(value: float, device: torch.device) -> Tensor:
    """Return a float64 on the device: a kernel's scalar arguments are float32."""
    return torch.tensor([value], dtype=torch.float64, device=device)


def choose_parts(rows: int, width: int, block_n: int) -> int:
    """Return the number of programs that share the panel of one row: a few rows do not fill the GPU.

    A thread always adds ``LOADED`` numbers, so that the order of sums does not depend on the number of parts.
    """
    loads = block_n * divisor(width, BLOCK_K) // (32 * WARPS * LOADED)
    return max(1, min(loads, next((parts for limit, parts in PARTS if rows <= limit), 1)))


def draw_from_panels(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    valid_vocab: int,
    excluded: Tensor,
    panels: Panels,
    block_n: int,
    temperature: float,
    uniforms_R: Tensor,
    columns_RC: Tensor,
    token_R: Tensor,
    chance_RC: Tensor,
    shared: Tensor | None = None,
) -> None:
    """Write one drawn token per row and its log-probabilities at temperature 1 and at ``temperature``.

    Args:
        hidden_RD: the rows from which ``panels`` were computed.
        unembed_VD: output matrix.
        valid_vocab: ids from this one on are padding.
        excluded: ids outside the softmax, int32 on the device.
        panels: with ``heat`` at this temperature.
        block_n: ids of a panel.
        temperature: positive.
        uniforms_R: one number in [0, 1) per row, float64, on the device.
        columns_RC: the result of ``merge_panels``.
        token_R: output, int64.
        chance_RC: output [R, 2], float64.
        shared: [R · (block_n + 1)] int32 if several programs share a row; ``merge_panels`` must have
            initialised it.
    """
    rows, D = hidden_RD.shape
    parts = 1 if shared is None else choose_parts(rows, D, block_n)
    _draw_kernel[(rows * parts,)](
        hidden_RD,
        unembed_VD,
        excluded,
        uniforms_R,
        panels.top,
        panels.heat,
        columns_RC,
        token_R,
        chance_RC,
        panels.token if shared is None else shared,
        rows,
        len(panels.top),
        valid_vocab,
        _number(temperature, hidden_RD.device),
        N_EXCLUDED=len(excluded),
        COLUMNS=columns_RC.shape[1],
        D=D,
        BLOCK_P=triton.next_power_of_2(len(panels.top)),
        BLOCK_N=block_n,
        BLOCK_K=divisor(D, BLOCK_K),
        PARTS=parts,
        num_warps=WARPS,
    )
