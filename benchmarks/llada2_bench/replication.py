"""The stages of ``replicate --preset full`` with random weights and texts, each on a share of its work."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from llada2_bench.setting import Bench
from orderlens.studies import runner
from orderlens.studies.plan import Plan
from orderlens.studies.replicate_plan import make_plan
from orderlens.texts.loading import LoadedData
from orderlens.texts.samples import Sample

TEXTS = 1000
"""Number of texts in the full preset, to which times are extrapolated."""


class Watch:
    """A progress bar that records only the longest time without progress, including the end."""

    def __init__(self) -> None:
        self.longest, self._last = 0.0, time.perf_counter()

    def __call__(self, steps: int = 1) -> None:
        """Count ``steps`` steps."""
        del steps
        now = time.perf_counter()
        self.longest, self._last = max(self.longest, now - self._last), now

    def set_total(self, total: int) -> None:
        """Ignore the total number of steps."""
        del total


def random_texts(bench: Bench, plan: Plan, count: int) -> list[Sample]:
    length, cut = plan.prefix_tokens + plan.target_tokens, plan.prefix_tokens
    ids = np.random.default_rng(12).integers(0, bench.model.mask_id - 10, (count, length))
    return [Sample(f"t{i}", row[:cut].tolist(), row[cut:].tolist()) for i, row in enumerate(ids)]


def measure_stages(bench: Bench, names: list[str], texts: int, temperatures: tuple[float, ...]) -> None:
    """Run stages on ``texts`` texts (``measure`` on at most 64) and extrapolate to the full preset."""
    full = make_plan("full", "random", "random", n_texts=TEXTS)
    plan = replace(full, temperatures=temperatures)
    samples = random_texts(bench, plan, max(texts, plan.measured_texts))
    for name in names:
        count, watch = min(texts, plan.measured_texts) if name == "measure" else texts, Watch()
        seconds = _run_stage(bench, name, plan, samples[:count], watch)
        whole = full.tokens_of(name)
        reveals = plan.tokens_of(name) * count // TEXTS
        bench.report(
            f"replicate, stage {name}, {count} texts",
            f"{seconds:.1f} s {reveals / seconds:.0f}/s" if reveals else f"{seconds:.1f} s",
            f"all {whole:,}: {whole * seconds / reveals:.0f} s" if reveals else "goal 60 s",
            f"gap {watch.longest:.1f} s",
            seconds=seconds,
        )


def _run_stage(bench: Bench, name: str, plan: Plan, samples: list[Sample], watch: Watch) -> float:
    @contextmanager
    def show(_label: str) -> Iterator[Watch]:
        yield watch
        watch()

    with tempfile.TemporaryDirectory() as folder:
        data = LoadedData(samples, "random", len(samples))
        began = time.perf_counter()
        parts = runner.Bench(plan, bench.model, data, Path(folder))
        for part in plan.parts_of(name):
            parts.run(part, show)
        return time.perf_counter() - began
