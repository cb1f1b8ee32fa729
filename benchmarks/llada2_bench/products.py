"""Candidates for the grouped products of one layer, in TFLOP/s without padding rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from llada2_bench.checks import random_visits
from llada2_bench.setting import Bench, expert_values
from llada2_bench.tuning import floor_seconds, random_experts, timed
from orderlens.kernels.experts.down import down
from orderlens.kernels.experts.gate_up import gate_up
from orderlens.kernels.experts.tiling import Tiling
from orderlens.kernels.experts.visits import Visits, plan_visits
from orderlens.kernels.shapes import StackedExperts

Parts = tuple[int, int]
"""Assignments of a tile: the full part, and the maximum rest."""
GATE_UP: dict[Parts, list[Tiling]] = {
    (16, 0): [Tiling(64, 128, 4, 3), Tiling(64, 128, 4, 3, 2), Tiling(32, 128, 4, 4)],
    (32, 0): [Tiling(64, 64, 4, 4), Tiling(64, 128, 4, 3), Tiling(64, 64, 4, 4, 2)],
    (32, 16): [Tiling(64, 64, 4, 4), Tiling(64, 128, 4, 2)],
    (64, 0): [Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 4), Tiling(128, 64, 8, 4)],
    (64, 32): [Tiling(64, 64, 4, 4), Tiling(64, 64, 4, 3), Tiling(128, 64, 8, 4)],
    (128, 0): [Tiling(128, 64, 8, 4, 1), Tiling(128, 64, 8, 4), Tiling(64, 64, 4, 3)],
    (128, 16): [Tiling(128, 64, 8, 4), Tiling(64, 64, 4, 3)],
    (128, 32): [Tiling(128, 64, 8, 4), Tiling(128, 64, 8, 4, 1), Tiling(64, 64, 4, 3)],
    (128, 64): [Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 3, 1)],
}
DOWN: dict[Parts, list[Tiling]] = {
    (16, 0): [Tiling(128, 128, 4, 3), Tiling(64, 256, 4, 2, 3)],
    (32, 0): [Tiling(128, 64, 4, 4), Tiling(128, 128, 4, 3), Tiling(128, 64, 4, 4, 3)],
    (32, 16): [Tiling(128, 64, 4, 4), Tiling(128, 128, 4, 2)],
    (64, 0): [Tiling(128, 64, 4, 4), Tiling(128, 64, 4, 4, 2)],
    (64, 32): [Tiling(128, 64, 4, 4), Tiling(128, 64, 4, 3, 2), Tiling(128, 64, 8, 4)],
    (128, 0): [Tiling(128, 64, 4, 3, 2, specialised=True), Tiling(128, 64, 4, 3), Tiling(128, 64, 4, 3, 2)],
    (128, 16): [Tiling(128, 64, 4, 3), Tiling(128, 64, 8, 4)],
    (128, 32): [Tiling(128, 64, 4, 3), Tiling(128, 64, 4, 3, 2), Tiling(256, 64, 8, 3)],
    (128, 64): [Tiling(256, 64, 8, 3), Tiling(128, 64, 4, 2)],
}
PARTS: dict[int, list[Parts]] = {
    32: [(16, 0)],
    128: [(16, 0), (32, 0)],
    256: [(16, 0), (32, 0)],
    1024: [(32, 0), (32, 16), (64, 0)],
    2048: [(64, 0), (64, 32), (128, 0)],
    4096: [(128, 0), (128, 16), (128, 32), (128, 64)],
    8192: [(128, 0), (128, 32), (128, 64)],
    16384: [(128, 0), (128, 32), (128, 64)],
}
"""Tokens of one forward → the tiles to try."""


def tune_products(bench: Bench, sizes: Iterable[int]) -> None:
    """Time every candidate; report the best of each product, and both together, per (tokens, tile)."""
    experts = random_experts(bench)
    for tokens in sizes:
        x = torch.randn(tokens, bench.config.hidden_size, device=bench.device).to(bench.dtype)
        ids, visits = random_visits(bench, tokens)
        floor, work = floor_seconds(bench, ids, 1.0), 2 * ids.numel() * expert_values(bench.config)
        for parts in PARTS[tokens]:
            seconds = _tune_tile(bench, experts, x, ids, visits, parts)
            bench.report(
                f"both products, {tokens} tokens, tiles of {parts[0]} + {parts[1]}",
                f"{seconds * 1e3:.3f} ms {work / seconds / 1e12:.0f} TF/s",
                f"{floor * 1e3:.3f} ms ({seconds / floor:.2f}×)",
                seconds=seconds,
            )


def _tune_tile(
    bench: Bench, experts: StackedExperts, x: Tensor, ids: Tensor, visits: Visits, parts: Parts
) -> float:
    """Return the seconds of both products, each with its best candidate."""
    plan, right = (plan_visits(ids, visits, len(experts), size) for size in (sum(parts), 64))
    inner = gate_up(x, experts, right, Tiling(64, 64, 4, 4))  # the reference for all candidates
    outer = down(inner, experts, right, Tiling(64, 64, 4, 4))
    work = 2 * ids.numel() * expert_values(bench.config)
    what = f"{len(x)} tokens, tiles of {parts[0]} + {parts[1]}"

    def upper(tiling: Tiling) -> Tensor:
        return gate_up(x, experts, plan, tiling, parts[1])

    def lower(tiling: Tiling) -> Tensor:
        return down(inner, experts, plan, tiling, parts[1])

    first = _fastest(bench, f"{what}, gate+up", GATE_UP[parts], upper, work * 2 / 3, inner)
    return first + _fastest(bench, f"{what}, down", DOWN[parts], lower, work / 3, outer)


def _fastest(
    bench: Bench,
    what: str,
    candidates: list[Tiling],
    run: Callable[[Tiling], Tensor],
    work: float,
    expected: Tensor,
) -> float:
    """Return the seconds of the fastest candidate with correct results."""
    found = []
    for tiling in candidates:
        seconds = timed(bench, lambda tiling=tiling: run(tiling))
        if seconds == float("inf"):
            continue
        off = float((run(tiling).float() - expected.float()).norm() / expected.float().norm())
        print(f"  {what} {seconds * 1e3:7.3f} ms {work / seconds / 1e12:5.0f} TF/s, off {off:.1e} {tiling}")
        found.append((seconds if off < 1e-2 else float("inf"), str(tiling)))
    seconds, name = min(found)
    bench.report(f"best {what}", f"{seconds * 1e3:.3f} ms {work / seconds / 1e12:.0f} TF/s", name)
    return seconds
