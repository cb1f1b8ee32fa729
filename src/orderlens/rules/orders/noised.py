"""Confidence-first orders with noise: MaskGIT's annealed Gumbel noise, Dream's draw of positions.

Both add keyed Gumbel noise to a confidence, so that the largest sums are a draw without replacement from the
softmax of what the noise is added to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from orderlens.rules.orders.arguments import Arguments, label_of
from orderlens.rules.orders.protocol import Card, DrawingOrder, Scores
from orderlens.rules.stats import DrawStats, PositionStats
from orderlens.rules.view import StepView

TINY = 1e-300
"""Stands for a uniform number of 0, whose Gumbel number would be −inf."""


def gumbel(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard Gumbel numbers from numbers in [0, 1)."""
    noise: NDArray[np.float64] = -np.log(-np.log(np.maximum(uniforms, TINY)))
    return noise


class GumbelProb(DrawingOrder):
    """MaskGIT: log p(token) + SCALE · (1 − t/T) · Gumbel, t being this pass (from 1) of T planned ones.

    google-research/maskgit ``parallel_decode.py`` (choice_temperature 1, 12 iterations). The noise fades as
    the block fills and is gone in its last pass. T is what the commit rule plans for the block. Positions
    that the public code masks again are those it just sampled, so nothing revealed is taken back. At
    temperature > 0 the drawn tokens compete, else the most probable ones.
    """

    id = "gumbel-prob"
    summary = "MaskGIT: log p plus fading noise; gumbel-prob:scale=1:3 has seed 3"
    card = Card("Gumbel prob", "structured", 20, "d")
    needs = frozenset({"planned_passes"})
    SCALE = 1.0

    def __init__(self, scale: float = SCALE, seed: int = 0) -> None:
        self.scale, self._seed = scale, seed

    @classmethod
    def parse(cls, argument: str) -> GumbelProb:
        """Build from ``scale=…`` and a seed, each optional."""
        given = Arguments(cls.id, argument, ["scale"], seeded=True)
        return cls(given.number("scale", cls.SCALE, 0.0), given.seed or 0)

    @property
    def label(self) -> str:
        """The id, and the scale where it is not 1."""
        return label_of(self.id, {"scale": (self.scale, self.SCALE)})

    @property
    def seed(self) -> int:
        """The seed of the noise."""
        return self._seed

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return the noised log p(v1)."""
        return view.stats.top_logprob + self._noise(view)

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        """Return the noised log-probability of the drawn tokens."""
        return view.stats.logprob + self._noise(view)

    def _noise(self, view: StepView[Any]) -> Scores:
        done_R = (view.forward_C[view.chain_R] + 1) / view.extras["planned_passes"]
        noise: Scores = self.scale * np.maximum(1 - done_R, 0.0) * gumbel(view.uniforms_R)
        return noise


class SampledPosition(DrawingOrder):
    """Dream's position sampling: positions are drawn from softmax(confidence / TEMP), without replacement.

    Dream ``generation_utils.py`` with ``alg_temp`` > 0: the confidence is p (maskgit_plus), p(v1) − p(v2)
    (topk_margin) or −H (entropy), in probabilities and nats, not in logarithms. Dream's own default is
    ``alg_temp`` None, which draws nothing; 0.1 is ours. llama.cpp's copy may draw a position twice.
    """

    id = "sampled-position"
    summary = "Dream's alg_temp: drawn from softmax(confidence/temp); sampled-position:by=entropy:temp=0.1:3"
    card = Card("Sampled position", "structured", 21, "p")
    BY = ("prob", "margin", "entropy")
    TEMP = 0.1

    def __init__(self, by: str = "prob", temp: float = TEMP, seed: int = 0) -> None:
        self.by, self.temp, self._seed = by, temp, seed

    @classmethod
    def parse(cls, argument: str) -> SampledPosition:
        """Build from ``by=…``, ``temp=…`` and a seed, each optional."""
        given = Arguments(cls.id, argument, ["by", "temp"], seeded=True)
        temp = given.number("temp", cls.TEMP, 1e-6)
        return cls(given.word("by", "prob", cls.BY), temp, given.seed or 0)

    @property
    def label(self) -> str:
        """The id, and what is not the default."""
        return label_of(self.id, {"by": (self.by, "prob"), "temp": (self.temp, self.TEMP)})

    @property
    def seed(self) -> int:
        """The seed of the draws of positions."""
        return self._seed

    @property
    def draws_first(self) -> bool:
        """Only the probability is one of the drawn token."""
        return self.by == "prob"

    def scores(self, view: StepView[PositionStats]) -> Scores:
        """Return confidence / TEMP plus noise."""
        stats, p_R = view.stats, np.exp(view.stats.top_logprob)
        if self.by == "prob":
            return self._noised(view, p_R)
        margin = self.by == "margin"
        return self._noised(view, p_R - np.exp(stats.second_logprob) if margin else -stats.entropy)

    def draw_scores(self, view: StepView[DrawStats]) -> Scores:
        """Return the probability of the drawn token / TEMP plus noise."""
        return self._noised(view, np.exp(view.stats.logprob))

    def _noised(self, view: StepView[Any], confidence_R: Scores) -> Scores:
        return confidence_R / self.temp + gumbel(view.uniforms_R)
