"""Sections of the benchmark: bounds, single products, steps, a profile, scoring and generation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from dense_bench.setting import NEW, PROMPT, DenseBench
from orderlens.decode import head_torch
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.head import position_stats
from orderlens.decode.score import score_batch
from orderlens.models.decoder import triton_ops
from orderlens.models.decoder.network import DecoderNetwork
from orderlens.models.decoder.torch_ops import TorchOps
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

SCORED_ORDERS = ("forced-ar", "reverse-ar", "random", "oracle-max-q", "oracle-margin", "oracle-min-q")


def check(bench: DenseBench) -> None:
    """Compare the forward with kernels and graph against plain torch in float32 on the same weights."""
    states = bench.states(2)
    session = bench.model.open_session()
    for _ in range(4):
        found = session.evaluate(states).hidden_RD.double()
    tokens = torch.from_numpy(states.tokens_NW).to(bench.device)
    plain = _first_layers(bench, 4, torch.float32).canvas(tokens)
    fast = _first_layers(bench, 4, bench.dtype).canvas(tokens)
    error = float((fast.double() - plain.double()).norm() / plain.double().norm())
    finite = bool(torch.isfinite(found).all())
    passed = finite and error < (2e-2 if bench.cuda else 1e-4)
    bench.report("4 layers against plain float32", f"{error:.2e}", "", "ok" if passed else "FAILED")


def _first_layers(bench: DenseBench, count: int, dtype: torch.dtype) -> DecoderNetwork:
    weights, config = bench.model.weights, replace(bench.config, n_layers=min(count, bench.config.n_layers))
    cut = replace(weights, layers=weights.layers[: config.n_layers]).to(dtype)
    plain = TorchOps(config, bench.device, dtype) if dtype == torch.float32 else None
    return DecoderNetwork(cut, config, plain)


def measure_products(bench: DenseBench, batches: Iterable[int]) -> None:
    """The four products of a layer, each on rotating weights, against reading them once.

    The last column also has the times of other calls of the vendor library: its light interface (which torch
    calls experimental), and a bias of zeros.
    """
    layers = bench.model.weights.layers
    for batch in batches:
        tokens = batch * (PROMPT + NEW)
        for name in ("qkv_OC", "out_CO", "gate_up_FC", "down_CF"):
            whole = name in ("qkv_OC", "out_CO")
            matrices = [getattr(layer if whole else layer.feed_forward, name) for layer in layers]
            seconds = _products(bench, matrices, tokens)
            others = [_products(bench, matrices, tokens, biased=True)]
            if bench.cuda:
                torch.backends.cuda.preferred_blas_library("cublaslt")
                others.insert(0, _products(bench, matrices, tokens))
                torch.backends.cuda.preferred_blas_library("default")
            work, floor = 2.0 * tokens * matrices[0].numel(), matrices[0].nbytes / bench.bandwidth
            bench.report(
                f"product {name} {tuple(matrices[0].shape)}, {tokens} tokens",
                f"{seconds * 1e6:.1f} µs {work / seconds / 1e12:.0f} TFLOP/s",
                f"read {floor * 1e6:.1f} µs ({seconds / floor:.2f}×)",
                f"{work / seconds / bench.peak:.0%} of peak; " + ", ".join(f"{o * 1e6:.1f}" for o in others),
                seconds=seconds,
                other_seconds=others,
            )


def _products(bench: DenseBench, matrices: list[torch.Tensor], tokens: int, *, biased: bool = False) -> float:
    """Return the mean seconds of one product over all layers' matrices, recorded as a graph."""
    x = torch.randn(tokens, matrices[0].shape[1], device=bench.device, dtype=bench.dtype)
    bias = matrices[0].new_zeros(len(matrices[0])) if biased else None
    return bench.graphed(lambda: [functional.linear(x, matrix, bias) for matrix in matrices]) / len(matrices)


