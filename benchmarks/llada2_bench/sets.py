"""Generation that commits sets: tokens per second and per pass when several positions are taken at once.

Random weights are never sure of anything, so acceptance is forced: ``Accept`` does the work of ``threshold``
but compares a number between 0 and 1 made of the low digits of a position's entropy instead of p. It accepts
about the wanted share of the masked positions and at least the order's first, and texts go out of step with
each other as they do under a trained model.
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
"""Runs before the clock starts: a shape is recorded when it has come up often enough."""
DIGITS = 1e4
"""Entropies of random weights lie close together: their differences are in the digits behind this factor."""


class Accept(Threshold):
    """``threshold`` with a forced share: 1 − the fraction of DIGITS × entropy takes the place of p."""

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the accepted rows and each chain's first."""
        stats: Any = view.stats
        sure: BoolArray = 1 - (stats.entropy * DIGITS) % 1.0 >= self.threshold
        return sure | view.best(scores_R)


def measure_sets(bench: Bench, batches: Iterable[int], shares: Iterable[float], new_tokens: int) -> None:
    """Whole generations with forced acceptance, beside one token per pass at the same batch size."""
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_eos=False)
    order = parse_policy("max-prob").order
    for batch in batches:
        samples = random_samples(bench, batch, 0)
        policies = {"one by one": Policy(order)} | {
            f"threshold, {share:.0%} accepted": Policy(order, Accept(1 - share)) for share in shares
        }
        alone = None
        for name, policy in policies.items():

            def run(samples: Any = samples, policy: Policy = policy) -> Generation:
                return generate_batch(bench.model, samples, [policy], settings)

            for _ in range(WARM):
                run()  # compiles and records
            alone = _report(bench, f"{name}, batch {batch}", run, batch, alone)
            if policy.commit.spec.startswith("threshold"):
                with _apart():
                    run()
                    _report(bench, f"   finished blocks cached apart, batch {batch}", run, batch, alone)


@contextmanager
def _apart() -> Iterator[None]:
    """Give finished blocks a forward of their own, as one token per pass hardly notices."""
    joined = ForwardEngine.advances
    ForwardEngine.advances = property(lambda _: False)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ForwardEngine.advances = joined  # type: ignore[method-assign]


def _report(bench: Bench, what: str, run: Callable[[], Generation], batch: int, alone: float | None) -> float:
    """Report one generation; return its seconds per pass of the whole batch."""
    spent: Counter[str] = Counter()
    made: list[Generation] = []
    with _timed(bench, spent):
        seconds = bench.wall(lambda: made.append(run()))
    seconds = min(seconds, bench.wall(run))  # without the clocks
    columns = made[0].columns
    tokens, passes = len(columns["position"]), _passes(columns)
    per_round = seconds / spent["evaluate calls"]
    kept = "" if alone is None else f"{per_round / alone:.2f} × a round one by one"
    device = spent["evaluate"] + spent["extend"]
    bench.report(
        f"{what}: {tokens / passes:.2f} tokens per pass, {spent['extend calls']} extensions",
        f"{tokens / seconds:.0f} tok/s {per_round * 1e3:.2f} ms",
        kept or f"host {1 - device / max(spent['all'], device):.0%}",
        GOALS.get(batch, "") if alone is None else f"host {1 - device / max(spent['all'], device):.0%}",
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
    return per_round if alone is None else alone


def _passes(columns: Any) -> int:
    """Return the passes of all texts together."""
    last = np.zeros(int(columns["sample"].max()) + 1, np.int64)
    np.maximum.at(last, columns["sample"], columns["forward"] + 1)
    return int(last.sum())


@contextmanager
def _timed(bench: Bench, spent: Counter[str]) -> Iterator[None]:
    """Clock what waits for the device: forwards with their statistics, and extensions."""
    model, ask = bench.model, rounds.ask
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
        answer = ask(*arguments)()
        spent["evaluate"] += time.perf_counter() - began  # type: ignore[assignment]
        return lambda: answer

    began = time.perf_counter()
    model.open_session, rounds.ask = opened, reduced  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.open_session
        rounds.ask = ask
        spent["all"] = time.perf_counter() - began  # type: ignore[assignment]
