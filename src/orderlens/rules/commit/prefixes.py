"""Commit rules that take as many of the order's first positions as a bound allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.rules.protocol import BoolArray, Commit, FloatArray, real
from orderlens.rules.stats import DrawStats, PositionStats, comparable, positions_of
from orderlens.rules.view import StepView

View = StepView[PositionStats | DrawStats]


@dataclass(eq=False)
class Factor(Commit):
    """The order's first positions as long as the r-th of them (from 1) has p ≥ 1 − F / (r + 1).

    Fast-dLLM's factor rule, whose order is ``max-prob`` (arXiv 2505.22618; the clean version is ZHZisZZ/dllm
    ``pipelines/fastdllm/llada/sampler.py``; F = 1 in dInfer's and PC-Sampler's copies, none in dllm). The
    bounds rise and confidences fall, so what is taken is a prefix. Those copies take one position too many
    when the first failure is at the last rank; that is not followed.
    """

    id = "factor"
    summary = "factor=F: the order's first positions while the r-th has p ≥ 1 − F/(r+1)"
    factor: float = real(0.0, np.inf, "F", 1)

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return each chain's longest prefix that keeps above the bounds."""
        rank_R = view.ranks(scores_R)
        short_R = view.proposal_prob_R < comparable(1 - self.factor / (rank_R + 2))
        short_R[rank_R == 0] = False
        return rank_R < view.least_C(np.where(short_R, rank_R, len(rank_R)))[view.chain_R]


@dataclass(eq=False)
class Bound(Commit):
    """The order's longest prefix whose entropies obey Σ H − max H ≤ GAMMA (nats), at least one position.

    The EB-Sampler (arXiv 2505.24857; GAMMA = 0.1 in the PC-Sampler and Info-Gain repositories), whose order
    is ``entropy``; the paper allows other orders with the same bound. The left side bounds what the set loses
    by being drawn as if independent. DUS's copy counts in bits: GAMMA(nats) = 0.693 GAMMA(bits). SDAR's
    ``entropy_bounded`` sums the probabilities of sampled tokens and is another rule.
    """

    id = "bound"
    summary = "bound=GAMMA: the order's longest prefix with Σ entropy − largest entropy ≤ GAMMA nats"
    gamma: float = real(0.0, np.inf, "GAMMA", 0.1)

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return each chain's longest prefix within the bound."""
        rank_R = view.ranks(scores_R)
        entropy_CN = np.zeros(
            (len(view.block_C), int(rank_R.max()) + 1)
        )  # a row per chain: sums stay its own
        entropy_CN[view.chain_R, rank_R] = positions_of(view.stats).entropy
        spent_CN = np.cumsum(entropy_CN, axis=1) - np.maximum.accumulate(entropy_CN, axis=1)
        chosen: BoolArray = (comparable(spent_CN) <= comparable(self.gamma))[view.chain_R, rank_R] | (
            rank_R == 0
        )
        return chosen
