"""An order learned from ten numbers per position: a linear score fitted to imitate a teacher.

The score of a position is a weighted sum of ``features``. The weights were fitted by pairwise logistic
regression on texts of the development split of the bundled tasks (``recipes/train_ranker.py``): in each state
the position that the teacher reveals next should score above the others. ``learned.json`` holds one set of
weights per teacher. Does not depend on models or targets when it decodes.

Shape letters: R masked positions, F features.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from orderlens.rules.orders import Card, ConfidenceOrder, Scores
from orderlens.rules.protocol import Arguments, label_of
from orderlens.rules.stats import FloatArray, IntArray, PositionStats
from orderlens.rules.view import StepView

FEATURES = (
    "log p",
    "margin",
    "entropy",
    "p of EOS",
    "offset",
    "place among masks",
    "distance left",
    "distance right",
    "log odds",
    "passes waited × log p",
)
REACH = 8
"""Distances to revealed neighbours are cut at this many positions."""
LOWEST = -20.0
"""Smallest log-probability that counts (nats)."""
ODDS = 16.0
"""Largest log odds; float32 cannot separate probabilities beyond."""
TEACHERS = ("oracle-margin", "census")


def features(view: StepView[Any], stats: PositionStats) -> FloatArray:
    """Return the numbers of ``FEATURES`` for each masked position [R, F].

    Args:
        view: the pass; its own statistics are not used.
        stats: statistics of the positions, without targets.
    """
    logprob_R = np.maximum(stats.top_logprob, LOWEST)
    second_R = np.exp(np.maximum(stats.second_logprob, LOWEST))
    place_R = np.arange(len(view)) - view.starts_C[view.chain_R]
    left_R, right_R = _distances(view.chain_R, view.offset_R)
    waited_R = (view.forward_C / view.filling_C)[view.chain_R]
    return np.column_stack(
        [
            logprob_R,
            np.exp(logprob_R) - second_R,
            stats.entropy,
            np.exp(np.maximum(stats.eos_logprob, LOWEST)),
            view.offset_R / 32,
            place_R / view.left_C[view.chain_R],
            left_R / REACH,
            right_R / REACH,
            np.clip(logprob_R - np.log(np.maximum(-np.expm1(logprob_R), 1e-12)), -ODDS, ODDS),
            waited_R * logprob_R,
        ]
    )


def _distances(chain_R: IntArray, offset_R: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distance to the next revealed position on each side, at most ``REACH``.

    The position before the block counts as revealed, the one after the last masked position as well.
    """
    joined_R = (np.diff(chain_R) == 0) & (np.diff(offset_R) == 1)
    left_R, right_R = np.ones(len(chain_R), np.int64), np.ones(len(chain_R), np.int64)
    starts = np.flatnonzero(~np.concatenate(([False], joined_R)))
    ends = np.concatenate((starts[1:], [len(chain_R)]))
    run_R = np.repeat(np.arange(len(starts)), ends - starts)
    place_R = np.arange(len(chain_R)) - starts[run_R]
    left_R += place_R
    right_R += (ends - starts)[run_R] - 1 - place_R
    return np.minimum(left_R, REACH), np.minimum(right_R, REACH)


@cache
def _weights() -> dict[str, FloatArray]:
    text = resources.files("orderlens.rules.orders").joinpath("learned.json").read_text("utf-8")
    return {name: np.asarray(values, np.float64) for name, values in json.loads(text)["weights"].items()}


class Learned(ConfidenceOrder):
    """The largest weighted sum of ``features`` first; TEACHER names what the weights imitate."""

    id = "learned"
    summary = "a ranker fitted to imitate oracle-margin, or the likeliest order: learned:teacher=census"
    card = Card("structured", 35, ",")

    def __init__(self, teacher: str = TEACHERS[0]) -> None:
        self.teacher = teacher

    @classmethod
    def parse(cls, argument: str) -> Learned:
        return cls(Arguments(cls.id, argument, ["teacher"]).word("teacher", TEACHERS[0], TEACHERS))

    @property
    def label(self) -> str:
        return label_of(self.id, {"teacher": (self.teacher, TEACHERS[0])})

    def scores(self, view: StepView[PositionStats]) -> Scores:
        scores: Scores = features(view, view.stats) @ _weights()[self.teacher]
        return scores
