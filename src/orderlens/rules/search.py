"""Search rules: decode several paths of one text and keep some of them at the end of each block.

A policy with a search rule decodes N paths of the same prompt. They differ by the order's seed, or by their
draws at temperature > 0. At the end of a block the rule compares the paths by a measure of the trace so far
and says which path each of them continues from. ``decode.search`` runs the paths.

The kept text was chosen by its trace, so the sum of its log q is not a likelihood. Rules do not depend on
models, tasks or files. Shape letter: N paths.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from orderlens.rules.protocol import Rule, real, whole, word
from orderlens.rules.stats import FloatArray, IntArray, comparable

MEASURES = ("sum", "mean", "min", "var", "recover", "entropy", "random", "majority")
"""Names of the measures; a larger value is better, so ``var`` and ``entropy`` count negatively."""
NOT_ADDITIVE = ("random", "majority")
"""Measures of a text, not of a path: they cannot weight particles or be compared with a threshold."""
TINY = 1e-300
"""Replaces −log p where p is 1, because g is defined for p < 1."""


def path_measure(name: str, logq: FloatArray, is_eos: np.ndarray, entropy: float) -> float:
    """Return a measure of one path so far.

    All but ``sum`` leave out end-of-text tokens, unless the path has no others.

    Args:
        name: one of ``MEASURES`` except ``random`` and ``majority``.
        logq: log q of its reveals (nats).
        is_eos: which of them are end-of-text tokens.
        entropy: mean over its passes of the mean entropy of the masked positions (denoising entropy, nats).
    """
    if name == "entropy":
        return -entropy
    if name == "sum":
        return float(logq.sum())
    y = logq if is_eos.all() else logq[~is_eos]
    if name == "recover":
        from orderlens.theory.step import log_success  # imports scipy

        return float(np.sum(log_success(np.minimum(y, -TINY), 1.0)))
    return float({"mean": y.mean(), "min": y.min(), "var": -y.var()}[name])


class Search(Rule):
    """Base class of search rules.

    Attributes:
        n: number of paths.
        measure: what the paths are compared by, one of ``MEASURES``.
    """

    n: int
    measure: str
    compares_draws: bool = False
    """Whether paths must differ by drawn tokens, so that the rule needs a temperature > 0."""
    waits_for_end: bool = False
    """Whether paths are compared only when all of them have ended."""

    def next_paths(self, n_tried: int, best: float) -> int:
        """Return how many further paths to decode in this block, given those tried and their best value."""
        return self.n - n_tried

    @abstractmethod
    def survivors(
        self, now_N: FloatArray, gain_N: FloatArray, weight_N: FloatArray, uniform: float
    ) -> tuple[IntArray, FloatArray]:
        """Return the path that each path continues from, and the new log weights.

        Args:
            now_N: measure of every path so far; −inf for paths that were not decoded in this block.
            gain_N: its increase in this block.
            weight_N: log weights after the last block, 0 at first.
            uniform: a random number in [0, 1) that belongs to the text and the block.
        """


@dataclass
class Best(Search):
    """All paths continue from the best one."""

    id = "best"
    summary = "best=N:S[:text]: N paths; at each block's end (or the text's) the best by S is kept"
    n: int = whole(1, "N", 4)
    measure: str = word(MEASURES, "S", "mean")
    scope: str = word(("block", "text"), "scope", "text", default="block")

    def __post_init__(self) -> None:
        self.waits_for_end = self.scope == "text"

    def survivors(
        self, now_N: FloatArray, gain_N: FloatArray, weight_N: FloatArray, uniform: float
    ) -> tuple[IntArray, FloatArray]:
        return np.full(len(now_N), int(np.argmax(now_N))), np.zeros(len(now_N))


@dataclass
class Particles(Search):
    """Sequential Monte Carlo: a path's weight grows by exp(LAMBDA × gain in S); systematic resampling.

    Paths are resampled at a block's end if the effective sample size is below N/2, as in SR-SMC
    (arXiv 2602.01849), and the path with the largest S is kept at the end.
    """

    id = "particles"
    summary = "particles=N:LAMBDA:S: N paths, resampled at block ends with weights exp(LAMBDA × gain in S)"
    n: int = whole(1, "N", 4)
    rate: float = real(0.0, 1e6, "LAMBDA", 1.0)
    measure: str = word(tuple(name for name in MEASURES if name not in NOT_ADDITIVE), "S", "sum")

    def survivors(
        self, now_N: FloatArray, gain_N: FloatArray, weight_N: FloatArray, uniform: float
    ) -> tuple[IntArray, FloatArray]:
        weight_N = weight_N + self.rate * gain_N
        share_N = np.exp(weight_N - weight_N.max())
        share_N = share_N / share_N.sum()
        count = len(share_N)
        if 1 / np.sum(share_N**2) >= count / 2:
            return np.arange(count), weight_N
        edges_N = np.cumsum(share_N)
        chosen_N = np.searchsorted(edges_N, (np.arange(count) + uniform) / count, side="right")
        return np.minimum(chosen_N, count - 1), np.zeros(count)


@dataclass
class Restart(Search):
    """A block is decoded again until the path reaches ALPHA; the best of at most N tries is kept."""

    id = "restart"
    summary = "restart=ALPHA:S[:N]: decodes a block again while S < ALPHA; the best of N (4) tries is kept"
    least: float = real(-1e6, 1e6, "ALPHA", -0.1)
    measure: str = word(tuple(name for name in MEASURES if name not in NOT_ADDITIVE), "S", "mean")
    n: int = whole(1, "N", 4, default=4)

    def next_paths(self, n_tried: int, best: float) -> int:
        return int(n_tried < self.n and best < self.least)

    def survivors(
        self, now_N: FloatArray, gain_N: FloatArray, weight_N: FloatArray, uniform: float
    ) -> tuple[IntArray, FloatArray]:
        return np.full(len(now_N), int(np.argmax(now_N))), np.zeros(len(now_N))


@dataclass
class Beams(Search):
    """Order-Token Search (arXiv 2601.20339): K paths; at a block's start the best K of K² drafts are kept.

    A draft is the first pass of a block with its own draws; ``decode.beams`` says how it is scored. Scores
    add up over blocks. A path that has ended stays among the drafts with its score.
    """

    id = "beams"
    summary = "beams=K: K paths; at each block's start the best K of K drafts of each are kept"
    width: int = whole(1, "K", 4)
    measure = "sum"
    compares_draws = True

    def __post_init__(self) -> None:
        self.n = self.width**2

    def survivors(
        self, now_N: FloatArray, gain_N: FloatArray, weight_N: FloatArray, uniform: float
    ) -> tuple[IntArray, FloatArray]:
        return np.argsort(-comparable(now_N), kind="stable")[: self.width], np.zeros(self.width)
