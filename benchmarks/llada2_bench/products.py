"""Candidates for the grouped products of one layer, in TFLOP/s without padding rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from llada2_bench.checks import random_visits
from llada2_bench.setting import Bench, expert_values
from llada2_bench.tuning import floor_seconds, random_experts, timed
from orderlens.kernels.experts.down import down
from orderlens.kernels.experts.float8 import down8, gate_up8
from orderlens.kernels.experts.gate_up import gate_up
from orderlens.kernels.experts.route import choose_experts
from orderlens.kernels.experts.tiling import Tiling, Visits, plan_visits
from orderlens.kernels.pairs import Pairs
from orderlens.kernels.rowwise import add_rms_norm
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.weights import stacked_float8

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
PARTS8: dict[int, list[Parts]] = {
    32: [(16, 0), (32, 0), (32, 16)],
    1024: [(32, 0), (64, 0), (64, 32)],
    4096: [(64, 0), (128, 0), (128, 64)],
}
"""The same for float8 weights: assignments of a tile, and ``few`` of ``ExpertTiling``."""
GATE_UP8 = [Tiling(64, 128, 4, 3), Tiling(64, 128, 4, 4), Tiling(64, 128, 4, 3, 2), Tiling(128, 128, 8, 3)]
DOWN8 = [Tiling(64, 128, 4, 3), Tiling(64, 128, 4, 4), Tiling(128, 128, 8, 3), Tiling(128, 128, 4, 3)]
LAYERS, LIKENESS, WINDOW = 4, 0.45, 32
"""Layers in a graph, so that weights are not cached. Tokens of a window choose similar experts, 45 of 256
at batch 1 as with random weights: their logits vary by this share of the variation between windows."""


def tune_float8(bench: Bench, sizes: Iterable[int]) -> None:
    """Time candidates with float8 weights; report the best of each product per (tokens, tile)."""
    layers = [stacked_float8(random_experts(bench)) for _ in range(LAYERS)]
    for tokens in (size for size in sizes if size in PARTS8 or layers[0].ordered):
        x = torch.randn(tokens, bench.config.hidden_size, device=bench.device).to(bench.dtype)
        routed = [_similar_visits(bench, tokens) for _ in layers]
        touched = sum(len(ids.unique()) for ids, _ in routed) / LAYERS
        floor = touched * expert_values(bench.config) / bench.bandwidth
        if layers[0].ordered:
            _tune_float8_units(bench, layers, x, routed, floor)
            continue
        for parts in PARTS8[tokens]:
            plans = [plan_visits(ids, visits, len(layers[0]), parts[0]) for ids, visits in routed]
            work = list(zip(layers, plans, strict=True))
            inner = torch.randn(len(plans[0].order_A), bench.config.expert_width, device=bench.device)
            inner = inner.to(bench.dtype)

            def upper(tiling: Tiling, work=work, x=x, few=parts[1]) -> None:  # type: ignore[no-untyped-def]
                for experts, plan in work:
                    gate_up8(x, experts, plan, tiling, few)

            def lower(tiling: Tiling, work=work, inner=inner, few=parts[1]) -> None:  # type: ignore[no-untyped-def]
                for experts, plan in work:
                    down8(inner, experts, plan, tiling, few)

            what = f"{tokens} tokens, fp8 tiles of {parts[0]}, few {parts[1]}"
            seconds = _quickest(bench, f"{what}, gate+up", GATE_UP8, upper)
            seconds += _quickest(bench, f"{what}, down", DOWN8, lower)
            bench.report(
                f"both products, {what}",
                f"{seconds * 1e6:.0f} µs",
                f"{floor * 1e6:.0f} µs ({seconds / floor:.2f}×)",
                seconds=seconds,
                experts=touched,
            )


def _tune_float8_units(
    bench: Bench, layers: list[StackedExperts], x: Tensor, routed: list[tuple[Tensor, Visits]], floor: float
) -> None:
    """Time both products in one launch, by the places of a tile."""
    from orderlens.kernels.experts.float8_hopper import STAGES, multiply_plan

    pairs, tokens = Pairs.empty(*x.shape, 1, bench.device), len(x)
    add_rms_norm(x, None, torch.ones_like(x[0]), 1e-6, pairs)
    for rows in STAGES:

        def run(rows: int = rows) -> None:
            for experts, (ids, visits) in zip(layers, routed, strict=True):
                plan = plan_visits(ids, visits, len(experts), rows)  # a plan is used once
                multiply_plan(pairs, experts, plan, bench.dtype)

        def plan(rows: int = rows) -> None:
            for experts, (ids, visits) in zip(layers, routed, strict=True):
                plan_visits(ids, visits, len(experts), rows)

        seconds = (bench.graphed(run) - bench.graphed(plan)) / LAYERS
        bench.report(
            f"both products, {tokens} tokens, fp8 tiles of {rows} on float8 units",
            f"{seconds * 1e6:.0f} µs",
            f"{floor * 1e6:.0f} µs ({seconds / floor:.2f}×)",
            seconds=seconds,
        )


def _similar_visits(bench: Bench, tokens: int) -> tuple[Tensor, Visits]:
    """Return experts of windows whose tokens choose similar ones, and their visits."""
    E = bench.config.n_experts
    window = torch.randn(-(-tokens // WINDOW), 1, E, device=bench.device)
    noise = torch.randn(len(window), WINDOW, E, device=bench.device)
    logits = (window + LIKENESS * noise).view(-1, E)[:tokens].contiguous()
    ids, _, visits = choose_experts(logits, torch.zeros(E, device=bench.device), bench.config)
    return ids, visits


def _quickest(bench: Bench, what: str, candidates: list[Tiling], run: Callable[[Tiling], None]) -> float:
    """Return the seconds per layer of the fastest candidate, replayed from a graph."""
    from triton.runtime.errors import OutOfResources

    found = []
    for tiling in candidates:
        try:
            seconds = bench.graphed(lambda tiling=tiling: run(tiling)) / LAYERS
        except OutOfResources:
            continue
        print(f"  {what} {seconds * 1e6:7.1f} µs {tiling}", flush=True)
        found.append((seconds, str(tiling)))
    seconds, name = min(found)
    bench.report(f"best {what}", f"{seconds * 1e6:.1f} µs", name)
    return seconds


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
