"""One trace for display: its reveals as columns in the order of steps, and the statistics of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orderlens.metrics.order_shape import EosCascade, eos_cascade
from orderlens.metrics.passes import segment_pass_counts
from orderlens.metrics.path import LOG_HALF, PathStats, gini, lorenz, path_stats
from orderlens.metrics.segments import Segments
from orderlens.metrics.trace_table import overflow_before
from orderlens.rules import spec_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

WORST = 10
"""Number of uncertain steps that are listed."""
_INTS = ("step", "forward", "block", "position", "token_id", "n_tied", "n_committed", "n_lookahead")
NUMBERS = (
    "logq",
    "tempered_logq",
    "max_logprob",
    "second_logprob",
    "competitor_logprob",
    "entropy",
)
FLAGS = ("is_eos", "is_special", "is_overflow", "is_argmax")


@dataclass(frozen=True, slots=True)
class TraceKey:
    """Identifies a trace; the key columns of the store."""

    sample_id: str
    order: str
    run: str = ""
    task: str | None = None
    seed: int | None = None
    temperature: float | None = None
    sample_seed: int | None = None

    @property
    def spec(self) -> str:
        """The order with its seed: ``random:3+top=4``."""
        return spec_of(self.order, self.seed)

    @property
    def name(self) -> str:
        """Order, seed and temperature, for lists: ``random:3, T = 0.7``."""
        return self.spec if not self.temperature else f"{self.spec}, T = {self.temperature:g}"

    @property
    def id(self) -> str:
        """A name that is the same wherever the trace is shown, for links."""
        drawn = {"t": self.temperature, "draw": self.sample_seed, "task": self.task, "run": self.run or None}
        parts = (f"{name}={value}" for name, value in drawn.items() if value is not None)
        return " ".join([self.spec, *parts])


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a path is among all orders of its span.

    Attributes:
        share_below: share of all orders with a lower log P.
        share_error: its standard error; 0 where all orders are counted.
        n_orders: number of all orders.
        regret: log P of the best order minus that of the path (nats).
    """

    share_below: float
    share_error: float
    n_orders: int
    regret: float


@dataclass(frozen=True, slots=True)
class Reveals:
    """The revealed tokens of one trace, overflow included, as arrays [n] sorted by step.

    Unknown numbers are NaN; unknown counts are 0; unknown flags are False. Log-probabilities in nats.
    """

    step: Ints
    forward: Ints
    block: Ints
    position: Ints
    token_id: Ints
    n_tied: Ints
    n_committed: Ints
    n_lookahead: Ints
    logq: Floats
    tempered_logq: Floats
    max_logprob: Floats
    second_logprob: Floats
    competitor_logprob: Floats
    entropy: Floats
    is_eos: Flags
    is_special: Flags
    is_overflow: Flags
    is_argmax: Flags

    @classmethod
    def of(cls, table: pa.Table) -> Reveals:
        """Read the rows of one trace."""
        by = np.argsort(_ints(table, "step"), kind="stable")
        columns: dict[str, Any] = {name: _ints(table, name)[by] for name in _INTS}
        columns |= {name: _floats(table, name)[by] for name in NUMBERS}
        columns |= {name: _flags(table, name)[by] for name in FLAGS}
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.step)

    @property
    def n_overflow_before(self) -> int:
        """Number of reveals past the requested length in a pass before a requested one."""
        return int(overflow_before(self.forward, ~self.is_overflow, Segments.one(len(self)))[0])


@dataclass(frozen=True, slots=True)
class ShownRevision:
    """A token remasked (no ``new_token``), replaced, or revealed and remasked later (no old one)."""

    event: str
    forward: int
    position: int
    old_token: int | None
    new_token: int | None
    logq: float
    old_logq: float


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """The grader's decision about one answer."""

    correct: bool | None
    extracted: str | None
    reason: str | None
    grader: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ShownVerdict:
        """Read a row of table ``verdicts``."""
        return cls(row["correct"], row["extracted"], row["reason"], row["grader"])


@dataclass(frozen=True, slots=True)
class ShownBottleneck:
    """A step with q < 1/2; ``share`` is its part of the trace's total −log q."""

    step: int
    forward: int
    position: int
    logq: float
    share: float


