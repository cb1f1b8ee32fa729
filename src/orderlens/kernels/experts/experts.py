# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The experts of one layer: sorting into tiles, two grouped products, and the weighted sum.

The down product writes one row per assignment; ``combine`` adds a token's rows in a fixed order (so results
are deterministic), adds the residual and applies the next norm. The tile size depends on the number of tokens
per expert; all tilings give bit-identical results (of 16-bit weights).

Shape letters: T tokens, C model width, F expert width, K experts per token, A = T·K assignments, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from orderlens.kernels.experts.down import down
from orderlens.kernels.experts.float8 import down8, gate_up8
from orderlens.kernels.experts.gate_up import gate_up
from orderlens.kernels.experts.tiling import BYTES, Tiling, Visits, plan_visits
from orderlens.kernels.gpu import HOPPER, Gpu
from orderlens.kernels.rowwise import scaled_rms
from orderlens.kernels.shapes import StackedExperts


@dataclass(frozen=True, slots=True)
class ExpertTiling:
    """Tokens per tile, and the launch parameters of both products.

    Attributes:
        rows: assignments in the full part of a tile, a power of two.
        rest: maximum further assignments of a tile that reuse its weights, a power of two or 0.
        gate_up, down: launch parameters.
        few: float8 weights only: tiles with at most this number of assignments multiply no more; 0 for none.
    """

    rows: int
    rest: int
    gate_up: Tiling
    down: Tiling
    few: int = 0

    def fitting(self, gpu: Gpu, weight_bytes: int = BYTES) -> ExpertTiling:
        """Return this tiling adapted to a GPU and the bytes of a weight; on a Hopper it is unchanged.

        A rest needs twice the accumulators and more shared memory. Only Hopper's warpgroup products leave
        enough registers for it, so tiles have no rest on other GPUs.
        """
        rest = self.rest if _has_registers(gpu) else 0
        rows = self.rows + rest
        gate_up = self.gate_up.fitting(rows, 2, gpu, weight_bytes)
        return ExpertTiling(self.rows, rest, gate_up, self.down.fitting(rows, 1, gpu, weight_bytes), self.few)


def _has_registers(gpu: Gpu) -> bool:
    return gpu.descriptors and gpu.shared_bytes >= HOPPER.shared_bytes


TILINGS = (
    (10.0, ExpertTiling(16, 0, Tiling(64, 128, 4, 3), Tiling(128, 128, 4, 3))),
    (22.0, ExpertTiling(32, 0, Tiling(64, 64, 4, 4), Tiling(128, 64, 4, 4))),
    (50.0, ExpertTiling(64, 0, Tiling(64, 64, 4, 3), Tiling(128, 64, 4, 4))),
    (100.0, ExpertTiling(64, 32, Tiling(64, 64, 4, 4), Tiling(128, 64, 4, 4))),
    (180.0, ExpertTiling(128, 32, Tiling(128, 64, 8, 4), Tiling(128, 64, 4, 3))),
    (
        float("inf"),
        ExpertTiling(128, 0, Tiling(128, 64, 8, 4, programs=1), Tiling(128, 64, 4, 3, 2, specialised=True)),
    ),
)
"""(maximum mean assignments per expert, tiling), tuned on an H200; ``bench_llada2.py --tune`` measures
candidates. ``fitting`` adapts them to other GPUs."""
FLOAT8_TILINGS = (
    (2.0, ExpertTiling(16, 0, Tiling(64, 128, 4, 4), Tiling(128, 128, 4, 3))),
    (10.0, ExpertTiling(32, 0, Tiling(64, 128, 4, 3), Tiling(128, 128, 4, 3))),
    (60.0, ExpertTiling(64, 0, Tiling(64, 128, 4, 4), Tiling(128, 128, 8, 3), few=32)),
    (float("inf"), ExpertTiling(128, 0, Tiling(64, 128, 4, 3), Tiling(128, 128, 8, 3))),
)
"""The same for float8 weights; the kernels of ``float8`` support neither a rest nor warp specialisation, and
their ``block_k`` is at most ``run_width``."""


def choose_tiling(
    n_assignments: int, n_experts: int, gpu: Gpu = HOPPER, *, float8: bool = False
) -> ExpertTiling:
    """Return the tiling for this number of assignments and kind of weights on this GPU.

    Widened weights need registers; the largest tiles have them on Hopper only.
    """
    mean, weight_bytes = n_assignments / n_experts, 1 if float8 else BYTES
    tilings = FLOAT8_TILINGS if float8 else TILINGS
    if float8 and not _has_registers(gpu):
        mean = min(mean, FLOAT8_TILINGS[-2][0])
    return next(tiling for limit, tiling in tilings if mean <= limit).fitting(gpu, weight_bytes)


@triton.jit
def _combine_kernel(
    y,
    weights,
    x,
    norm_weight,
    total,
    out,
    eps,
    PER_TOKEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a token's K expert rows, the residual, and normalise; grid (T,).

    Reads y [T·K, C], weights [T, K] and x [T, C]; writes total and out [T, C]. Sums are float32 in the order
    of the choices, rounded once to the model's dtype before the norm.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = out.dtype.element_ty
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(PER_TOKEN):
        row = tl.load(y + (token * PER_TOKEN + k) * WIDTH + column, mask=inside, other=0.0)
        acc += row.to(tl.float32) * tl.load(weights + token * PER_TOKEN + k)
    acc += tl.load(x + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    acc = acc.to(dtype).to(tl.float32)
    tl.store(total + token * WIDTH + column, acc.to(dtype), mask=inside)
    scale = tl.load(norm_weight + column, mask=inside, other=0.0)
    tl.store(out + token * WIDTH + column, scaled_rms(acc, scale, eps, WIDTH, dtype).to(dtype), mask=inside)


def expert_rows(
    x_TC: Tensor, experts: StackedExperts, ids_TK: Tensor, visits: Visits, tiling: ExpertTiling
) -> Tensor:
    """Return every assignment's output [A, C], in the order of assignments (by token)."""
    plan = plan_visits(ids_TK, visits, len(experts), tiling.rows + tiling.rest)
    if experts.is_float8:
        inner_AF = gate_up8(x_TC, experts, plan, tiling.gate_up, tiling.few)
        return down8(inner_AF, experts, plan, tiling.down, tiling.few)
    inner_AF = gate_up(x_TC, experts, plan, tiling.gate_up, tiling.rest)
    return down(inner_AF, experts, plan, tiling.down, tiling.rest)


def combine(
    y_AC: Tensor, weights_TK: Tensor, x_TC: Tensor, next_norm_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + Σ weight · y and its norm."""
    total_TC, normed_TC = torch.empty_like(x_TC), torch.empty_like(x_TC)
    tokens, width = x_TC.shape
    block = triton.next_power_of_2(width)
    _combine_kernel[(tokens,)](
        y_AC,
        weights_TK,
        x_TC,
        next_norm_C,
        total_TC,
        normed_TC,
        eps,
        PER_TOKEN=weights_TK.shape[1],
        WIDTH=width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )
    return total_TC, normed_TC
