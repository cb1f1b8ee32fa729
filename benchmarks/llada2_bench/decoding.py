"""Steps, generation, scoring, long contexts and memory, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from llada2_bench.setting import Bench, dense_bytes, expert_values
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.head import position_stats
from orderlens.decode.score import score_batch
from orderlens.kernels.gpu import triton_installed
from orderlens.models.engine.session import PagedSession
from orderlens.models.protocol import StateBatch
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample

SCORED_ORDERS = ("forced-ar", "reverse-ar", "random", "oracle-max-q", "oracle-margin", "oracle-min-q")
GENERATED_ORDERS = ("forced-ar", "random", "max-prob", "top-margin")
GOALS = {1: "≥ 100 tok/s", 32: "≥ 2000 tok/s", 128: "≥ 6800 tok/s", 256: "≥ 8000 tok/s"}
PROMPT, NEW = 32, 128


def prefilled(bench: Bench, batch: int, length: int) -> PagedSession:
    """Return a session of ``batch`` random prefixes of ``length`` tokens."""
    generator = np.random.default_rng(1)
    session = bench.model.open_session()
    session.prefill([generator.integers(0, bench.model.mask_id, length) for _ in range(batch)], [0] * batch)
    return session


def half_open(bench: Bench, batch: int, start: int, masked: bool = True) -> StateBatch:
    """Return states in the middle of a block: every second position masked, 16 requested rows per state.

    Under random weights all masks use nearly the same experts. Without masks (``masked`` false; the same rows
    are requested) tokens differ and use about the same number of experts as under independent random routing.
    """
    block = bench.model.block_size
    tokens = np.random.default_rng(2).integers(0, bench.model.mask_id, (batch, block))
    wanted = np.zeros((batch, block), bool)
    wanted[:, ::2] = True
    if masked:
        tokens[wanted] = bench.model.mask_id
    state, offset = np.nonzero(wanted)
    return StateBatch(np.arange(batch), np.full(batch, start), tokens, state, offset)


def touched_experts(bench: Bench, session: PagedSession, states: StateBatch) -> float:
    """Return the mean number of routed experts that one layer of this forward reads."""
    if not triton_installed() or not bench.cuda:
        return float("nan")
    from orderlens.models.decoder import triton_ops

    original, seen = triton_ops.choose_experts, []

    def counting(*arguments: Any) -> Any:
        chosen = original(*arguments)
        seen.append(len(chosen[0][:, : bench.config.n_active].unique()))
        return chosen

    graphs = bench.model.engine._graphs
    triton_ops.choose_experts, bench.model.engine._graphs = counting, None
    try:
        session.evaluate(states)
    finally:
        triton_ops.choose_experts, bench.model.engine._graphs = original, graphs
    return float(np.mean(seen))


def step_floor(bench: Bench, touched: float, batch: int, start: int) -> float:
    """Return the seconds to read the used experts, all dense weights and the cached keys once."""
    config, size = bench.config, bench.dtype.itemsize
    sparse_layers = config.n_layers - config.n_dense_layers
    routed = (
        (touched if touched == touched else config.n_experts)
        * sparse_layers
        * expert_values(config)
        * bench.expert_bytes
    )
    cached = batch * start * config.kv_values_per_token * size
    return (routed + dense_bytes(config, size) + cached) / bench.bandwidth


def measure_steps(bench: Bench, batches: Iterable[int]) -> None:
    """Time one decoding step (forward, head, copy to the host), and the extra forward per block."""
    for batch, masked in ((batch, masked) for batch in batches for masked in (True, False)):
        session, states = prefilled(bench, batch, 64), half_open(bench, batch, 64, masked)
        touched = touched_experts(bench, session, states)
        floor = step_floor(bench, touched, batch, 64)

        def step(session: PagedSession = session, states: StateBatch = states) -> None:
            position_stats(session.evaluate(states), bench.model.eos_ids)

        for _ in range(4):
            step()
        forward = bench.time(lambda session=session, states=states: session.evaluate(states))
        whole = bench.wall(step, repeats=15)
        extend = bench.wall(_extension(bench, session, batch), repeats=5)
        rate = batch / (whole + extend / bench.model.block_size)
        bench.report(
            f"step, batch {batch}, {'half' if masked else 'no'} masks: forward {forward * 1e3:.2f} + head, "
            f"{touched:.0f} experts",
            f"{whole * 1e3:.2f} ms {rate:.0f} tok/s",
            f"{floor * 1e3:.2f} ms ({whole / floor:.2f}×)",
            GOALS.get(batch, ""),
            seconds=whole,
            forward_seconds=forward,
            extend_seconds=extend,
            floor_seconds=floor,
            tokens_per_second=rate,
        )


def _extension(bench: Bench, session: PagedSession, batch: int) -> Callable[[], object]:
    blocks = np.random.default_rng(3).integers(0, bench.model.mask_id, (batch, bench.model.block_size))
    return lambda: session.extend(np.arange(batch), blocks)


def random_samples(bench: Bench, count: int, target: int) -> list[EncodedSample]:
    generator = np.random.default_rng(4)
    tokens = generator.integers(0, bench.model.mask_id - 10, (count, PROMPT + target))
    return [EncodedSample(str(i), row[:PROMPT], row[PROMPT:]) for i, row in enumerate(tokens)]


def measure_generation(
    bench: Bench,
    batches: Iterable[int],
    new_tokens: int = NEW,
    temperatures: Sequence[float] = (0.0,),
    speculation: Sequence[str] = ("on",),
) -> None:
    """Time complete generations, after one of at most 128 tokens that compiles and records."""
    orders = parse_policies(["max-prob"])
    for batch in batches:
        samples, cold = random_samples(bench, batch, 0), None
        for temperature in temperatures:
            settings = GenerationSettings(new_tokens, temperature, stop_at_eos=False)
            warm = replace(settings, max_new_tokens=min(new_tokens, NEW))
            first = bench.wall(_generate(bench, samples, orders, warm))
            for word in speculation:
                bench.model.engine.can_speculate = word == "on"
                seconds = bench.wall(_generate(bench, samples, orders, settings))
                cold = cold or seconds
                rate = batch * new_tokens / seconds
                how = "" if word == "on" else ", no speculation"
                bench.report(
                    f"generate {PROMPT}+{new_tokens}, batch {batch}, T = {temperature:g}{how} "
                    f"(first {first:.1f} s)",
                    f"{seconds:.2f} s {rate:.0f} tok/s",
                    f"{seconds / new_tokens * 1e3:.2f} ms, {seconds / cold:.2f}× first",
                    GOALS.get(batch, ""),
                    seconds=seconds,
                    tokens_per_second=rate,
                )
            bench.model.engine.can_speculate = bench.cuda


def _generate(bench: Bench, samples: Any, orders: Any, settings: Any) -> Callable[[], object]:
    return lambda: generate_batch(bench.model, samples, orders, settings)


def measure_generation_table(bench: Bench, prompts: int) -> None:
    """Time the paper's generation table: prompts × 4 orders × 128 tokens, extrapolated to 1,000 prompts."""
    settings = GenerationSettings(max_new_tokens=NEW, stop_at_eos=False)
    run = _generate(bench, random_samples(bench, prompts, 0), parse_policies(GENERATED_ORDERS), settings)
    bench.wall(run)
    seconds = bench.wall(run)
    bench.report(
        f"generation table, {prompts} prompts × {len(GENERATED_ORDERS)} orders × {NEW}",
        f"{seconds:.1f} s",
        f"1,000 prompts: {seconds * 1000 / prompts:.0f} s",
        "≤ 240 s",
        seconds=seconds,
    )