@dataclass(frozen=True, slots=True)
class Block:
    """One block: places ``first``…``last``, its Lorenz curve of −log q (from (0, 0) on) and its Gini."""

    block: int
    first: int
    last: int
    gini: float
    lorenz: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class TraceView:
    """One trace.

    Attributes:
        key: its name in the store.
        label: its name among the traces of its sample: order, and seed or temperature where they differ.
        reveals: the committed tokens.
        revisions: later changes, by pass.
        text: the decoded text, cut at the first EOS; None when not stored.
        finish_reason: why decoding ended.
        likelihood: what the summed log q is (exact, estimate, none); None when not known.
        verdict: the latest one; None where the answer was not graded.
        stated_passes: forward passes that the decoder counted; None where the rows determine them.
        standing: its place among all orders; None without a census of the text.
    """

    key: TraceKey
    label: str
    reveals: Reveals
    revisions: tuple[ShownRevision, ...] = ()
    text: str | None = None
    finish_reason: str | None = None
    likelihood: str | None = None
    verdict: ShownVerdict | None = None
    stated_passes: int | None = None
    standing: Standing | None = None

    def __repr__(self) -> str:
        stats = self.stats
        return f"TraceView({self.label!r}, n={stats.n}, mean={stats.mean:.3f}, var={stats.var:.3f})"

    @cached_property
    def counted(self) -> Flags:
        """Reveals that statistics count: those inside the requested length [n]."""
        return ~self.reveals.is_overflow

    @cached_property
    def stats(self) -> PathStats:
        """Path statistics of the counted reveals."""
        kept = self.counted
        return path_stats(
            self.reveals.logq[kept], self.reveals.position[kept], self.reveals.block[kept], sigmas=()
        )

    @cached_property
    def _passes(self) -> Mapping[str, int]:
        revised = max((item.forward + 1 for item in self.revisions), default=0)
        known = np.array([max(revised, self.stated_passes or 0)])
        shown, one = self.reveals, Segments.one(len(self.reveals))
        found = segment_pass_counts(shown.forward, self.counted, shown.n_lookahead, one, known)
        return {name: int(count[0]) for name, count in found.items()}

    @property
    def n_passes(self) -> int:
        """All forward passes of the trace, without the states of look-ahead orders."""
        return self._passes["n_passes"]

    @property
    def n_passes_requested(self) -> int:
        """Forward passes up to the requested length."""
        return self._passes["n_passes_requested"]

    @property
    def n_passes_lookahead(self) -> int:
        """States that a look-ahead order evaluated in advance."""
        return self._passes["n_passes_lookahead"]

    @property
    def has_one_token_per_pass(self) -> bool:
        """Whether no pass revealed several tokens, judged by the number of passes."""
        return int(self.reveals.forward.max(initial=-1)) + 1 >= len(self.reveals)

    @cached_property
    def cascade(self) -> EosCascade:
        """The longest run of steps that reveal EOS from right to left."""
        kept, shown = self.counted, self.reveals
        content = ~shown.is_eos & ~shown.is_special
        return eos_cascade(shown.position[kept], shown.is_eos[kept], content[kept])

    def bottlenecks(self, top: int = WORST) -> tuple[ShownBottleneck, ...]:
        """Return the counted steps with q < 1/2, least probable first."""
        shown, kept = self.reveals, self.counted
        total = -float(shown.logq[kept].sum())
        low = np.flatnonzero(kept & (shown.logq < LOG_HALF))
        worst = low[np.argsort(shown.logq[low], kind="stable")][:top]
        return tuple(
            ShownBottleneck(
                int(shown.step[row]),
                int(shown.forward[row]),
                int(shown.position[row]),
                float(shown.logq[row]),
                -float(shown.logq[row]) / total if 0 < total < math.inf else math.nan,
            )
            for row in worst
        )

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks from left to right."""
        return tuple(self._block(int(number)) for number in np.unique(self.reveals.block[self.counted]))

    def _block(self, number: int) -> Block:
        rows = self.counted & (self.reveals.block == number)
        places, cost = self.reveals.position[rows], np.maximum(-self.reveals.logq[rows], 0.0)
        curve = tuple(float(value) for value in lorenz(cost))
        return Block(number, int(places.min()), int(places.max()), gini(cost), curve)


def revisions_of(rows: list[Mapping[str, Any]]) -> tuple[ShownRevision, ...]:
    """Return the rows of table ``revisions`` of one trace, sorted by pass and position."""
    ranked = sorted(rows, key=lambda row: (row["forward"], row["position"]))
    return tuple(
        ShownRevision(
            row["event"],
            row["forward"],
            row["position"],
            row["old_token"],
            row["new_token"],
            _number(row["logq"]),
            _number(row["old_logq"]),
        )
        for row in ranked
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _ints(table: pa.Table, name: str) -> Ints:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return np.asarray(table[name].fill_null(0).to_numpy(), np.int64)


def _floats(table: pa.Table, name: str) -> Floats:
    if name not in table.column_names:
        return np.full(table.num_rows, math.nan)
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)


def _flags(table: pa.Table, name: str) -> Flags:
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.bool_)
    return np.asarray(table[name].fill_null(False).to_numpy(), np.bool_)
