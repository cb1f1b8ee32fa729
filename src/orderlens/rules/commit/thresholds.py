"""Commit rules that reveal all positions at which the model is confident, by a threshold or a bound.

Probabilities are those of the token that would be committed, at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.commit.schedules import Steps
from orderlens.rules.protocol import Commit, CommitView, Pick, plain, real, whole
from orderlens.rules.stats import BoolArray, FloatArray, IntArray, comparable, positions_of


@dataclass(eq=False)
class Threshold(Commit):
    """Every position whose proposed token has p ≥ T at temperature 1, and at least the order's first.

    The rule of Fast-dLLM (NVlabs/Fast-dLLM, ``get_transfer_index``; T = 0.9 in its scripts), whose order is
    ``max-prob``. The comparison is p ≥ T; ``above`` is the strict one.
    """

    id = "threshold"
    summary = "threshold=T: every position with p ≥ T (0…1), at least the order's first"
    threshold: float = real(0.0, 1.0, "T", 0.9)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        sure: BoolArray = view.proposal_prob_R >= comparable(self.threshold)
        return sure | view.best(scores_R)


@dataclass(eq=False)
class Above(Commit):
    """Every position with p > T; if they are fewer than a minimum, the order's first positions instead.

    LLaDA-2.0's rule (dFactory, ZHZisZZ/dllm ``pipelines/llada2/sampler.py``; T = 0.95, blocks of 32), that of
    SGLang's LowConfidence and SDAR's low_confidence_dynamic (T = 0.85). The minimum is the even split of the
    block over N passes; without N it is one, the published default of 32 steps for 32 positions. With the
    strict comparison T = 1 reveals one position per pass, also where p rounds to 1. The public code splits
    the block length even if the prompt fills a part of the block: that is B, by default the positions to
    fill.
    """

    id = "above"
    summary = (
        "above=T[:N[:B]]: every position with p > T, at least the even split of B over N passes (else one)"
    )
    threshold: float = real(0.0, 1.0, "T", 0.95)
    steps: int | None = whole(1, "N", 8, default=None)
    split: int | None = whole(1, "B", 32, default=None)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        sure_R = view.proposal_prob_R > comparable(self.threshold)
        if self.steps is None:
            enough_C = view.any_C(sure_R)
            return sure_R if enough_C.all() else sure_R | (view.best(scores_R) & ~enough_C[view.chain_R])
        floor_C = even_split(view, self.steps, self.split)
        few_C = np.bincount(view.chain_R[sure_R], minlength=len(floor_C)) < floor_C
        first_R = view.ranks(scores_R) < floor_C[view.chain_R]
        return np.where(few_C[view.chain_R], first_R, sure_R)


def even_split(view: CommitView, steps: int, n_split: int | None = None) -> IntArray:
    """Return the count [C] of each chain's pass in an even split over ``steps`` passes, at least one.

    Args:
        view: the pass.
        steps: number of passes of a block.
        n_split: number of positions that are split; None for those that the block has to fill.
    """
    floor_C = np.ones(len(view.filling_C), np.int64)
    split_C = view.filling_C if n_split is None else np.full(len(floor_C), n_split)
    for n in np.unique(split_C):
        counts = np.bincount(Steps(steps).passes(int(n)))
        mine = (split_C == n) & (view.forward_C < len(counts))
        floor_C[mine] = counts[view.forward_C[mine]]
    return floor_C


@dataclass(eq=False)
class Near(Commit):
    """Every position with p ≥ min(T, best p − DELTA), so at least all positions that tie with the best.

    dInfer's threshold decoder (inclusionAI/dInfer ``parallel_strategy.py``, ``get_transfer_index_threshold``;
    T = 0.9, DELTA = 0.00001), whose order is ``max-prob``. Unlike ``threshold`` it
    always reveals all positions within DELTA of the best, not only one. Positions whose best token is MASK
    are not eligible there; here MASK has no probability.
    """

    id = "near"
    summary = "near=T[:DELTA]: every position with p ≥ T, at least all within DELTA (0.00001) of the best"
    DELTA = 1e-5
    threshold: float = real(0.0, 1.0, "T", 0.9)
    delta: float = real(0.0, 1.0, "DELTA", DELTA, default=DELTA)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return the positions that reach the lower of the two bounds, independently of the order."""
        return near(view, view.proposal_prob_R, self.threshold, self.delta)


def near(view: CommitView, p_R: FloatArray, threshold: float, delta: float) -> BoolArray:
    """Return the rows with p ≥ min(threshold, the chain's largest p − delta); p is ``comparable``."""
    best_C = np.maximum.reduceat(p_R, view.starts_C)
    bound_C = comparable(np.minimum(threshold, best_C - delta))
    reached: BoolArray = p_R >= bound_C[view.chain_R]
    return reached


