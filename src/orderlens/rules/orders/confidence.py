"""Confidence-first orders: reveal where the model is surest, by one of three readings of "sure"."""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.orders.protocol import Card, ConfidenceOrder, DrawingOrder, Scores
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import StepView

Select = Literal["sampled", "argmax"]


class MaxProb(DrawingOrder):
    """Largest p(v1). At T > 0 ``sampled`` compares drawn tokens, ``argmax`` compares p(v1) and then draws."""

    id = "max-prob"
    summary = "most probable token first; at T > 0 max-prob:select=argmax ranks before drawing"
    card = Card("Max-prob", "structured", 1, "s")
    reads, draw_reads = "top", "drawn"

    def __init__(self, select: Select = "sampled") -> None:
        self.select = select

    @classmethod
    def parse(cls, argument: str) -> MaxProb:
        """Build from ``select=sampled`` or ``select=argmax`` (the ``select=`` may be left out)."""
        value = argument.removeprefix("select=")
        if value not in get_args(Select):
            raise UserInputError(f"order 'max-prob:{argument}': allowed are select=sampled and select=argmax")
        return cls(cast(Select, value))

    @property
    def label(self) -> str:
        """The id; the non-default selection rule is part of it, so that both can stand in one run."""
        return self.id if self.select == "sampled" else f"{self.id}:select={self.select}"

    @property
    def draws_first(self) -> bool:
        """``sampled`` compares draws."""
        return self.select == "sampled"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return log p(v1), which orders like p(v1) and keeps values near 1 apart."""
        return view.stats.top_logprob

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        """Return the drawn token's log-probability at temperature 1."""
        return view.stats.logprob


class TopMargin(ConfidenceOrder):
    """Largest p(v1) − p(v2)."""

    id = "top-margin"
    summary = "largest gap between the two most probable tokens first"
    card = Card("Top-margin", "structured", 2, "^")
    reads = "margin"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return the probability gap."""
        return np.exp(view.stats.top_logprob) - np.exp(view.stats.second_logprob)


class LowEntropy(ConfidenceOrder):
    """Smallest entropy."""

    id = "entropy"
    summary = "lowest entropy first"
    card = Card("Entropy", "structured", 3, "v")
    reads = "certainty"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return −H."""
        return -view.stats.entropy