def tune_canvas(bench: DenseBench, batches: Iterable[int]) -> None:
    """Time the tilings of the attention over canvases; use the best ones for the rest of this run."""
    from orderlens.kernels import attention

    network: Any = bench.model.engine.network
    original, best = attention.choose_tiling, {}
    for batch in batches:
        tokens = batch * (PROMPT + NEW)
        fused = torch.randn(tokens, bench.config.qkv_width, device=bench.device, dtype=bench.dtype)
        tables, found = network.network.ops.tables, {}
        for tiling in (
            attention.CanvasTiling(m, x, w) for m in (16, 32, 64) for x in (32, 64, 128) for w in (4, 8)
        ):
            if tiling.block_m * tiling.block_x > 4096 or (tiling.warps == 8 and tiling.block_m == 16):
                continue
            attention.choose_tiling = lambda *_, tiling=tiling: tiling
            run = lambda: [attention.attend_canvas(fused, batch, tables, bench.config) for _ in range(8)]  # noqa: B023, E731
            found[tiling] = bench.graphed(run) / 8
        best[batch] = min(found, key=found.__getitem__)
        ranked = sorted(found.items(), key=lambda item: item[1])[:5]
        line = ", ".join(f"{tuple(tiling)} {seconds * 1e6:.1f}" for tiling, seconds in ranked)
        before = found.get(original(batch, PROMPT + NEW, bench.config.n_heads))
        bench.report(f"canvas attention, batch {batch}, before: {1e6 * (before or 0):.1f} µs", line)
    attention.choose_tiling = lambda count, *rest: best.get(count) or original(count, *rest)


def measure_steps(bench: DenseBench, batches: Iterable[int]) -> None:
    """Time one decoding step (forward, and head on the requested rows): on the device, and with the host."""
    for batch in batches:
        states, session = bench.states(batch), bench.model.open_session()
        eos = sorted(bench.model.eos_ids)

        def on_device(states: Any = states, session: Any = session, eos: Any = eos) -> None:
            rows = session.evaluate(states)
            head_torch._head(rows).reduce(rows, eos, None)

        def step(states: Any = states, session: Any = session) -> None:
            position_stats(session.evaluate(states), bench.model.eos_ids)

        for _ in range(4):
            step()
        repeats = 20 if batch < 8 else 5
        forward = bench.time(lambda: session.evaluate(states), repeats=repeats)  # noqa: B023
        device = bench.time(on_device, repeats=repeats)
        wall = bench.wall(step, repeats=repeats)
        read = bench.config.n_parameters * bench.dtype.itemsize / bench.bandwidth
        needed = bench.read_values * bench.dtype.itemsize / bench.bandwidth
        work = bench.flops(states.tokens_NW.size, states.tokens_NW.shape[1], len(states.row_state_R))
        bench.report(
            f"step, batch {batch}: forward {forward * 1e3:.2f} ms, by the wall clock {wall * 1e3:.2f} ms",
            f"{device * 1e3:.2f} ms {work / device / 1e12:.0f} TFLOP/s",
            f"read {read * 1e3:.2f} ms ({device / read:.2f}×; {device / needed:.2f}× without embedding)",
            f"{work / device / bench.peak:.1%} of peak",
            seconds=device,
            forward_seconds=forward,
            wall_seconds=wall,
            read_seconds=read,
            needed_seconds=needed,
            flops=work,
        )


