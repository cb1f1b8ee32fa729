"""Generation with parallel commits: tokens per second and per pass with several tokens per step.

Random weights never give high probabilities, so acceptance is forced: ``Accept`` works like ``threshold``,
but instead of p it compares a number between 0 and 1 made of the low digits of a position's entropy. It
accepts about the requested share of the masked positions and at least the order's first one. Texts then need
different numbers of passes, as under a trained model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from llada2_bench.decoding import GOALS, PROMPT, random_samples
from llada2_bench.setting import Bench
from orderlens.decode import rounds
from orderlens.decode.generate import Generation, GenerationSettings, generate_batch
from orderlens.models.engine.engine import ForwardEngine
from orderlens.rules import Policy, parse_policy
from orderlens.rules.commit.thresholds import Threshold
from orderlens.rules.protocol import BoolArray, FloatArray
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import StepView

WARM = 3
"""Number of warm-up runs: a shape is recorded once it has occurred often enough."""
DIGITS = 1e4
"""Entropies of random weights are close together; multiplied by this factor, their fractions differ."""


class Accept(Threshold):
    """``threshold`` with a forced share: 1 − the fractional part of DIGITS × entropy replaces p."""

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the accepted rows and each chain's first."""
        stats: Any = view.stats
        sure: BoolArray = 1 - (stats.entropy * DIGITS) % 1.0 >= self.threshold
        return sure | view.best(scores_R)


def measure_sets(bench: Bench, batches: Iterable[int], shares: Iterable[float], new_tokens: int) -> None:
    """Time generations with forced acceptance, compared with one token per pass at the same batch size."""
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_eos=False)
    order = parse_policy("max-prob").order
    for batch in batches:
        samples = random_samples(bench, batch, 0)
        policies = {"one token per pass": Policy(order)} | {
            f"threshold, {share:.0%} accepted": Policy(order, Accept(1 - share)) for share in shares
        }
        single = None
        for name, policy in policies.items():

            def run(samples: Any = samples, policy: Policy = policy) -> Generation:
                return generate_batch(bench.model, samples, [policy], settings)

            for _ in range(WARM):
                run()  # compiles and records
            single = _report(bench, f"{name}, batch {batch}", run, batch, single)
            if policy.commit.spec.startswith("threshold"):
                with _separate_caching():
                    run()
                    _report(bench, f"   finished blocks cached separately, batch {batch}", run, batch, single)


@contextmanager
def _separate_caching() -> Iterator[None]:
    """Cache finished blocks in separate forwards."""
    joined = ForwardEngine.advances
    ForwardEngine.advances = property(lambda _: False)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ForwardEngine.advances = joined  # type: ignore[method-assign]


def _report(
    bench: Bench, what: str, run: Callable[[], Generation], batch: int, single: float | None
) -> float:
    """Print one generation; return its seconds per pass of the batch.

    ``single`` is the time of a pass that reveals one token per text, None if this is that generation.
    """
    spent: Counter[str] = Counter()
    made: list[Generation] = []
    with _timed(bench, spent):
        seconds = bench.wall(lambda: made.append(run()))
    seconds = min(seconds, bench.wall(run))  # without the clocks
    columns = made[0].columns
    tokens, passes = len(columns["position"]), _passes(columns)
    per_round = seconds / spent["evaluate calls"]
    ratio = "" if single is None else f"{per_round / single:.2f} × one token per pass"
    device = spent["evaluate"] + spent["extend"]
    bench.report(
        f"{what}: {tokens / passes:.2f} tokens per pass, {spent['extend calls']} extensions",
        f"{tokens / seconds:.0f} tok/s {per_round * 1e3:.2f} ms",
        ratio or f"host {1 - device / max(spent['all'], device):.0%}",
        GOALS.get(batch, "") if single is None else f"host {1 - device / max(spent['all'], device):.0%}",
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_pass=tokens / passes,
        rounds=spent["evaluate calls"],
        extensions=spent["extend calls"],
        seconds_per_round=per_round,
        device_seconds=device,
        clocked_seconds=spent["all"],
        prompt=PROMPT,
    )
    return per_round if single is None else single


def _passes(columns: Any) -> int:
    """Return the total number of passes of all texts."""
    last = np.zeros(int(columns["sample"].max()) + 1, np.int64)
    np.maximum.at(last, columns["sample"], columns["forward"] + 1)
    return int(last.sum())


@contextmanager
def _timed(bench: Bench, spent: Counter[str]) -> Iterator[None]:
    """Time the calls that wait for the device: forwards with their statistics, and extensions."""
    model, start_reduction = bench.model, rounds.start_reduction
    open_session = model.open_session

    def clocked(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = work(*arguments)
            bench.sync()
            spent[name] += time.perf_counter() - began  # type: ignore[assignment]
            spent[f"{name} calls"] += 1
            return result

        return call

    def opened() -> Any:
        session = open_session()
        session.evaluate = clocked("evaluate", session.evaluate)  # type: ignore[method-assign]
        session.extend = clocked("extend", session.extend)  # type: ignore[method-assign]
        return session

    def reduced(*arguments: Any) -> Any:
        began = time.perf_counter()
        stats = start_reduction(*arguments)()
        spent["evaluate"] += time.perf_counter() - began  # type: ignore[assignment]
        return lambda: stats

    began = time.perf_counter()
    model.open_session, rounds.start_reduction = opened, reduced  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.open_session
        rounds.start_reduction = start_reduction
        spent["all"] = time.perf_counter() - began  # type: ignore[assignment]
