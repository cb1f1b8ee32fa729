"""Look-ahead orders: several objectives over the same tried positions, at the same cost.

Each tried position i is one more state for the model, counted in the trace's ``n_lookahead``. An objective
combines the position now (y_i = log p of its most probable token, entropy) with sums over the positions j
that stay masked after the try (y_j, entropies).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from orderlens.rules.orders import AFTER, Card, LookaheadOrder, Scores
from orderlens.rules.orders.levels import revealed
from orderlens.rules.protocol import Arguments, label_of
from orderlens.rules.stats import BoolArray, FloatArray, PositionStats, comparable
from orderlens.rules.view import StepView
from orderlens.theory.step import log_success

UNTRIED = -1e6
"""Score of a position that was not tried, below the scores of tried positions."""
TINY = 1e-300
"""Stands for −log p where p is 1, because g is defined for p < 1."""


class CandidateOrder(LookaheadOrder):
    """Base class of the look-ahead orders: chooses the positions to try.

    Args:
        n: maximum number of positions to try: the most probable one, and n − 1 draws with replacement from
            softmax(p / temp) over the block's masked positions. There are at most three draws per masked
            position, so with two positions left 6 instead of 7 at n = 8.
        temp: temperature of the draws; at 0 the n most probable positions are tried.
        bypass: nothing is tried if every masked position of the block has p ≥ bypass.
        seed: seed of the draws.
        own: values of the options in ``OWN``.
    """

    needs = AFTER
    N, TEMP, BYPASS = 8, 0.2, 0.8
    OWN: ClassVar[Mapping[str, float]] = {}
    """Further positive options with their defaults."""

    def __init__(
        self, n: int = N, temp: float = TEMP, bypass: float = BYPASS, seed: int = 0, **own: float
    ) -> None:
        self.n, self.temp, self.bypass, self._seed, self.own = n, temp, bypass, seed, {**self.OWN, **own}

    @classmethod
    def parse(cls, argument: str) -> CandidateOrder:
        given = Arguments(cls.id, argument, [*cls.OWN, "n", "temp", "bypass"], seeded=True)
        own = {name: given.number(name, default, 1e-3, 1e3) for name, default in cls.OWN.items()}
        n, temp = given.whole("n", cls.N, 2), given.number("temp", cls.TEMP, 0.0)
        if temp == 0 and given.seed is not None:
            raise given.refusal("temp=0 is not random and takes no seed")
        return cls(n, temp, given.number("bypass", cls.BYPASS, 0.0, 1.0), given.seed or 0, **own)

    @property
    def label(self) -> str:
        numbers = {name: (self.own[name], default) for name, default in self.OWN.items()}
        numbers |= {"n": (self.n, self.N), "temp": (self.temp, self.TEMP)}
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
        """Draw n − 1 positions per chain, as long as there are random numbers."""
        left_C = view.left_C
        place_R = np.arange(len(view)) - view.starts_C[view.chain_R]
        weight_CN = np.zeros((len(left_C), int(left_C.max())))
        weight_CN[view.chain_R, place_R] = np.exp((np.exp(view.stats.top_logprob) - 1) / self.temp)
        below_CN = np.cumsum(weight_CN, axis=1)
        drawn_CN = np.zeros(weight_CN.shape, bool)
        chain_C = np.arange(len(left_C))
        for number_C in view.chain_uniforms(min(self.n - 1, 3 * int(left_C.max()))).T:
            picked_C = (below_CN <= (number_C * below_CN[:, -1])[:, None]).sum(axis=1)
            counts_C = ~np.isnan(number_C)
            drawn_CN[chain_C[counts_C], np.minimum(picked_C, left_C - 1)[counts_C]] = True
        drawn: BoolArray = drawn_CN[view.chain_R, place_R]
        return drawn

    def scores(self, view: StepView[PositionStats]) -> Scores:
        untried_R = np.isnan(view.extras["entropy_after"])
        return np.where(untried_R, UNTRIED + view.stats.top_logprob, self.objective(view))

    @abstractmethod
    def objective(self, view: StepView[PositionStats]) -> Scores:
        """Return the value of revealing a position now; NaN where it was not tried."""


class LookaheadGain(CandidateOrder):
    """Info-Gain: the smallest entropy now plus mean entropy of the positions masked afterwards.

    yks23/Information-Gain-Sampler (arXiv 2602.18176; N = 8, position temperature 0.2, bypass 0.8). The mean
    is over all masks of the canvas, later blocks included, for full attention; over the block for a
    block-causal model. The public code draws a token per candidate at temperature > 0 and reuses the best
    candidate's pass for the next step; here a try uses the most probable token, and no pass is reused.
    """

    id = "lookahead-gain"
    summary = "Info-Gain: tries n positions, smallest entropy now and afterwards first; lookahead-gain:n=8:3"
    card = Card("structured", 24, "H")

    def objective(self, view: StepView[PositionStats]) -> Scores:
        return -view.stats.entropy - view.extras["entropy_after"]


class LookaheadEntropy(CandidateOrder):
    """The smallest mean entropy of the positions masked afterwards, without the entropy now.

    The ``lookum`` variant of yks23/Information-Gain-Sampler; the rest is as in ``lookahead-gain``. LookUM
    itself (arXiv 2511.05563) tries sets of positions: the commit rule ``lookahead-sets``.
    """

    id = "lookahead-entropy"
    summary = "Info-Gain's lookum: tries n positions, smallest entropy left first; lookahead-entropy:n=8:3"
    card = Card("structured", 25, "8")

    def objective(self, view: StepView[PositionStats]) -> Scores:
        return -view.extras["entropy_after"]


class LookaheadLikelihood(CandidateOrder):
    """The largest y_i + Σ y_j: log-likelihood of the position and of the best guesses for what remains."""

    id = "lookahead-ll"
    summary = "tries n positions, largest log p now plus sum of log p left first; lookahead-ll:temp=0"
    card = Card("structured", 34, "+")

    def objective(self, view: StepView[PositionStats]) -> Scores:
        return view.stats.top_logprob + view.extras["logprob_after"]


class LookaheadMin(CandidateOrder):
    """The largest min(y_i, min y_j): the weakest reveal that is still to come is as probable as possible."""

    id = "lookahead-min"
    summary = "tries n positions, highest minimum of log p now and left first; lookahead-min:temp=0"
    card = Card("structured", 27, "x")

    def objective(self, view: StepView[PositionStats]) -> Scores:
        return np.minimum(view.stats.top_logprob, view.extras["least_after"])


class LookaheadVar(CandidateOrder):
    """The smallest variance of y over the block's reveals so far, the position and what remains."""

    id = "lookahead-var"
    summary = "tries n positions, smallest variance of log p so far, now and left first; lookahead-var:temp=0"
    card = Card("structured", 28, "|")

    def objective(self, view: StepView[PositionStats]) -> Scores:
        y_R, after = view.stats.top_logprob, view.extras
        n_R, sum_R, square_R = (values_C[view.chain_R] for values_C in revealed(view))
        n_R = n_R + 1 + after["n_after"]
        mean_R = (sum_R + y_R + after["logprob_after"]) / n_R
        return mean_R**2 - (square_R + y_R**2 + after["square_after"]) / n_R


class LookaheadRecover(CandidateOrder):
    """The largest g(y_i) + Σ g(y_j): log-recoverability under the uniform-spreading theory at noise SIGMA."""

    id = "lookahead-recover"
    summary = "tries n positions, largest log-recoverability first; lookahead-recover:sigma=1:temp=0"
    card = Card("structured", 29, "_")
    OWN: ClassVar[Mapping[str, float]] = {"sigma": 1.0}

    def value(self, logprob_r: FloatArray) -> FloatArray:
        return np.asarray(log_success(np.minimum(logprob_r, -TINY), self.own["sigma"]))

    def objective(self, view: StepView[PositionStats]) -> Scores:
        return self.value(view.stats.top_logprob) + view.extras["value_after"]