def measure_scoring(bench: Bench, sequences: int) -> None:
    """Time the paper's fixed-sequence table: sequences × 6 orders × 128 tokens, extrapolated to 1,000."""
    samples, orders = random_samples(bench, sequences, NEW), parse_policies(SCORED_ORDERS)
    bench.wall(lambda: score_batch(bench.model, samples[: max(1, sequences // 8)], orders))
    seconds = bench.wall(lambda: score_batch(bench.model, samples, orders))
    states = sequences * len(orders) * NEW
    bench.report(
        f"score {sequences} sequences × {len(orders)} orders × {NEW}",
        f"{seconds:.1f} s {states / seconds:.0f} states/s",
        f"1,000 sequences: {seconds * 1000 / sequences:.0f} s",
        "≥ 9500 states/s",
        seconds=seconds,
    )


def measure_long(bench: Bench, lengths: Iterable[int], batches: Iterable[int]) -> None:
    """Time a step and the prefill for growing contexts."""
    for batch in batches:
        for length in lengths:
            fill = bench.wall(lambda batch=batch, length=length: prefilled(bench, batch, length))
            session, states = prefilled(bench, batch, length), half_open(bench, batch, length)
            for _ in range(4):
                session.evaluate(states)
            seconds = bench.time(lambda session=session, states=states: session.evaluate(states), repeats=10)
            floor = step_floor(bench, touched_experts(bench, session, states), batch, length)
            bench.report(
                f"context {length}, batch {batch} (prefill {fill:.2f} s)",
                f"{seconds * 1e3:.2f} ms",
                f"{floor * 1e3:.2f} ms ({seconds / floor:.2f}×)",
                seconds=seconds,
            )
            del session


def measure_memory(bench: Bench, batches: Iterable[int], length: int = 160) -> None:
    """Measure the peak memory of a generation step at several batch sizes, and the suggested batch."""
    for batch in batches:
        torch.cuda.reset_peak_memory_stats()
        session = prefilled(bench, batch, length)
        states = half_open(bench, batch, length)
        for _ in range(4):
            position_stats(session.evaluate(states), bench.model.eos_ids)
        peak = torch.cuda.max_memory_allocated() / 1e9
        bench.report(f"peak memory, batch {batch}, {length} tokens each", f"{peak:.1f} GB", peak_gb=peak)
        del session
    for tokens in (160, 2048, 16384):
        bench.report(f"suggested batch for {tokens} tokens each", str(bench.model.suggested_batch(tokens)))
