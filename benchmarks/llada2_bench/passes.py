"""Time of host and device per pass of a large batch, and time per kernel of one step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from llada2_bench.decoding import half_open, prefilled, random_samples
from llada2_bench.setting import Bench
from orderlens.decode import rounds
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.head import position_stats, start_reduction
from orderlens.rules import parse_policies
from orderlens.studies.replicate_plan import make_plan

NEW_TOKENS, TEMPERATURE = 32, 0.7
SHOWN = 22
"""Number of kernels that are listed per step."""


class Clock:
    """Times the parts of every pass: host before, launching, waiting, host after; and the device."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.parts = cuda, list[tuple[float, ...]]()

    def passes(self, batch: rounds.Rounds) -> Iterator[None]:
        """Do the same as ``Rounds.passes``."""
        batch._prefill()
        while True:
            times = [time.perf_counter()]
            batch._leave_done_blocks()
            if not len(batch.chain_C):
                return
            times.append(time.perf_counter())
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.cuda else []
            for event in events[:1]:
                event.record()
            wait_for_pass = batch._evaluate()
            for event in events[1:]:
                event.record()
            times.append(time.perf_counter())
            yield
            times.append(time.perf_counter())
            now = wait_for_pass()
            times.append(time.perf_counter())
            batch._finish(now)
            times.append(time.perf_counter())
            device = events[0].elapsed_time(events[1]) / 1e3 if events else 0.0
            before, launch, _, wait, after = np.diff(times)
            self.parts.append((before, launch, wait, after, device))


def measure_passes(bench: Bench, texts: int) -> None:
    """Time the sweep's orders on ``texts`` texts, twice: the first run compiles and records."""
    orders = parse_policies(make_plan("full", "random", "random").sweep_orders)
    samples = random_samples(bench, texts, 0)
    settings = GenerationSettings(NEW_TOKENS, TEMPERATURE, stop_at_eos=False)
    for turn in ("first", "second"):
        clock, original = Clock(bench.cuda), rounds.Rounds.passes
        rounds.Rounds.passes = lambda batch, clock=clock: clock.passes(batch)
        try:
            seconds = bench.wall(lambda: generate_batch(bench.model, samples, orders, settings))
        finally:
            rounds.Rounds.passes = original
        names = ("moving on", "launching", "waiting", "choosing", "device")
        medians = dict(zip(names, (np.median(clock.parts, axis=0) * 1e3).round(2).tolist(), strict=True))
        tokens = texts * len(orders) * NEW_TOKENS
        bench.report(
            f"{texts * len(orders)} texts × {NEW_TOKENS}, T = {TEMPERATURE}, {turn} run",
            f"{seconds:.1f} s {tokens / seconds:.0f} tok/s",
            ", ".join(f"{name} {value:.1f} ms" for name, value in medians.items()),
            **medians,
        )


def profile_steps(bench: Bench, batches: Iterable[int]) -> None:
    """Time one step: host before and after the launch, then each kernel (CUDA), replayed if recorded."""
    for batch in batches:
        session, states = prefilled(bench, batch, 64), half_open(bench, batch, 64)
        for _ in range(4):
            position_stats(session.evaluate(states), bench.model.eos_ids)
        host = []
        for _ in range(20 if bench.cuda else 2):
            bench.sync()
            times = [time.perf_counter()]
            rows = session.evaluate(states)
            times.append(time.perf_counter())
            pending = start_reduction(rows, bench.model.eos_ids)
            times.append(time.perf_counter())
            pending()
            host.append(np.diff([*times, time.perf_counter()]))
        forward, head, wait = np.median(host, axis=0) * 1e3
        bench.report(
            f"profile, batch {batch}: launching forward, head; waiting",
            f"{forward:.2f} {head:.2f} {wait:.2f} ms",
            f"{forward + head + wait:.2f} ms",
        )
        if bench.cuda:
            _profile(
                bench, batch, lambda s=session, x=states: position_stats(s.evaluate(x), bench.model.eos_ids)
            )


def _profile(bench: Bench, batch: int, step: object, repeats: int = 3) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(repeats):
            step()  # type: ignore[operator]
        bench.sync()
    events = [event for event in recorded.events() if event.device_type.name == "CUDA"]
    seconds, counts = Counter[str](), Counter[str]()
    for event in events:
        seconds[event.name] += event.time_range.end - event.time_range.start
        counts[event.name] += 1
    total = seconds.total()
    bench.report(
        f"profile, batch {batch}: all kernels",
        f"{total / repeats / 1e3:.2f} ms",
        f"{len(events) / repeats:.0f} kernels",
    )
    for name, spent in seconds.most_common(SHOWN):
        bench.report(
            f"   {name[:46]} ×{counts[name] / repeats:.0f}",
            f"{spent / repeats / 1e3:.3f} ms",
            f"{spent / total:.1%}, {spent / counts[name]:.1f} µs each",
        )
