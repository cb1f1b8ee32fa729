"""CreditDecoding: tokens that were the best guess for several passes count for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.commit.thresholds import Near, near
from orderlens.rules.orders.arguments import plain
from orderlens.rules.protocol import BoolArray, Commit, FloatArray, IntArray, Pick, real
from orderlens.rules.stats import DrawStats, PositionStats, comparable, positions_of
from orderlens.rules.view import StepView

View = StepView[PositionStats | DrawStats]


@dataclass(eq=False)
class Credit(Commit):
    """dInfer's threshold on probabilities that are raised by what the token earned in earlier passes.

    CreditDecoding as in inclusionAI/dInfer ``parallel_strategy.py``, ``CreditThresholdParallelDecoder`` (T
    0.9, ALPHA 0.7, GAMMA 0.2, BETA 0.8), whose order is ``max-prob``. At every masked position each pass
    multiplies the credit C of all tokens by BETA and adds p^GAMMA to that of the most probable one. What is
    compared with T, as by ``near``, is the largest of p (1 + C)^ALPHA over their sum, and at temperature 0
    that token is committed, even where another is more probable. log q is the model's own, as everywhere.

    Only a block's best guesses have credit, so the fused distribution needs the probabilities of those alone:
    8 + 8 bytes per guess and position are kept, not a number per token (the public code keeps a float32 of
    block × vocabulary). Credit starts anew in every block, as there. Differs: at temperature > 0 tokens are
    drawn from the model's own distribution (there from the fused one), and positions are chosen by the best
    fused token, not by a drawn one; so ``score`` gives the exact likelihood of that sampler.
    """

    id = "credit"
    summary = "credit=T[:ALPHA:GAMMA:BETA]: near=T, p raised by how long the token was the best guess"
    needs = frozenset({"token_logprobs"})
    threshold: float = real(0.0, 1.0, "T", 0.9)
    alpha: float = real(0.0, np.inf, "ALPHA", 0.7, default=0.7)
    gamma: float = real(0.0, np.inf, "GAMMA", 0.2, default=0.2)
    beta: float = real(0.0, 1.0, "BETA", 0.8, default=0.8)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        """Build from ``T``, or ``T`` and the three numbers of the credit."""
        if len(values) not in (1, 4):
            raise UserInputError("'credit' takes 1 value or 4, e.g. credit=0.9 or credit=0.9:0.7:0.2:0.8")
        return super().parse(values)

    @property
    def spec(self) -> str:
        """``credit=T``, and the other three where one of them is not the default."""
        more = (self.alpha, self.gamma, self.beta)
        rest = () if more == (0.7, 0.2, 0.8) else more
        return f"credit={':'.join(map(plain, (self.threshold, *rest)))}"

    def select(self, view: View, scores_R: FloatArray) -> BoolArray:
        """Return the positions that are sure enough with their credit."""
        return self.pick(view, scores_R).chosen_R

    def pick(self, view: View, scores_R: FloatArray) -> Pick:
        """Return those positions, and every position's best token with its credit."""
        token_RK, credit_RK = self._earned(view)
        raw_RK = _logprobs(view, token_RK)
        fused_RK = raw_RK + self.alpha * np.log1p(credit_RK)
        more_R = (np.exp(fused_RK) - np.exp(raw_RK)).sum(axis=1)
        best_R = np.lexsort((token_RK, -comparable(fused_RK)))[:, 0]
        best = np.arange(len(view)), best_R
        p_R = comparable(np.exp(fused_RK[best] - np.log1p(more_R)))
        return Pick(near(view, p_R, self.threshold, Near.DELTA), token_RK[best])

    def _earned(self, view: View) -> tuple[IntArray, FloatArray]:
        """Return the guesses [R, K] of each row (−1 where fewer) and their credit, this pass included."""
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


def _logprobs(view: View, token_RK: IntArray) -> FloatArray:
    """Return the model's log-probability of every guess, −inf where there is none."""
    stats = positions_of(view.stats)
    is_top_RK = token_RK == stats.top_token[:, None]
    raw_RK = np.where(is_top_RK, stats.top_logprob[:, None], -np.inf)
    row, slot = np.nonzero((token_RK >= 0) & ~is_top_RK)
    if len(row):
        raw_RK[row, slot] = view.logprob_of(row, token_RK[row, slot])
    return raw_RK
