# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The product with the output matrix, fused with its reduction: a tile of logits stays on the multiprocessor.

The kernel multiplies a tile of rows by a panel of the vocabulary and keeps five numbers per row: the two
largest logits, the token of the largest, the sum of exponentials, and the sum of exponentials times logits
(both relative to the largest). Target and EOS logits are read from the same tile, so they equal the numbers
in the sum. A second kernel merges the panels of a row in a fixed order.

To draw a token at a temperature, the kernel also sums exponentials at that temperature; ``panel_draw`` uses
these sums.

Shape letters: R rows, V vocabulary, D width, P panels, X EOS ids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from orderlens.kernels.gpu import HOPPER, Gpu, divisor

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(float("-inf"))
MERGE_STAGES, FEW_ROWS = 4, 512
"""Pipeline stages of the merge for at most FEW_ROWS rows, where few programs would wait for each load. The
results do not depend on it."""


@dataclass(frozen=True, slots=True)
class HeadTiling:
    """Launch parameters of the product."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    registers: int | None = None
    """Maximum per thread: with two programs on a multiprocessor, one reduces while the other loads."""
    tiled: bool = False
    """Load tiles through tensor descriptors: one instruction per tile instead of one per thread."""


TILINGS = (
    (16, HeadTiling(16, 128, 128, 4, 3)),
    (32, HeadTiling(32, 128, 128, 4, 3)),
    (64, HeadTiling(64, 128, 64, 4, 3, 128)),
    (1024, HeadTiling(128, 128, 64, 8, 3, 128)),
    (1 << 30, HeadTiling(128, 128, 64, 8, 3, 128, tiled=True)),
)
"""(largest number of rows, tiling)."""


@dataclass(frozen=True, slots=True)
class Panels:
    """The kernel's output, [P, R] each, to be merged over panels, and the EOS and target logits."""

    top: Tensor
    second: Tensor
    token: Tensor
    mass: Tensor
    moment: Tensor
    heat: Tensor
    """The sum of exponentials at the temperature of the draws; ``mass`` itself at temperature 1."""
    eos_XR: Tensor
    target_R: Tensor


