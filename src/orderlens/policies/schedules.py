"""Commit rules whose counts are known beforehand."""

from __future__ import annotations

import numpy as np

from orderlens.orders.view import StepView
from orderlens.policies.protocol import BoolArray, FloatArray, IntArray, Schedule, one_value, whole_number
from orderlens.stats import DrawStats, PositionStats


class Top(Schedule):
    """The K best positions at every pass; the last pass of a block takes what is left."""

    id = "top"
    summary = "top=K: the K first positions of the order at every pass"

    def __init__(self, k: int = 1) -> None:
        self.k = k

    @classmethod
    def parse(cls, values: list[str]) -> Top:
        """Build from ``K``."""
        return cls(whole_number("top", one_value("top", values, "top=4"), 1))

    @property
    def spec(self) -> str:
        """``top=K``."""
        return f"top={self.k}"

    def passes(self, n_positions: int) -> IntArray:
        """Return 0 K times, 1 K times and so on."""
        return np.arange(n_positions, dtype=np.int64) // self.k

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the K best rows of every chain."""
        if self.k == 1:
            return view.best(scores_R)
        chosen: BoolArray = view.ranks(scores_R) < self.k
        return chosen
