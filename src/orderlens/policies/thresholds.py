"""Commit rules that take every position the model is sure enough of, whatever the order says.

Probabilities are those of the token that would be committed, at temperature 1.
"""

from __future__ import annotations

import numpy as np

from orderlens.orders.arguments import plain
from orderlens.orders.view import StepView
from orderlens.policies.protocol import (
    BoolArray,
    Commit,
    FloatArray,
    IntArray,
    one_value,
    real_number,
    some_values,
    whole_number,
)
from orderlens.policies.schedules import Steps
from orderlens.stats import DrawStats, PositionStats, comparable

View = StepView[PositionStats | DrawStats]


class Threshold(Commit):
    """Every position whose proposed token has p ≥ T at temperature 1, and at least the order's first.

    The rule of Fast-dLLM (NVlabs/Fast-dLLM, ``get_transfer_index``; T = 0.9 in its scripts), whose order is
    ``max-prob``. The comparison is p ≥ T; ``above`` is the strict one.
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

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the sure positions and each chain's first."""
        sure: BoolArray = view.proposal_prob_R >= comparable(self.threshold)
        return sure | view.best(scores_R)


class Above(Commit):
    """Every position with p > T; where they are fewer than the floor, the order's first so many instead.

    LLaDA-2.0's rule (dFactory, ZHZisZZ/dllm ``pipelines/llada2/sampler.py``; T = 0.95, blocks of 32), that of
    SGLang's LowConfidence and SDAR's low_confidence_dynamic (T = 0.85). The floor is the even split of the
    block over N passes; without N it is one, the published default of 32 steps for 32 positions. The strict
    comparison makes T = 1 one by one, which p ≥ T does not where p rounds to 1.
    """

    id = "above"
    summary = "above=T[:N]: every position with p > T, at least the even split over N passes (one without N)"

    def __init__(self, threshold: float, steps: int | None = None) -> None:
        self.threshold, self.steps = threshold, steps

    @classmethod
    def parse(cls, values: list[str]) -> Above:
        """Build from ``T`` and optionally ``N``."""
        threshold, *steps = some_values("above", values, 1, 2, "above=0.95 or above=0.95:8")
        return cls(
            real_number("above", threshold, 0.0, 1.0, "T"),
            whole_number("above", steps[0], 1, "N") if steps else None,
        )

    @property
    def spec(self) -> str:
        """``above=T`` or ``above=T:N``."""
        return f"above={plain(self.threshold)}" + ("" if self.steps is None else f":{self.steps}")

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the sure positions where they reach the floor, else the first ones of the order."""
        sure_R = view.proposal_prob_R > comparable(self.threshold)
        if self.steps is None:
            enough_C = view.any_C(sure_R)
            return sure_R if enough_C.all() else sure_R | (view.best(scores_R) & ~enough_C[view.chain_R])
        floor_C = self._floor(view, self.steps)
        few_C = np.bincount(view.chain_R[sure_R], minlength=len(floor_C)) < floor_C
        first_R = view.ranks(scores_R) < floor_C[view.chain_R]
        return np.where(few_C[view.chain_R], first_R, sure_R)

    def _floor(self, view: View, steps: int) -> IntArray:
        """Return what the even split gives each chain's pass, at least one."""
        floor_C = np.ones(len(view.filling_C), np.int64)
        for n in np.unique(view.filling_C):
            counts = np.bincount(Steps(steps).passes(int(n)))
            mine = (view.filling_C == n) & (view.forward_C < len(counts))
            floor_C[mine] = counts[view.forward_C[mine]]
        return floor_C


class Near(Commit):
    """Every position with p ≥ min(T, best p − DELTA): the sure ones, and at least all that tie with the best.

    dInfer's threshold decoder (inclusionAI/dInfer ``parallel_strategy.py``, ``get_transfer_index_threshold``;
    T = 0.9, DELTA = 0.00001), whose order is ``max-prob``. Unlike ``threshold`` it does not force one
    position but all within DELTA of the best, so that a pass may take several however large T is. Positions
    whose best token is MASK are not eligible there; here MASK has no probability.
    """

    id = "near"
    summary = "near=T[:DELTA]: every position with p ≥ T, at least all within DELTA (0.00001) of the best"
    DELTA = 1e-5

    def __init__(self, threshold: float, delta: float = DELTA) -> None:
        self.threshold, self.delta = threshold, delta

    @classmethod
    def parse(cls, values: list[str]) -> Near:
        """Build from ``T`` and optionally ``DELTA``."""
        threshold, *delta = some_values("near", values, 1, 2, "near=0.9 or near=0.9:0.00001")
        return cls(
            real_number("near", threshold, 0.0, 1.0, "T"),
            real_number("near", delta[0], 0.0, 1.0, "DELTA") if delta else cls.DELTA,
        )

    @property
    def spec(self) -> str:
        """``near=T``, and ``:DELTA`` where it is not 0.00001."""
        delta = "" if self.delta == self.DELTA else f":{plain(self.delta)}"
        return f"near={plain(self.threshold)}{delta}"

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the positions that reach the lower of the two bounds, whatever the order says."""
        return near(view, view.proposal_prob_R, self.threshold, self.delta)


def near(view: View, p_R: FloatArray, threshold: float, delta: float) -> BoolArray:
    """Return the rows with p ≥ min(threshold, the chain's largest p − delta); p is ``comparable``."""
    best_C = np.maximum.reduceat(p_R, view.starts_C)
    bound_C = comparable(np.minimum(threshold, best_C - delta))
    reached: BoolArray = p_R >= bound_C[view.chain_R]
    return reached


class Unanimous(Commit):
    """The whole rest of the block once every masked position has p ≥ T, else the order's first alone.

    The bypass of the Info-Gain sampler (yks23/Information-Gain-Sampler; T = 0.8). All of the set is taken
    from one pass, so its members have not seen each other.
    """

    id = "unanimous"
    summary = "unanimous=T: all positions once each of them has p ≥ T, else the order's first alone"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @classmethod
    def parse(cls, values: list[str]) -> Unanimous:
        """Build from ``T``."""
        return cls(real_number("unanimous", one_value("unanimous", values, "unanimous=0.8"), 0.0, 1.0))

    @property
    def spec(self) -> str:
        """``unanimous=T``."""
        return f"unanimous={plain(self.threshold)}"

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return all rows of the unanimous chains and the first of the others."""
        unsure_R = view.proposal_prob_R < comparable(self.threshold)
        return ~view.any_C(unsure_R)[view.chain_R] | view.best(scores_R)


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
