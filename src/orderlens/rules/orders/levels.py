"""Orders by the level of log p: leftmost among the sure ones, near a running mean, near a fixed level.

They need no look-ahead. ``revealed`` returns sums over the positions that a block has revealed so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from orderlens.rules.orders import Card, ConfidenceOrder, Scores
from orderlens.rules.protocol import Arguments, label_of
from orderlens.rules.stats import FloatArray, PositionStats, comparable
from orderlens.rules.view import StepView

SURE = 1e6
"""Score of a sure position before its offset is subtracted, above every log-probability."""


def revealed(view: StepView[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return n, Σ y and Σ y² [C] over the positions that each chain's block revealed before this pass.

    y is log p(v1) in the pass that revealed the position. The order's memory holds the sums over all masked
    positions of the last pass; what is no longer masked was revealed. To be called once per pass.
    """
    memory, y_R, pass_R = view.memory, view.stats.top_logprob, view.forward_C[view.chain_R]
    zero = np.zeros(3)
    waiting_R = memory.rows("pass", -2) == pass_R - 1
    before_RX = np.where(waiting_R[:, None], memory.rows("powers", zero), 0.0)
    left_CX = np.add.reduceat(before_RX, view.starts_C, axis=0)
    done_CX = memory.chains("done", zero) + memory.chains("masked", zero) - left_CX
    powers_RX = np.stack([np.ones_like(y_R), y_R, y_R * y_R], axis=1)
    memory.keep_rows("pass", pass_R)
    memory.keep_rows("powers", powers_RX)
    memory.keep_chains("masked", np.add.reduceat(powers_RX, view.starts_C, axis=0))
    memory.keep_chains("done", done_CX)
    n_C, sum_C, square_C = done_CX.T
    return n_C, sum_C, square_C


class Defer(ConfidenceOrder):
    """The leftmost position with p(v1) ≥ TAU, else the most probable: left to right at 0, max-prob at > 1."""

    id = "defer"
    summary = "the leftmost position with p ≥ tau, else the most probable; defer:tau=0.9"
    card = Card("structured", 30, ".")
    TAU = 0.9

    def __init__(self, tau: float = TAU) -> None:
        self.tau = tau

    @classmethod
    def parse(cls, argument: str) -> Defer:
        return cls(Arguments(cls.id, argument, ["tau"]).number("tau", cls.TAU, 0.0))

    @property
    def label(self) -> str:
        return label_of(self.id, {"tau": (self.tau, self.TAU)})

    def scores(self, view: StepView[PositionStats]) -> Scores:
        sure_R = comparable(np.exp(view.stats.top_logprob)) >= comparable(self.tau)
        return np.where(sure_R, SURE - view.offset_R, view.stats.top_logprob)


class Even(ConfidenceOrder):
    """log p(v1) closest to its mean over the positions of the block revealed so far; at first the largest."""

    id = "even"
    summary = "log p closest to its running mean in the block first"
    card = Card("structured", 31, "2")

    def scores(self, view: StepView[PositionStats]) -> Scores:
        n_C, sum_C, _ = revealed(view)
        mean_C = sum_C / np.maximum(n_C, 1)
        scores: Scores = -np.abs(view.stats.top_logprob - mean_C[view.chain_R])
        return scores


class Level(ConfidenceOrder):
    """log p(v1) closest to MU nats."""

    id = "level"
    summary = "log p closest to mu nats first; level:mu=-0.1"
    card = Card("structured", 32, "3")
    MU = -0.1

    def __init__(self, mu: float = MU) -> None:
        self.mu = mu

    @classmethod
    def parse(cls, argument: str) -> Level:
        return cls(Arguments(cls.id, argument, ["mu"]).number("mu", cls.MU, -1e6, 0.0))

    @property
    def label(self) -> str:
        return label_of(self.id, {"mu": (self.mu, self.MU)})

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return -np.abs(view.stats.top_logprob - self.mu)


class FirstHard(ConfidenceOrder):
    """Smallest p(v1): max-prob reversed, the control for the direction of a confidence order."""

    id = "first-hard"
    summary = "least probable best token first (control)"
    card = Card("control", 33, "4")

    def scores(self, view: StepView[PositionStats]) -> Scores:
        return -view.stats.top_logprob