@triton.jit
def _panel_kernel(
    hidden,
    unembed,
    excluded,
    eos,
    target,
    top_out,
    second_out,
    token_out,
    mass_out,
    moment_out,
    heat_out,
    eos_out,
    target_out,
    rows,
    valid,
    inverse_temperature,
    N_EXCLUDED: tl.constexpr,
    N_EOS: tl.constexpr,
    HAS_TARGET: tl.constexpr,
    HEATED: tl.constexpr,
    TILED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Reduce one tile of rows against one panel of the vocabulary; grid (row tiles × panels,).

    Reads hidden [R, D] and unembed [V, D] (if TILED, as descriptors of their tiles), excluded and eos ids,
    target [R]; writes top, second, token, mass, moment and (if HEATED) heat [P, R]. Writes eos [X, R] and
    target [R] from the panel that contains the id. The tile index varies fastest, so that concurrent programs
    share a panel of the output matrix, the larger operand, in L2. Products are exact in the operands'
    precision ("ieee"; TF32 would round float32 operands).
    """
    tiles = tl.cdiv(rows, BLOCK_M)
    tile, panel = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    r = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    v = panel * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    real, alive = r < rows, v < valid
    logits = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if TILED:
        for d in range(0, D, BLOCK_K):
            left, right = hidden.load([tile * BLOCK_M, d]), unembed.load([panel * BLOCK_N, d])
            logits = tl.dot(left, tl.trans(right), logits, input_precision="ieee")
    else:
        hidden_at = hidden + (r.to(tl.int64) * D)[:, None] + k[None, :]
        weight_at = unembed + (v.to(tl.int64) * D)[:, None] + k[None, :]
        for _ in range(0, D, BLOCK_K):
            left = tl.load(hidden_at, mask=real[:, None], other=0.0)
            right = tl.load(weight_at, mask=alive[:, None], other=0.0)
            logits = tl.dot(left, tl.trans(right), logits, input_precision="ieee")
            hidden_at += BLOCK_K
            weight_at += BLOCK_K
    for index in tl.static_range(N_EXCLUDED):
        alive = alive & (v != tl.load(excluded + index))
    logits = tl.where(alive[None, :], logits, LOWEST)

    top, place = tl.max(logits, axis=1, return_indices=True)
    column = tl.arange(0, BLOCK_N)
    second = tl.max(tl.where(column[None, :] == place[:, None], LOWEST, logits), axis=1)
    base = tl.where(top > LOWEST, top, 0.0)
    weight = tl.exp2((logits - base[:, None]) * LOG2_E)
    moment = tl.sum(tl.where(alive[None, :], (logits - base[:, None]) * weight, 0.0), axis=1)
    at = panel.to(tl.int64) * rows + r
    tl.store(top_out + at, top, mask=real)
    tl.store(second_out + at, second, mask=real)
    tl.store(token_out + at, panel * BLOCK_N + place, mask=real)
    tl.store(mass_out + at, tl.sum(weight, axis=1), mask=real)
    tl.store(moment_out + at, moment, mask=real)
    if HEATED:
        heated = tl.exp2((logits - base[:, None]) * (LOG2_E * inverse_temperature))
        tl.store(heat_out + at, tl.sum(heated, axis=1), mask=real)
    for index in tl.static_range(N_EOS):
        wanted = tl.load(eos + index)
        if (wanted >= panel * BLOCK_N) & (wanted < panel * BLOCK_N + BLOCK_N):
            picked = tl.sum(tl.where((v == wanted)[None, :], logits, 0.0), axis=1)
            tl.store(eos_out + index * rows + r, picked, mask=real)
    if HAS_TARGET:
        wanted_r = tl.load(target + r, mask=real, other=-1)
        here = (wanted_r >= panel * BLOCK_N) & (wanted_r < panel * BLOCK_N + BLOCK_N)
        picked = tl.sum(tl.where(v[None, :] == wanted_r[:, None], logits, 0.0), axis=1)
        tl.store(target_out + r, picked, mask=real & here)


def choose_tiling(rows: int, gpu: Gpu = HOPPER) -> HeadTiling:
    """Return the tiling for this number of rows; it fits every GPU, but not all have descriptors."""
    tiling = next(tiling for limit, tiling in TILINGS if rows <= limit)
    return tiling if gpu.descriptors else replace(tiling, tiled=False)


def reduce_panels(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    valid_vocab: int,
    excluded: Tensor,
    eos: Tensor,
    target_R: Tensor | None,
    tiling: HeadTiling,
    temperature: float = 1.0,
) -> Panels:
    """Run the product; ``excluded``, ``eos`` (all valid) and ``target_R`` are int32 on the device.

    ``heat`` sums exp((logit − top) / temperature); all other numbers are at temperature 1.
    """
    rows, D = hidden_RD.shape
    device = hidden_RD.device
    n_panels = triton.cdiv(valid_vocab, tiling.block_n)
    heated = temperature != 1.0
    numbers = torch.empty(5 if heated else 4, n_panels, rows, device=device, dtype=torch.float32)
    token = torch.empty(n_panels, rows, device=device, dtype=torch.int32)
    eos_XR = torch.empty(max(1, len(eos)), rows, device=device)  # every id is in some panel
    picked_R = eos_XR[0] if target_R is None else torch.full((rows,), -torch.inf, device=device)
    top, second, mass, moment, *heat = numbers.unbind()
    panels = Panels(top, second, token, mass, moment, heat[0] if heat else mass, eos_XR, picked_R)
    block_k = divisor(D, tiling.block_k)
    matrices: tuple[Any, Any] = hidden_RD, unembed_VD
    if tiling.tiled:
        matrices = (
            TensorDescriptor.from_tensor(hidden_RD, [tiling.block_m, block_k]),
            TensorDescriptor.from_tensor(unembed_VD, [tiling.block_n, block_k]),
        )
    _panel_kernel[(triton.cdiv(rows, tiling.block_m) * n_panels,)](
        *matrices,
        excluded,
        eos,
        target_R if target_R is not None else token,
        panels.top,
        panels.second,
        panels.token,
        panels.mass,
        panels.moment,
        panels.heat,
        panels.eos_XR,
        panels.target_R,
        rows,
        valid_vocab,
        1.0 / temperature,
        N_EXCLUDED=len(excluded),
        N_EOS=len(eos),
        HAS_TARGET=target_R is not None,
        HEATED=heated,
        TILED=tiling.tiled,
        D=D,
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=block_k,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **({"maxnreg": tiling.registers} if tiling.registers else {}),
    )
    return panels


@triton.jit
def _merge_kernel(
    top_in,
    second_in,
    token_in,
    mass_in,
    moment_in,
    eos_in,
    target_in,
    token_out,
    columns_out,
    shared,
    rows,
    panels,
    N_EOS: tl.constexpr,
    HAS_TARGET: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Merge the panels of BLOCK_R rows into the final numbers; grid (R / BLOCK_R,).

    Reads the panels ([P, R], eos [X, R], target [R]); writes token [R] and columns [R, 5 or 6], and [R] zeros
    after the SHARED numbers per row that several programs of ``panel_draw`` share. Panels are merged in
    ascending order, BLOCK_P at a time, so sums are deterministic, and ties go to the first panel, hence to
    the lowest id. Sums carry over to a new largest logit a + d as mass·exp(−d) and (moment − d·mass)·exp(−d),
    so nothing overflows and the entropy needs no second pass.
    """
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    p = tl.arange(0, BLOCK_P)
    real = r < rows
    top = tl.full([BLOCK_R], LOWEST, tl.float32)
    second = tl.full([BLOCK_R], LOWEST, tl.float32)
    token = tl.zeros([BLOCK_R], tl.int32)
    mass = tl.zeros([BLOCK_R], tl.float32)
    moment = tl.zeros([BLOCK_R], tl.float32)
    for first in tl.range(0, panels, BLOCK_P, num_stages=STAGES):
        at = (first + p).to(tl.int64)[:, None] * rows + r[None, :]
        inside = (first + p < panels)[:, None] & real[None, :]
        tops = tl.load(top_in + at, mask=inside, other=LOWEST)
        best, where = tl.max(tops, axis=0, return_indices=True)
        winner = p[:, None] == where[None, :]
        seconds = tl.load(second_in + at, mask=inside, other=LOWEST)
        runner_up = tl.max(tl.where(winner, seconds, tops), axis=0)
        tokens = tl.load(token_in + at, mask=inside, other=0)
        best_token = tl.sum(tl.where(winner, tokens, 0), axis=0)

        new_top = tl.maximum(top, best)
        base = tl.where(new_top > LOWEST, new_top, 0.0)
        shift = tl.where(tops > LOWEST, tops - base[None, :], 0.0)
        scale = tl.where(tops > LOWEST, tl.exp2(shift * LOG2_E), 0.0)
        masses = tl.load(mass_in + at, mask=inside, other=0.0)
        moments = tl.load(moment_in + at, mask=inside, other=0.0)
        old_shift = tl.where(top > LOWEST, top - base, 0.0)
        old_scale = tl.where(top > LOWEST, tl.exp2(old_shift * LOG2_E), 0.0)
        moment = old_scale * (moment + old_shift * mass) + tl.sum(scale * (moments + shift * masses), axis=0)
        mass = old_scale * mass + tl.sum(scale * masses, axis=0)
        second = tl.maximum(tl.minimum(top, best), tl.where(best > top, runner_up, second))
        token = tl.where(best > top, best_token, token)
        top = new_top
    log_mass = tl.log(mass)
    log_sum = top + log_mass
    eos_mass = tl.zeros([BLOCK_R], tl.float32)
    for index in tl.static_range(N_EOS):
        eos_mass += tl.exp(tl.load(eos_in + index * rows + r, mask=real, other=LOWEST) - log_sum)
    if SHARED:
        tl.store(shared + rows * SHARED + r, 0, mask=real)
    tl.store(token_out + r, token.to(tl.int64), mask=real)
    tl.store(columns_out + r * COLUMNS, log_sum, mask=real)
    tl.store(columns_out + r * COLUMNS + 1, top - log_sum, mask=real)
    tl.store(columns_out + r * COLUMNS + 2, second - log_sum, mask=real)
    tl.store(columns_out + r * COLUMNS + 3, tl.maximum(log_mass - moment / mass, 0.0), mask=real)
    tl.store(columns_out + r * COLUMNS + 4, tl.log(eos_mass), mask=real)
    if HAS_TARGET:
        wanted = tl.load(target_in + r, mask=real, other=LOWEST)
        tl.store(columns_out + r * COLUMNS + 5, wanted - log_sum, mask=real)


def merge_panels(
    panels: Panels, n_eos: int, token_R: Tensor, columns_RC: Tensor, shared: Tensor | None = None
) -> None:
    """Write top tokens (int64) and columns (log-sum-exp, top, second, entropy, EOS[, target]; float32).

    Args:
        panels: the panels to merge.
        n_eos: number of EOS ids.
        token_R: output.
        columns_RC: output; with six columns the last one is the target's.
        shared: buffer of ``panel_draw``; its counters (one number per row) are set to 0.
    """
    n_panels, rows = panels.top.shape
    n_columns = columns_RC.shape[1]
    _merge_kernel[(triton.cdiv(rows, 8),)](
        panels.top,
        panels.second,
        panels.token,
        panels.mass,
        panels.moment,
        panels.eos_XR,
        panels.target_R,
        token_R,
        columns_RC,
        panels.token if shared is None else shared,
        rows,
        n_panels,
        N_EOS=n_eos,
        HAS_TARGET=n_columns == 6,
        COLUMNS=n_columns,
        SHARED=0 if shared is None else shared.shape[0] // rows - 1,
        BLOCK_R=8,
        BLOCK_P=128,
        STAGES=MERGE_STAGES if rows <= FEW_ROWS else 1,
        num_warps=4,
    )
