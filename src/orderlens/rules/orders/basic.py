"""The paper's orders: static, confidence-first and target-aware.

Target-aware orders are for diagnosis only, because they need the text that they score.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.rules.orders import (
    Card,
    ConfidenceOrder,
    DrawingOrder,
    OracleOrder,
    Scores,
    StaticOrder,
)
from orderlens.rules.stats import DrawStats, IntArray, PositionStats, TargetStats
from orderlens.rules.view import StepView


class ForcedAR(StaticOrder):
    """Left to right inside the block."""

    id = "forced-ar"
    summary = "left to right inside each block"
    card = Card("structured", 0, "o")

    def path(self, n_positions: int, sample_id: str, block: int) -> IntArray:
        return np.arange(n_positions, dtype=np.int64)


class ReverseAR(StaticOrder):
    """Right to left inside the block."""

    id = "reverse-ar"
    summary = "right to left inside each block"
    card = Card("control", 5, "D")

    def path(self, n_positions: int, sample_id: str, block: int) -> IntArray:
        return np.arange(n_positions - 1, -1, -1, dtype=np.int64)


class RandomOrder(StaticOrder):
    """Uniformly random, keyed by (seed, sample id, block), independent of the batch."""

    id = "random"
    summary = "uniformly random; random:3 is seed 3, plain random is seed 0"
    card = Card("random", 4, "X")

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    @classmethod
    def parse(cls, argument: str) -> RandomOrder:
        if not argument.isascii() or not argument.isdigit():
            raise UserInputError(
                f"order 'random:{argument}': the seed must be a non-negative integer, e.g. random:3"
            )
        if len(argument) > 18:  # it is stored as a 64-bit number
            raise UserInputError(f"order 'random:{argument}': the seed must have at most 18 digits")
        return cls(int(argument))

    @property
    def seed(self) -> int:
        return self._seed

    def path(self, n_positions: int, sample_id: str, block: int) -> IntArray:
        generator = keyed_generator(self._seed, sample_id, self.id, "path", block)
        return generator.permutation(n_positions).astype(np.int64)


Select = Literal["sampled", "argmax"]


class MaxProb(DrawingOrder):
    """Largest p(v1). At T > 0 ``sampled`` compares drawn tokens, ``argmax`` compares p(v1) and then draws."""

    id = "max-prob"
    summary = "most probable token first; at T > 0 max-prob:select=argmax ranks before drawing"
    card = Card("structured", 1, "s")
    reads, draw_reads = "top", "drawn"

    def __init__(self, select: Select = "sampled") -> None:
        self.select = select

    @classmethod
    def parse(cls, argument: str) -> MaxProb:
        value = argument.removeprefix("select=")
        if value not in get_args(Select):
            raise UserInputError(f"order 'max-prob:{argument}': allowed are select=sampled and select=argmax")
        return cls(cast(Select, value))

    @property
    def label(self) -> str:
        """The id, with the selection rule if it is not the default, so that a run may contain both."""
        return self.id if self.select == "sampled" else f"{self.id}:select={self.select}"

    @property
    def draws_first(self) -> bool:
        return self.select == "sampled"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return log p(v1), which has the same order as p(v1) and separates values near 1."""
        return view.stats.top_logprob

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        return view.stats.logprob


class TopMargin(ConfidenceOrder):
    """Largest p(v1) − p(v2)."""

    id = "top-margin"
    summary = "largest gap between the two most probable tokens first"
    card = Card("structured", 2, "^")
    reads = "margin"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return np.exp(view.stats.top_logprob) - np.exp(view.stats.second_logprob)


class LowEntropy(ConfidenceOrder):
    """Smallest entropy."""

    id = "entropy"
    summary = "lowest entropy first"
    card = Card("structured", 3, "v")
    reads = "certainty"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return -view.stats.entropy


class OracleMaxQ(OracleOrder):
    """Largest probability of the target token."""

    id = "oracle-max-q"
    summary = "most probable target token first (needs the target)"
    card = Card("target-aware", 6, "P")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return log p(x*), which has the same order as p(x*)."""
        return view.stats.target_logprob


class OracleMargin(OracleOrder):
    """Largest gap between the target and its strongest competitor."""

    id = "oracle-margin"
    summary = "largest gap between the target and its best competitor first (needs the target)"
    card = Card("target-aware", 7, "h")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        return np.exp(view.stats.target_logprob) - np.exp(view.stats.competitor_logprob)


class OracleMinQ(OracleOrder):
    """Smallest probability of the target token."""

    id = "oracle-min-q"
    summary = "least probable target token first (needs the target)"
    card = Card("target-aware", 8, "*")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        return -view.stats.target_logprob