@dataclass(eq=False)
class Unanimous(Commit):
    """All masked positions of the block once each has p ≥ T, else only the order's first.

    The bypass of the Info-Gain sampler (yks23/Information-Gain-Sampler; T = 0.8). The set is committed in one
    pass, so its tokens do not condition on each other.
    """

    id = "unanimous"
    summary = "unanimous=T: all positions once each of them has p ≥ T, else only the order's first"
    threshold: float = real(0.0, 1.0, "T", 0.8)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        unsure_R = view.proposal_prob_R < comparable(self.threshold)
        return ~view.any_C(unsure_R)[view.chain_R] | view.best(scores_R)


@dataclass(eq=False)
class Klass(Commit):
    """Every position with p > T whose distribution moved by KL < EPS in each of the last H passes.

    KLASS (arXiv 2511.05664; shkim0116/KLASS; T = 0.9, EPS = 0.01, H = 2 by default, 0.6 and 0.015 for LLaDA
    on GSM8K), whose order is ``max-prob``. KL(p now ‖ p before) is in nats; the head computes it. If no
    position is ready, the pass reveals its share of the even split over N passes: without N the order's
    first, the published fallback at steps = length. The public code stops after N passes, with masks left;
    here passes go on, one position each if none is ready.

    The history is reset in every block, so no position is ready before a block's pass H. The public code
    keeps it across blocks and for revealed positions; its fallback can overwrite revealed tokens, and in a
    batch the fallback of one text clears the sets of the others. Its Dream variant compares with p ≥ T.
    """

    id = "klass"
    summary = "klass=T:EPS[:H[:N]]: p > T and KL to the pass before < EPS for H (2) passes, else the first"
    needs = frozenset({"kl_previous"})
    threshold: float = real(0.0, 1.0, "T", 0.9)
    eps: float = real(0.0, np.inf, "EPS", 0.01)
    passes: int = whole(1, "H", 2, default=2)
    steps: int | None = whole(1, "N", 8, default=None)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        calm_R = np.where(view.extras["kl_previous"] < self.eps, view.memory.rows("calm", 0) + 1, 0)
        view.memory.keep_rows("calm", calm_R)
        ready_R = (view.proposal_prob_R > comparable(self.threshold)) & (calm_R >= self.passes)
        return ready_R | (self._fallback(view, scores_R) & ~view.any_C(ready_R)[view.chain_R])

    def _fallback(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        """Return the order's first rows; the even split sets their number."""
        if self.steps is None:
            return view.best(scores_R)
        chosen: BoolArray = view.ranks(scores_R) < even_split(view, self.steps)[view.chain_R]
        return chosen


@dataclass(eq=False)
class Factor(Commit):
    """The order's first positions as long as the r-th of them (from 1) has p ≥ 1 − F / (r + 1).

    Fast-dLLM's factor rule, whose order is ``max-prob`` (arXiv 2505.22618; the clean version is ZHZisZZ/dllm
    ``pipelines/fastdllm/llada/sampler.py``; F = 1 in dInfer's and PC-Sampler's copies, none in dllm). The
    bounds increase and confidences decrease, so the revealed positions are a prefix. Those copies reveal one
    position too many when the first failure is at the last rank; this rule does not.
    """

    id = "factor"
    summary = "factor=F: the order's first positions while the r-th has p ≥ 1 − F/(r+1)"
    factor: float = real(0.0, np.inf, "F", 1)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        rank_R = view.ranks(scores_R)
        short_R = view.proposal_prob_R < comparable(1 - self.factor / (rank_R + 2))
        short_R[rank_R == 0] = False
        return rank_R < view.least_C(np.where(short_R, rank_R, len(rank_R)))[view.chain_R]


@dataclass(eq=False)
class Bound(Commit):
    """The order's longest prefix whose entropies obey Σ H − max H ≤ GAMMA (nats), at least one position.

    The EB-Sampler (arXiv 2505.24857; GAMMA = 0.1 in the PC-Sampler and Info-Gain repositories), whose order
    is ``entropy``; the paper allows other orders with the same bound. The left side bounds the loss from
    drawing the set as if independent. DUS's copy is in bits: GAMMA(nats) = 0.693 GAMMA(bits). SDAR's
    ``entropy_bounded`` sums the probabilities of sampled tokens and is another rule.
    """

    id = "bound"
    summary = "bound=GAMMA: the order's longest prefix with Σ entropy − largest entropy ≤ GAMMA nats"
    gamma: float = real(0.0, np.inf, "GAMMA", 0.1)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        rank_R = view.ranks(scores_R)
        entropy_CN = np.zeros((len(view.block_C), int(rank_R.max()) + 1))  # one row per chain
        entropy_CN[view.chain_R, rank_R] = positions_of(view.stats).entropy
        spent_CN = np.cumsum(entropy_CN, axis=1) - np.maximum.accumulate(entropy_CN, axis=1)
        chosen: BoolArray = (comparable(spent_CN) <= comparable(self.gamma))[view.chain_R, rank_R] | (
            rank_R == 0
        )
        return chosen


@dataclass(eq=False)
class Credit(Commit):
    """dInfer's threshold on probabilities that are increased by a token's credit from earlier passes.

    CreditDecoding as in inclusionAI/dInfer ``parallel_strategy.py``, ``CreditThresholdParallelDecoder`` (T
    0.9, ALPHA 0.7, GAMMA 0.2, BETA 0.8), whose order is ``max-prob``. At every masked position each pass
    multiplies the credit C of all tokens by BETA and adds p^GAMMA to that of the most probable one. The
    largest p (1 + C)^ALPHA, divided by the sum over tokens, is compared with T as in ``near``. At temperature
    0 that token is committed, even if another is more probable. log q is still the model's own.

    Only tokens that were the argmax at an earlier pass have credit, so only their probabilities are needed:
    16 bytes per such token and position, instead of a float32 per block × vocabulary in the public code.
    Credit is reset in every block, as there. Differs: at temperature > 0 tokens are drawn from the model's
    own distribution (there from the fused one), and positions are chosen by the best fused token, not by a
    drawn one; so ``score`` gives the exact likelihood of that sampler.
    """

    id = "credit"
    summary = "credit=T[:ALPHA:GAMMA:BETA]: near=T, p increased by how long the token was the argmax"
    needs = frozenset({"token_logprobs"})
    threshold: float = real(0.0, 1.0, "T", 0.9)
    alpha: float = real(0.0, np.inf, "ALPHA", 0.7, default=0.7)
    gamma: float = real(0.0, np.inf, "GAMMA", 0.2, default=0.2)
    beta: float = real(0.0, 1.0, "BETA", 0.8, default=0.8)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        if len(values) not in (1, 4):
            raise UserInputError("'credit' takes 1 value or 4, e.g. credit=0.9 or credit=0.9:0.7:0.2:0.8")
        return super().parse(values)

    @property
    def spec(self) -> str:
        more = (self.alpha, self.gamma, self.beta)
        rest = () if more == (0.7, 0.2, 0.8) else more
        return f"credit={':'.join(map(plain, (self.threshold, *rest)))}"

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        return self.pick(view, scores_R).chosen_R

    def pick(self, view: CommitView, scores_R: FloatArray) -> Pick:
        token_RK, credit_RK = self._earned(view)
        raw_RK = _logprobs(view, token_RK)
        fused_RK = raw_RK + self.alpha * np.log1p(credit_RK)
        more_R = (np.exp(fused_RK) - np.exp(raw_RK)).sum(axis=1)
        best_R = np.lexsort((token_RK, -comparable(fused_RK)))[:, 0]
        best = np.arange(len(view)), best_R
        p_R = comparable(np.exp(fused_RK[best] - np.log1p(more_R)))
        return Pick(near(view, p_R, self.threshold, Near.DELTA), token_RK[best])

    def _earned(self, view: CommitView) -> tuple[IntArray, FloatArray]:
        """Return the tokens with credit [R, K] of each row (−1 for unused slots) and their credit."""
        stats, rows_R = positions_of(view.stats), np.arange(len(view))
        n_R = view.memory.rows("guesses", 0)
        slots = range(int(n_R.max()) + 1)
        token_RK = np.stack([view.memory.rows(f"token {k}", -1) for k in slots], axis=1)
        credit_RK = self.beta * np.stack([view.memory.rows(f"credit {k}", 0.0) for k in slots], axis=1)
        known_RK = token_RK == stats.top_token[:, None]
        at_R = np.where(known_RK.any(axis=1), known_RK.argmax(axis=1), n_R)
        token_RK[rows_R, at_R] = stats.top_token
        credit_RK[rows_R, at_R] += np.exp(self.gamma * stats.top_logprob)
        view.memory.keep_rows("guesses", np.maximum(n_R, at_R + 1))
        for k in slots:
            view.memory.keep_rows(f"token {k}", token_RK[:, k])
            view.memory.keep_rows(f"credit {k}", credit_RK[:, k])
        return token_RK, credit_RK


def _logprobs(view: CommitView, token_RK: IntArray) -> FloatArray:
    """Return the model's log-probability of every token with credit, −inf for unused slots."""
    stats = positions_of(view.stats)
    is_top_RK = token_RK == stats.top_token[:, None]
    raw_RK = np.where(is_top_RK, stats.top_logprob[:, None], -np.inf)
    row, slot = np.nonzero((token_RK >= 0) & ~is_top_RK)
    if len(row):
        raw_RK[row, slot] = view.logprob_of(row, token_RK[row, slot])
    return raw_RK
