"""Candidates for many tokens per expert: each product of one layer, in TFLOP/s of the rows that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from llada2_bench.checks import random_ids
from llada2_bench.setting import Bench, expert_values
from llada2_bench.tuning import random_experts, timed
from orderlens.models.llada2.kernels.experts import Tiling, down, gate_up
from orderlens.models.llada2.kernels.tiles import TilePlan, close_gaps, plan_tiles
from orderlens.models.llada2.kernels.wide import WideTiling, down_wide, gate_up_wide
from orderlens.models.llada2.weights import StackedExperts

Candidate = Tiling | WideTiling
GATE_UP: dict[int, list[Candidate]] = {
    128: [
        Tiling(128, 64, 8, 4),
        WideTiling(128, 64, 8, 3),
        WideTiling(128, 64, 8, 4),
        WideTiling(128, 64, 8, 3, 1),
        WideTiling(128, 64, 8, 4, 1),
        WideTiling(128, 64, 8, 4, 1, swap=True),
        WideTiling(64, 64, 4, 3, 2),
        WideTiling(64, 64, 4, 3),
    ],
    64: [Tiling(64, 64, 4, 4), WideTiling(128, 64, 4, 2, swap=True), WideTiling(128, 64, 8, 4, 1, swap=True)],
}
DOWN: dict[int, list[Candidate]] = {
    128: [
        Tiling(256, 64, 8, 3),
        WideTiling(256, 64, 8, 3),
        WideTiling(256, 64, 8, 3, 1),
        WideTiling(256, 64, 8, 3, 1, True),
        WideTiling(256, 64, 8, 4, 1),
        WideTiling(128, 64, 4, 3, 2, True),
        WideTiling(128, 64, 4, 3),
        WideTiling(128, 128, 8, 2, 1, True),
    ],
    64: [Tiling(128, 64, 4, 4), WideTiling(256, 64, 4, 3, 1, True), WideTiling(128, 64, 4, 4, 2, True)],
}


def gate_up_of(x: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Candidate) -> Tensor:
    if isinstance(tiling, WideTiling):
        return gate_up_wide(x, experts, plan, tiling)
    return gate_up(x, experts, plan, tiling)


def down_of(inner: Tensor, experts: StackedExperts, plan: TilePlan, tiling: Candidate) -> Tensor:
    if isinstance(tiling, WideTiling):
        return down_wide(inner, experts, plan, tiling)
    return down(inner, experts, plan, tiling)


def tune_wide(bench: Bench, sizes: Iterable[int]) -> dict[tuple[int, int, str], Candidate]:
    """Time every candidate; return the best per (tokens, tile, product)."""
    experts, best = random_experts(bench), {}
    for tokens in sizes:
        x = torch.randn(tokens, bench.config.hidden_size, device=bench.device).to(bench.dtype)
        ids = random_ids(bench, tokens)
        for block_m in (64, 128) if tokens <= 4096 else (128,):
            what = f"{tokens} tokens, tiles of {block_m}"
            for name, tiling in _tune_tile(bench, what, experts, x, ids, block_m):
                best[tokens, block_m, name] = tiling
    return best


def _tune_tile(
    bench: Bench, what: str, experts: StackedExperts, x: Tensor, ids: Tensor, block_m: int
) -> Iterable[tuple[str, Candidate]]:
    plan = close_gaps(plan_tiles(ids, len(experts), block_m))
    inner = gate_up_of(x, experts, plan, GATE_UP[block_m][0])
    work = 2 * ids.numel() * expert_values(bench.config)

    def upper(tiling: Candidate) -> Tensor:
        return gate_up_of(x, experts, plan, tiling)

    def lower(tiling: Candidate) -> Tensor:
        return down_of(inner, experts, plan, tiling)

    yield "gate+up", _fastest(bench, f"{what}, gate+up", GATE_UP[block_m], upper, work * 2 / 3)
    yield "down", _fastest(bench, f"{what}, down", DOWN[block_m], lower, work / 3)


def _fastest(
    bench: Bench, what: str, candidates: list[Candidate], run: Callable[[Candidate], Tensor], work: float
) -> Candidate:
    expected, found = run(candidates[0]).float(), []
    for tiling in candidates:
        seconds = timed(bench, lambda tiling=tiling: run(tiling))
        off = float((run(tiling).float() - expected).norm() / expected.norm()) if seconds < 1e9 else 0.0
        found.append((seconds if off < 1e-2 else float("inf"), str(tiling), tiling))
        rate = work / seconds / 1e12
        print(f"  {what} {seconds * 1e3:7.3f} ms {rate:5.0f} TF/s, off {off:.1e} {tiling}", flush=True)
    seconds, name, tiling = min(found, key=lambda item: item[:2])
    bench.report(f"best {what}", f"{seconds * 1e3:.3f} ms {work / seconds / 1e12:.0f} TF/s", name)
    return tiling
