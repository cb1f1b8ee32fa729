"""Setting of the benchmark: device, shape, random weights, timers, and the table printed at the end."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.loader import weight_bytes
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.decoder.weights import random_weights
from orderlens.models.families.llada2 import DIALECT, MINI
from orderlens.models.files.roles import TokenRoles

TINY = replace(
    MINI,
    vocab_size=512,
    hidden_size=64,
    n_layers=3,
    ffn_width=64,
    expert_width=32,
    n_experts=16,
    n_active=4,
    n_groups=4,
    n_kept_groups=2,
    n_heads=8,
    n_kv_heads=2,
    head_width=32,
    rotary=16,
)
"""For smoke runs without a GPU."""
COPY_BYTES = 4 * 2**30


@dataclass
class Bench:
    """One run of the benchmark: device, shape, and results so far."""

    device: torch.device
    config: DecoderConfig
    dtype: torch.dtype
    float8: bool = False
    lines: list[tuple[str, str, str, str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    _model: DecoderModel | None = None
    _bandwidth: float | None = None

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"

    @property
    def model(self) -> DecoderModel:
        """The model with random weights, built on the device at first use."""
        if self._model is None:
            began = time.perf_counter()
            weights = random_weights(self.config, self.device, self.dtype, float8=self.float8)
            vocab = self.config.vocab_size
            roles = TokenRoles(vocab - 289, frozenset({vocab - 292}), frozenset(), vocab)
            self._model = DecoderModel(weights, self.config, roles, DIALECT, name="random")
            self.sync()
            took = time.perf_counter() - began
            size = weight_bytes(self.config, self.dtype, self.float8) / 1e9
            values = self.config.n_parameters / 1e9
            print(f"random weights: {values:.2f} B, {size:.1f} GB in {took:.1f} s", flush=True)
        return self._model

    def use(self, weights: str) -> None:
        """Measure with experts in this format from now on; results carry its name."""
        self._model, self.float8, self.label = None, weights == "fp8", f"[{weights}] "
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert's weight."""
        return 1 if self.float8 else self.dtype.itemsize

    @property
    def bandwidth(self) -> float:
        """Copy bandwidth in bytes/s, reads plus writes."""
        if self._bandwidth is None:
            size = COPY_BYTES if self.cuda else 2**26
            source = torch.randn(size // 4, device=self.device)
            target = torch.empty_like(source)
            self._bandwidth = 2 * size / self.time(lambda: target.copy_(source))
            print(f"copy bandwidth: {self._bandwidth / 1e12:.2f} TB/s")
        return self._bandwidth

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def time(self, work: Callable[[], object], repeats: int = 20, warm: int = 3) -> float:
        """Return the median seconds of one call, by device events on CUDA."""
        for _ in range(warm):
            work()
        self.sync()
        if not self.cuda:
            return statistics.median(_clock(work) for _ in range(min(3, repeats)))
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repeats)
        ]
        for first, last in pairs:
            first.record()
            work()
            last.record()
        self.sync()
        return statistics.median(first.elapsed_time(last) for first, last in pairs) / 1e3

    def graphed(self, work: Callable[[], object], repeats: int = 10) -> float:
        """Return the median seconds of one replay of ``work`` as a CUDA graph; without CUDA, of one call."""
        if not self.cuda:
            return self.time(work, repeats=repeats)
        for _ in range(3):
            work()
        self.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return self.time(graph.replay, repeats=repeats)

    def wall(self, work: Callable[[], object], repeats: int = 1) -> float:
        """Return the wall-clock seconds of one call, host work included (median of ``repeats``)."""
        times = []
        for _ in range(repeats):
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def report(self, what: str, value: str, floor: str = "", goal: str = "", **numbers: Any) -> None:
        """Print one result and store it for the table."""
        what = self.label + what
        self.lines.append((what, value, floor, goal))
        self.numbers[what] = {"value": value, "floor": floor, "goal": goal, **numbers}
        print(f"{what:<58} {value:>22} {floor:>24} {goal:>16}", flush=True)

    def finish(self, out: Path | None) -> None:
        """Print the table as the last lines, and write the numbers."""
        print("\n" + f"{'what':<58} {'measured':>22} {'floor (ratio)':>24} {'goal':>16}")
        for what, value, floor, goal in self.lines:
            print(f"{what:<58} {value:>22} {floor:>24} {goal:>16}")
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(self.numbers, indent=1, default=str))


def _clock(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def dense_bytes(config: DecoderConfig, itemsize: int) -> int:
    """Return the bytes of all weights that a step reads, except routed experts and the embedding table."""
    routed = (config.n_layers - config.n_dense_layers) * config.n_experts * expert_values(config)
    return (config.n_parameters - routed - config.vocab_size * config.hidden_size) * itemsize


def expert_values(config: DecoderConfig) -> int:
    """Return the number of weights of one expert."""
    return 3 * config.hidden_size * config.expert_width


@contextmanager
def forwards_of(bench: Bench, tokens: int) -> Iterator[None]:
    """Limit forwards to ``tokens`` tokens inside the ``with`` statement; printed results name the limit."""
    engine, before = bench.model.engine, (bench.model.engine._max_tokens, bench.label)
    if tokens != engine.widest:
        engine._max_tokens, bench.label = tokens, f"{bench.label}[{tokens:,} tokens] "
    try:
        yield
    finally:
        engine._max_tokens, bench.label = before
