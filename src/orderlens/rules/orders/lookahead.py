"""Orders that try positions before they choose: information gain, and the same without its cost term.

Every try is one more state, evaluated together with those of all other texts and counted in the trace's
``n_lookahead``.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from orderlens.rules.orders.protocol import Card, LookaheadOrder, Scores
from orderlens.rules.protocol import Arguments, label_of
from orderlens.rules.stats import BoolArray, PositionStats, comparable
from orderlens.rules.view import StepView

UNTRIED = -1e6
"""Score of a position that was not tried, below all that were."""
DIGITS = 2**17
"""A number in [0, 1) gives up to three nearly independent ones, 17 binary digits each."""


class Ahead(LookaheadOrder):
    """What the two look-ahead orders share: which positions are tried.

    Args:
        n: positions tried at most. One is the most probable; the others are drawn, with replacement, from
            softmax(p / temp) over the block's masked positions, and repeated ones are tried once. No more
            than three draws per masked position are made, so with two left 6 instead of 7 at n = 8.
        temp: of that draw; at 0 the n most probable positions are tried and nothing is drawn.
        bypass: where every masked position of the block has p ≥ bypass nothing is tried.
        seed: of the draws.
    """

    N, TEMP, BYPASS = 8, 0.2, 0.8

    def __init__(self, n: int = N, temp: float = TEMP, bypass: float = BYPASS, seed: int = 0) -> None:
        self.n, self.temp, self.bypass, self._seed = n, temp, bypass, seed

    @classmethod
    def parse(cls, argument: str) -> Ahead:
        given = Arguments(cls.id, argument, ["n", "temp", "bypass"], seeded=True)
        n, temp = given.whole("n", cls.N, 2), given.number("temp", cls.TEMP, 0.0)
        if temp == 0 and given.seed is not None:
            raise given.refusal("temp=0 draws nothing and takes no seed")
        return cls(n, temp, given.number("bypass", cls.BYPASS, 0.0, 1.0), given.seed or 0)

    @property
    def label(self) -> str:
        numbers = {"n": (self.n, self.N), "temp": (self.temp, self.TEMP)}
        return label_of(self.id, {**numbers, "bypass": (self.bypass, self.BYPASS)})

    @property
    def seed(self) -> int | None:
        return self._seed if self.temp else None

    def candidates(self, view: StepView[PositionStats]) -> BoolArray:
        sure_R = comparable(view.stats.top_logprob)
        best_R = view.best(sure_R)
        open_C = view.any_C(comparable(np.exp(view.stats.top_logprob)) < comparable(self.bypass))
        if not self.temp:
            return np.where(open_C[view.chain_R], view.ranks(sure_R) < self.n, best_R)
        return best_R | (self._drawn(view) & open_C[view.chain_R])

    def _drawn(self, view: StepView[PositionStats]) -> BoolArray:
        """Draw n − 1 positions per chain with the numbers of its masked positions, up to three from each."""
        left_C = view.left_C
        place_R = np.arange(len(view)) - view.starts_C[view.chain_R]
        weight_CN = np.zeros((len(left_C), int(left_C.max())))
        number_CN = np.zeros_like(weight_CN)
        weight_CN[view.chain_R, place_R] = np.exp((np.exp(view.stats.top_logprob) - 1) / self.temp)
        number_CN[view.chain_R, place_R] = view.uniforms_R
        below_CN = np.cumsum(weight_CN, axis=1)
        drawn_CN = np.zeros(weight_CN.shape, bool)
        chain_C = np.arange(len(left_C))
        for draw in range(self.n - 1):
            level_C = draw // left_C
            number_C = number_CN[chain_C, draw % left_C] * float(DIGITS) ** level_C % 1.0
            picked_C = (below_CN <= (number_C * below_CN[:, -1])[:, None]).sum(axis=1)
            counts_C = level_C < 3
            drawn_CN[chain_C[counts_C], np.minimum(picked_C, left_C - 1)[counts_C]] = True
        drawn: BoolArray = drawn_CN[view.chain_R, place_R]
        return drawn

    def scores(self, view: StepView[PositionStats]) -> Scores:
        after_R = view.extras["entropy_after"]
        untried_R = UNTRIED + view.stats.top_logprob
        return np.where(np.isnan(after_R), untried_R, -self.cost(view) - np.nan_to_num(after_R))

    @abstractmethod
    def cost(self, view: StepView[PositionStats]) -> Scores:
        """Return what a position costs now."""


class LookaheadGain(Ahead):
    """Info-Gain: the least entropy now plus mean entropy of what is masked afterwards.

    yks23/Information-Gain-Sampler (arXiv 2602.18176; N = 8, position temperature 0.2, bypass 0.8). The mean
    is over all masks of the canvas, later blocks included, where the model sees them (full attention); a
    block-causal model sees its block. The public code draws a token per candidate at temperature > 0 and
    reuses the winner's pass for the next step; here tries take the most probable token and every pass is
    made.
    """

    id = "lookahead-gain"
    summary = "Info-Gain: tries n positions, least entropy now and afterwards first; lookahead-gain:n=8:3"
    card = Card("Info-gain", "structured", 24, "H")

    def cost(self, view: StepView[PositionStats]) -> Scores:
        return view.stats.entropy


class LookaheadEntropy(Ahead):
    """The least mean entropy of what is masked afterwards, whatever the position itself costs.

    The ``lookum`` variant of yks23/Information-Gain-Sampler; the rest is as in ``lookahead-gain``. LookUM
    itself (arXiv 2511.05563) selects among several texts that are decoded side by side: another sampler.
    """

    id = "lookahead-entropy"
    summary = "Info-Gain's lookum: tries n positions, least entropy left first; lookahead-entropy:n=8:3"
    card = Card("Info-gain, rest", "structured", 25, "8")

    def cost(self, view: StepView[PositionStats]) -> Scores:
        return np.zeros(len(view))
