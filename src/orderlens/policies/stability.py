"""Commit rules that wait until the model has stopped changing its mind."""

from __future__ import annotations

import numpy as np

from orderlens.orders.arguments import plain
from orderlens.orders.view import StepView
from orderlens.policies.protocol import BoolArray, Commit, FloatArray, real_number, some_values, whole_number
from orderlens.stats import DrawStats, PositionStats, comparable


class Klass(Commit):
    """Every position with p > T whose distribution moved by KL < EPS in each of the last H passes.

    KLASS (arXiv 2511.05664; shkim0116/KLASS; T = 0.9, EPS = 0.01, H = 2 by default, 0.6 and 0.015 for LLaDA
    on GSM8K), whose order is ``max-prob``. KL(p now ‖ p before) is in nats and made by the head. Where
    nothing is ready the order's first position is taken, the published fallback at steps = length.

    The history starts anew in every block: nothing is ready before a block's pass H. The public code carries
    it over blocks and keeps it for revealed positions; its fallback can overwrite revealed tokens, and in a
    batch the fallback of one text clears the sets of the others. Its Dream variant compares with p ≥ T.
    """

    id = "klass"
    summary = "klass=T:EPS[:H]: p > T and KL to the pass before < EPS nats for H (2) passes, else the first"
    needs = frozenset({"kl_previous"})
    H = 2

    def __init__(self, threshold: float, eps: float, passes: int = H) -> None:
        self.threshold, self.eps, self.passes = threshold, eps, passes

    @classmethod
    def parse(cls, values: list[str]) -> Klass:
        """Build from ``T``, ``EPS`` and optionally ``H``."""
        threshold, eps, *passes = some_values("klass", values, 2, 3, "klass=0.9:0.01 or klass=0.9:0.01:2")
        return cls(
            real_number("klass", threshold, 0.0, 1.0, name="T"),
            real_number("klass", eps, 0.0, name="EPS"),
            whole_number("klass", passes[0], 1, "H") if passes else cls.H,
        )

    @property
    def spec(self) -> str:
        """``klass=T:EPS``, and ``:H`` where it is not 2."""
        passes = "" if self.passes == self.H else f":{self.passes}"
        return f"klass={plain(self.threshold)}:{plain(self.eps)}{passes}"

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the sure and steady positions of every chain, or its first."""
        calm_R = np.where(view.asked["kl_previous"] < self.eps, view.memory.rows("calm", 0) + 1, 0)
        view.memory.keep_rows("calm", calm_R)
        ready_R = (view.proposal_prob_R > comparable(self.threshold)) & (calm_R >= self.passes)
        return ready_R | (view.best(scores_R) & ~view.any_C(ready_R)[view.chain_R])
