"""Commit rules that take every position the model is sure enough of, whatever the order says.

Probabilities are those of the token that would be committed, at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.rules.commit.schedules import Steps
from orderlens.rules.protocol import BoolArray, Commit, FloatArray, IntArray, real, whole
from orderlens.rules.stats import DrawStats, PositionStats, comparable
from orderlens.rules.view import StepView

View = StepView[PositionStats | DrawStats]


@dataclass(eq=False)
class Threshold(Commit):
    """Every position whose proposed token has p ≥ T at temperature 1, and at least the order's first.

    The rule of Fast-dLLM (NVlabs/Fast-dLLM, ``get_transfer_index``; T = 0.9 in its scripts), whose order is
    ``max-prob``. The comparison is p ≥ T; ``above`` is the strict one.
    """

    id = "threshold"
    summary = "threshold=T: every position with p ≥ T (0…1), at least the order's first"
    threshold: float = real(0.0, 1.0, "T", 0.9)

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the sure positions and each chain's first."""
        sure: BoolArray = view.proposal_prob_R >= comparable(self.threshold)
        return sure | view.best(scores_R)


@dataclass(eq=False)
class Above(Commit):
    """Every position with p > T; where they are fewer than the floor, the order's first so many instead.

    LLaDA-2.0's rule (dFactory, ZHZisZZ/dllm ``pipelines/llada2/sampler.py``; T = 0.95, blocks of 32), that of
    SGLang's LowConfidence and SDAR's low_confidence_dynamic (T = 0.85). The floor is the even split of the
    block over N passes; without N it is one, the published default of 32 steps for 32 positions. The strict
    comparison makes T = 1 one by one, which p ≥ T does not where p rounds to 1.
    """

    id = "above"
    summary = "above=T[:N]: every position with p > T, at least the even split over N passes (one without N)"
    threshold: float = real(0.0, 1.0, "T", 0.95)
    steps: int | None = whole(1, "N", 8, default=None)

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


@dataclass(eq=False)
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
    threshold: float = real(0.0, 1.0, "T", 0.9)
    delta: float = real(0.0, 1.0, "DELTA", DELTA, default=DELTA)

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the positions that reach the lower of the two bounds, whatever the order says."""
        return near(view, view.proposal_prob_R, self.threshold, self.delta)


def near(view: View, p_R: FloatArray, threshold: float, delta: float) -> BoolArray:
    """Return the rows with p ≥ min(threshold, the chain's largest p − delta); p is ``comparable``."""
    best_C = np.maximum.reduceat(p_R, view.starts_C)
    bound_C = comparable(np.minimum(threshold, best_C - delta))
    reached: BoolArray = p_R >= bound_C[view.chain_R]
    return reached


@dataclass(eq=False)
class Unanimous(Commit):
    """The whole rest of the block once every masked position has p ≥ T, else the order's first alone.

    The bypass of the Info-Gain sampler (yks23/Information-Gain-Sampler; T = 0.8). All of the set is taken
    from one pass, so its members have not seen each other.
    """

    id = "unanimous"
    summary = "unanimous=T: all positions once each of them has p ≥ T, else the order's first alone"
    threshold: float = real(0.0, 1.0, "T", 0.8)

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return all rows of the unanimous chains and the first of the others."""
        unsure_R = view.proposal_prob_R < comparable(self.threshold)
        return ~view.any_C(unsure_R)[view.chain_R] | view.best(scores_R)


@dataclass(eq=False)
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
    threshold: float = real(0.0, 1.0, "T", 0.9)
    eps: float = real(0.0, np.inf, "EPS", 0.01)
    passes: int = whole(1, "H", 2, default=2)

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the sure and steady positions of every chain, or its first."""
        calm_R = np.where(view.extras["kl_previous"] < self.eps, view.memory.rows("calm", 0) + 1, 0)
        view.memory.keep_rows("calm", calm_R)
        ready_R = (view.proposal_prob_R > comparable(self.threshold)) & (calm_R >= self.passes)
        return ready_R | (view.best(scores_R) & ~view.any_C(ready_R)[view.chain_R])
