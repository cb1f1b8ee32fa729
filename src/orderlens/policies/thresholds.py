"""Commit rules that take every position the model is sure enough of."""

from __future__ import annotations

import numpy as np

from orderlens.orders.view import StepView
from orderlens.policies.protocol import BoolArray, Commit, FloatArray, one_value, plain, real_number
from orderlens.stats import DrawStats, PositionStats


class Threshold(Commit):
    """Every position whose proposed token has p ≥ T at temperature 1, and at least the order's first.

    The rule of Fast-dLLM (NVlabs/Fast-dLLM, ``get_transfer_index``; T = 0.9 in its scripts), whose order is
    ``max-prob``. The comparison is p ≥ T: LLaDA-2.x and SGLang use p > T, which differs only at equality.
    """

    id = "threshold"
    summary = "threshold=T: every position with p ≥ T (0…1), at least the order's first"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @classmethod
    def parse(cls, values: list[str]) -> Threshold:
        """Build from ``T``."""
        return cls(real_number("threshold", one_value("threshold", values, "threshold=0.9"), 0.0, 1.0))

    @property
    def spec(self) -> str:
        """``threshold=T``."""
        return f"threshold={plain(self.threshold)}"

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the sure positions and each chain's first."""
        sure: BoolArray = np.exp(view.proposal_logprob_R) >= self.threshold
        return sure | view.best(scores_R)
