# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What the panels of the vocabulary say about each row, merged in a fixed order.

Shape letters: R rows, P panels, X EOS ids.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.head.panels import LOG2_E, LOWEST, Panels

STAGES, FEW_ROWS = 4, 512
"""Rounds of loads that are on their way at once, where there are at most so many rows: few programs would
wait for each of them. The numbers are the same with any."""


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

    Reads what ``panels`` left ([P, R], eos [X, R], target [R]); writes token [R] and columns [R, 5 or 6], and
    [R] zeros behind the SHARED numbers per row that several programs of ``panel_draw`` share. Panels are
    taken in ascending order, BLOCK_P at a time, so sums do not vary from run to run, and the first panel wins
    among equals: the lowest id. Sums carry over to a new largest logit a + d as mass·exp(−d) and
    (moment − d·mass)·exp(−d), so nothing overflows and the entropy needs no second pass.
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
        panels: what is merged.
        n_eos: number of EOS ids.
        token_R: written.
        columns_RC: written; the target's column is there when it has six.
        shared: what ``panel_draw`` will share, one number per row of it set to 0.
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
        STAGES=STAGES if rows <= FEW_ROWS else 1,
        num_warps=4,
    )
