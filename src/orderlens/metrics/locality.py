"""How sure a model is by distance to the revealed text, and what one reveal tells about its neighbours.

The fall of a position's entropy when one token is revealed estimates the information between the two. Its
mean over tokens drawn from a coherent model is their mutual information given the visible text. Arrays in,
numbers out; does not depend on runs.

Shape letters: P kept passes of a trace, B block size, D groups of distances. Undefined entries are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.metrics.segments import BoolArray, FloatArray, IntArray

EDGES = (1, 2, 3, 5, 9, 17)
"""Smallest distance of each group."""
GROUPS = ("1", "2", "3–4", "5–8", "9–16", "17+")
FAR = np.iinfo(np.int32).max
"""The distance where nothing is revealed."""


@dataclass(frozen=True, slots=True)
class States:
    """The kept states of one trace, in the sequence of their passes.

    Attributes:
        forward_P: the pass.
        start_P: position of the block's first token.
        visible_PB: positions of the block that hold a token before the pass.
        top_PB: top probability at masked positions.
        entropy_PB: their entropy (nats).
    """

    forward_P: IntArray
    start_P: IntArray
    visible_PB: BoolArray
    top_PB: FloatArray
    entropy_PB: FloatArray

    @property
    def distance_PB(self) -> IntArray:
        """Distance to the nearest visible token of the block, or to the text before the block."""
        return nearest(self.visible_PB, self.start_P > 0)

    def falls(self) -> tuple[FloatArray, IntArray]:
        """Return the fall of entropy [P − 1, B] in passes that reveal one token, and the distance to it.

        Passes that reveal several tokens, mask a token again or end a block are undefined.
        """
        before_QB, after_QB = self.visible_PB[:-1], self.visible_PB[1:]
        next_Q = (np.diff(self.forward_P) == 1) & (np.diff(self.start_P) == 0)
        new_QB = after_QB & ~before_QB
        one_Q = next_Q & (new_QB.sum(axis=1) == 1) & ~(before_QB & ~after_QB).any(axis=1)
        fall_QB = self.entropy_PB[:-1] - self.entropy_PB[1:]
        fall_QB[~one_Q] = np.nan
        return fall_QB, nearest(new_QB, np.zeros(len(new_QB), bool))

    def pass_entropy(self) -> FloatArray:
        """Return the mean entropy of the masked positions in every pass [P]."""
        return row_means(self.entropy_PB, np.isfinite(self.entropy_PB))


def nearest(marked_PB: BoolArray, before_P: BoolArray) -> IntArray:
    """Return the distance of every place to the nearest marked one of its row.

    Args:
        marked_PB: marked places.
        before_P: whether the place before the row's first one is marked as well.
    """
    place_B = np.arange(marked_PB.shape[1])
    left_PB = np.where(marked_PB, place_B, -FAR)
    left_PB[:, 0] = np.maximum(left_PB[:, 0], np.where(before_P, -1, -FAR))
    left_PB = np.maximum.accumulate(left_PB, axis=1)
    right_PB = np.minimum.accumulate(np.where(marked_PB, place_B, 2 * FAR)[:, ::-1], axis=1)[:, ::-1]
    return np.minimum(np.minimum(place_B - left_PB, right_PB - place_B), FAR)


def group_means(values_PB: FloatArray, distance_PB: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the mean of the defined values in each group of distances [D], and their number."""
    known = np.isfinite(values_PB) & (distance_PB > 0) & (distance_PB < FAR)
    group = np.searchsorted(EDGES, distance_PB[known], side="right") - 1
    count = np.bincount(group, minlength=len(EDGES))
    total = np.bincount(group, values_PB[known], minlength=len(EDGES))
    return np.divide(total, count, out=np.full(len(EDGES), np.nan), where=count > 0), count


def lead_of_neighbours(values_PB: FloatArray, distance_PB: IntArray, low: int, high: int = FAR) -> float:
    """Return the mean over passes of: mean at distance 1 minus mean at distances ``low`` to ``high`` − 1.

    Only passes with both enter, so that passes with little revealed text do not count on one side only.
    """
    known = np.isfinite(values_PB)
    near_P = row_means(values_PB, known & (distance_PB == 1))
    far_P = row_means(values_PB, known & (distance_PB >= low) & (distance_PB < high))
    lead_P = (near_P - far_P)[np.isfinite(near_P) & np.isfinite(far_P)]
    return float(lead_P.mean()) if len(lead_P) else float("nan")


def row_means(values_PB: FloatArray, chosen_PB: BoolArray) -> FloatArray:
    """Return the mean of the chosen values of each row [P]; NaN in a row without any."""
    count_P = chosen_PB.sum(axis=1)
    total_P = np.where(chosen_PB, values_PB, 0.0).sum(axis=1)
    mean_P: FloatArray = np.divide(total_P, count_P, out=np.full(len(count_P), np.nan), where=count_P > 0)
    return mean_P