def measure_parts(bench: DenseBench, batches: Iterable[int]) -> None:
    """Time the forward without one of its parts: zero biases, graphs, kernels."""
    engine = bench.model.engine
    network: Any = engine.network
    for batch in batches:
        states, session = bench.states(batch), bench.model.open_session()

        def forward(states: Any = states, session: Any = session, repeats: int = 20) -> float:
            for _ in range(4):
                session.evaluate(states)
            return bench.time(lambda: session.evaluate(states), repeats=repeats)

        whole = forward()
        few, triton_ops.FEW_TOKENS = triton_ops.FEW_TOKENS, 0
        engine.release()
        unbiased = forward()
        triton_ops.FEW_TOKENS = few
        engine.release()
        again = forward()
        graphs, engine._graphs = engine._graphs, None
        own = network.network.ops
        try:
            plain = forward()
            network.network.ops = TorchOps(bench.config, bench.device, bench.dtype)
            torch_only = forward(repeats=5)
        finally:
            engine._graphs, network.network.ops = graphs, own
        bench.report(
            f"forward, batch {batch}, {whole * 1e3:.2f} ms and again {again * 1e3:.2f}: without zero biases",
            f"{unbiased * 1e3:.2f} ms",
            f"no graphs {plain * 1e3:.2f}, no kernels either {torch_only * 1e3:.2f}",
            seconds=[whole, again, unbiased, plain, torch_only],
        )


def profile_steps(bench: DenseBench, batches: Iterable[int]) -> None:
    """Print the time of one step by kernel (plain launches, no graph)."""
    from torch.profiler import ProfilerActivity, profile

    engine = bench.model.engine
    for batch in batches:
        states, session = bench.states(batch), bench.model.open_session()
        graphs, engine._graphs = engine._graphs, None
        try:
            for _ in range(3):
                position_stats(session.evaluate(states), bench.model.eos_ids)
            bench.sync()
            with profile(activities=[ProfilerActivity.CUDA]) as recorded:
                position_stats(session.evaluate(states), bench.model.eos_ids)
                bench.sync()
        finally:
            engine._graphs = graphs
        events = sorted(recorded.key_averages(), key=lambda event: -event.device_time_total)
        total = sum(event.device_time_total for event in events)
        bench.report(f"profile, batch {batch}: all kernels", f"{total / 1e3:.2f} ms")
        for event in events[:12]:
            bench.report(
                f"   {event.key[:50]} ×{event.count}",
                f"{event.device_time_total / 1e3:.3f} ms",
                f"{event.device_time_total / total:.1%}",
            )


def random_samples(bench: DenseBench, count: int, target: int) -> list[EncodedSample]:
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, bench.model.mask_id - 300, (count, PROMPT + target))
    return [EncodedSample(str(i), row[:PROMPT], row[PROMPT:]) for i, row in enumerate(tokens)]


def measure_scoring(bench: DenseBench, sequences: int) -> None:
    """Time the fixed-sequence table: sequences × 6 orders × 128 tokens, extrapolated to 1,000."""
    samples, orders = random_samples(bench, sequences, NEW), parse_policies(SCORED_ORDERS)
    bench.wall(lambda: score_batch(bench.model, samples[:1], orders[:1]))
    seconds = bench.wall(lambda: score_batch(bench.model, samples, orders))
    passes = sequences * len(orders) * NEW
    work = passes * bench.flops(PROMPT + NEW, PROMPT + NEW, 1)
    bench.report(
        f"score {sequences} sequences × {len(orders)} orders × {NEW}",
        f"{seconds:.1f} s {passes / seconds:.0f} states/s",
        f"1,000: {seconds * 1000 / sequences / 60:.0f} min (extrapolated)",
        f"{work / seconds / bench.peak:.0%} of peak",
        seconds=seconds,
    )


def measure_generation(bench: DenseBench, batches: Iterable[int], new_tokens: int) -> None:
    """Time complete generations, after one that compiles and records."""
    orders = parse_policies(["max-prob"])
    for batch in batches:
        samples = random_samples(bench, batch, 0)
        settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_eos=False)
        bench.wall(lambda: generate_batch(bench.model, samples, orders, settings))  # noqa: B023
        seconds = bench.wall(lambda: generate_batch(bench.model, samples, orders, settings))  # noqa: B023
        bench.report(
            f"generate {PROMPT}+{new_tokens}, batch {batch}, max-prob",
            f"{seconds:.2f} s {batch * new_tokens / seconds:.0f} tok/s",
            f"{seconds / new_tokens * 1e3:.2f} ms per step",
            seconds=seconds,
        )
