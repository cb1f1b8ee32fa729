"""One MoE layer against torch's grouped product, and candidates of the head."""

from __future__ import annotations

import torch
from torch import Tensor

from llada2_bench.checks import random_visits
from llada2_bench.setting import Bench, expert_values
from orderlens.kernels.experts.experts import ExpertTiling, choose_tiling, combine, expert_rows
from orderlens.kernels.experts.tiling import Visits
from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.head.fused_head import blank_answer
from orderlens.kernels.head.panels import HeadTiling, merge_panels, reduce_panels
from orderlens.kernels.head.panels import choose_tiling as choose_head_tiling
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.torch_ops import grouped_product


def random_experts(bench: Bench) -> StackedExperts:
    config = bench.config
    E, F, C = config.n_experts + config.n_shared, config.expert_width, config.hidden_size
    gate_up_EFC = torch.empty(E, 2 * F, C, device=bench.device, dtype=bench.dtype).normal_(0, 0.02)
    return StackedExperts(
        gate_up_EFC, torch.empty(E, C, F, device=bench.device, dtype=bench.dtype).normal_(0, 0.02)
    )


def floor_seconds(bench: Bench, ids: Tensor, part: float) -> float:
    """Return the time to read the share ``part`` of the used experts' weights at copy bandwidth."""
    touched = len(ids.unique())
    return touched * expert_values(bench.config) * part * bench.dtype.itemsize / bench.bandwidth


def timed(bench: Bench, work: object) -> float:
    """Return the time, or infinity for parameters that need too much shared memory."""
    from triton.runtime.errors import OutOfResources

    try:
        return bench.time(work, repeats=15)  # type: ignore[arg-type]
    except OutOfResources:
        return float("inf")


def compare_experts(bench: Bench) -> None:
    """Time one MoE layer: our kernels against torch's grouped product, both replayed from a graph."""
    experts = random_experts(bench)
    config = bench.config
    norm = torch.ones(config.hidden_size, device=bench.device, dtype=bench.dtype)
    for tokens in (32, 128, 256, 1024, 2048, 4096, 8192, 16384):
        x = torch.randn(tokens, config.hidden_size, device=bench.device).to(bench.dtype)
        ids, visits = random_visits(bench, tokens)
        tiling = choose_tiling(ids.numel(), len(experts), gpu_of(bench.device))
        weights = torch.rand(ids.shape, device=bench.device)
        wide = ids.long()

        def ours(
            x: Tensor = x,
            ids: Tensor = ids,
            visits: Visits = visits,
            tiling: ExpertTiling = tiling,
            weights: Tensor = weights,
        ) -> object:
            y = expert_rows(x, experts, ids, visits, tiling)
            return combine(y, weights, x, norm, 1e-6)

        def theirs(x: Tensor = x, wide: Tensor = wide, weights: Tensor = weights) -> object:
            return grouped_product(x, wide, weights, experts)

        floor = floor_seconds(bench, ids, 1.0)
        for name, work in (("ours", ours), ("torch grouped", theirs)):
            seconds = bench.time(_recorded(work))
            rate = 2 * ids.numel() * expert_values(config) / seconds / 1e12
            bench.report(
                f"MoE layer, {tokens} tokens, {name}",
                f"{seconds * 1e3:.3f} ms {rate:.0f} TF/s",
                f"{floor * 1e3:.3f} ms ({seconds / floor:.2f}×)",
                seconds=seconds,
                floor_seconds=floor,
            )


def _recorded(work: object) -> object:
    """Return a function that replays ``work`` from a graph."""
    for _ in range(2):
        work()  # type: ignore[operator]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()  # type: ignore[operator]
    return graph.replay


def tune_head(bench: Bench) -> None:
    """Time the fused head against a plain product followed by torch reductions."""
    config = bench.config
    unembed = torch.empty(
        config.vocab_size, config.hidden_size, device=bench.device, dtype=bench.dtype
    ).normal_(0, 0.02)
    dead = torch.tensor([7], dtype=torch.int32, device=bench.device)
    eos = torch.tensor([11], dtype=torch.int32, device=bench.device)
    wide = [
        HeadTiling(128, 128, 64, 8, 3, 128),
        HeadTiling(128, 128, 64, 8, 3, 128, tiled=True),
        HeadTiling(128, 256, 64, 8, 4, tiled=True),
        HeadTiling(128, 256, 64, 8, 3, tiled=True),
    ]
    candidates = {
        16: [HeadTiling(16, 128, 128, 4, 3), HeadTiling(16, 64, 128, 4, 4), HeadTiling(16, 256, 64, 4, 3)],
        32: [
            HeadTiling(32, 128, 128, 4, 3),
            HeadTiling(32, 64, 128, 4, 4),
            HeadTiling(64, 128, 64, 4, 3, 128),
        ],
        528: [*wide, HeadTiling(64, 128, 64, 4, 3, 128)],
        2112: wide,
        8192: wide,
    }
    for rows, tilings in candidates.items():
        hidden = torch.randn(rows, config.hidden_size, device=bench.device).to(bench.dtype)
        answer = blank_answer(rows, 5, False, bench.device)
        bytes_floor = unembed.nbytes / bench.bandwidth
        for tiling in tilings:
            seconds = timed(
                bench,
                lambda hidden=hidden, tiling=tiling, answer=answer: merge_panels(
                    reduce_panels(hidden, unembed, config.vocab_size, dead, eos, None, tiling), 1, *answer
                ),
            )
            rate = 2 * rows * unembed.numel() / seconds / 1e12
            chosen = " *" if tiling == choose_head_tiling(rows) else ""
            shape = f"{tiling.block_m}×{tiling.block_n}×{tiling.block_k}"
            bench.report(
                f"head {rows} rows {shape} w{tiling.warps} s{tiling.stages} r{tiling.registers}"
                f"{' tiled' * tiling.tiled}{chosen}",
                f"{seconds * 1e3:.3f} ms {rate:.0f} TF/s",
                f"{bytes_floor * 1e3:.3f} ms ({seconds / bytes_floor:.2f}×)",
            )
        plain = bench.time(
            lambda hidden=hidden: torch.mm(hidden, unembed.T, out_dtype=torch.float32).logsumexp(1)
        )
        bench.report(f"head {rows} rows: plain product + log-sum-exp", f"{plain * 1e3:.3f} ms")
