"""The shape of a path: how close it is to left-to-right, and the order of EOS reveals at the end of the text.

A path is the list of positions in reveal order, within one block unless stated otherwise. Functions on one
path come first; the ``segment_`` versions process many paths in one call. Does not depend on probabilities.

Shape letters: N reveals, S paths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray, Segments, divide, earlier_and_smaller


def spearman_l2r(positions_in_reveal_order: ArrayLike) -> float:
    """Return the Spearman correlation of position and reveal step (1 = left to right, −1 = right to left).

    Drop EOS reveals first. Fewer than two positions give NaN.
    """
    return rank_correlation(
        _path(positions_in_reveal_order), np.arange(len(_path(positions_in_reveal_order)))
    )


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Return the Pearson correlation of average ranks; NaN if too short, or if one input is constant."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    u, v = average_ranks(a) - (len(a) + 1) / 2, average_ranks(b) - (len(b) + 1) / 2
    scale = math.sqrt(float(u @ u) * float(v @ v))
    return float(u @ v) / scale if scale > 0 else math.nan


def average_ranks(values: ArrayLike) -> FloatArray:
    """Return ranks from 1; equal values get their mean rank. Does not import scipy.stats, which takes 1 s."""
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def local_arness(positions: ArrayLike, k: int = 1) -> float:
    """Return the share of windows of k + 1 reveals that are consecutive and increasing positions.

    NaN for a path shorter than k + 1. Not comparable with ``global_arness``.
    """
    path = _path(positions)
    return float(segment_local_arness(path, Segments.one(len(path)), k)[0])


def global_arness(positions: ArrayLike, k: int = 1) -> float:
    """Return the share of reveals among the k leftmost masked positions of the path.

    A random path of n positions has H_n/n on average for k = 1. Not comparable with ``local_arness``.
    """
    path = _path(positions)
    one = Segments.one(len(path))
    return float(one.mean(masks_to_the_left(path, one) < k)[0])


def concordance(positions: ArrayLike) -> float:
    """Return the share of pairs revealed in text order (random paths: 0.5); NaN for fewer than two."""
    path = _path(positions)
    one = Segments.one(len(path))
    return float(segment_concordance(path, one)[0])


def frontier_distance(positions: ArrayLike, left_edge: int | None = None) -> IntArray:
    """Return for each reveal its distance to the nearest revealed position or prompt token on its left [n].

    Args:
        positions: all reveals of one block in reveal order, including EOS (they are context too).
        left_edge: last known position before the block; by default the position before its leftmost one.
    """
    path = _path(positions)
    edge = None if left_edge is None else np.array([left_edge])
    return segment_frontier_distance(path, Segments.one(len(path)), edge)


@dataclass(frozen=True, slots=True)
class EosCascade:
    """The longest run of steps that reveal EOS from right to left at the end of the text.

    Attributes:
        length: number of steps (0 without EOS).
        start: its first step; NaN without EOS.
        resume: first later step that reveals content; NaN if there is none.
    """

    length: int
    start: float
    resume: float


def eos_cascade(positions: ArrayLike, is_eos: ArrayLike, is_content: ArrayLike | None = None) -> EosCascade:
    """Return the longest run of consecutive steps that reveal EOS at strictly decreasing positions.

    Among equally long runs the first counts. ``is_content`` defaults to ``not is_eos``.
    """
    path, eos = _path(positions), np.asarray(is_eos, np.bool_)
    content = ~eos if is_content is None else np.asarray(is_content, np.bool_)
    length, start, resume = segment_eos_cascade(path, eos, content, Segments.one(len(path)))
    return EosCascade(int(length[0]), float(start[0]), float(resume[0]))


def agreement(path_a: ArrayLike, path_b: ArrayLike) -> float:
    """Return the Spearman correlation of two orders' reveal steps over their common positions."""
    a, b = _path(path_a), _path(path_b)
    _, at_a, at_b = np.intersect1d(a, b, return_indices=True)
    return rank_correlation(at_a, at_b)


def segment_spearman_l2r(path_N: IntArray, segments: Segments) -> FloatArray:
    """Return ``spearman_l2r`` of every path [S]; positions must be distinct inside a path."""
    n = segments.lengths.astype(np.float64)
    squares = segments.total((position_ranks(path_N, segments) - segments.ranks()).astype(np.float64) ** 2)
    return 1.0 - 6.0 * divide(squares, np.where(n > 1, n * (n**2 - 1), 0.0))


def segment_local_arness(path_N: IntArray, segments: Segments, k: int = 1) -> FloatArray:
    """Return ``local_arness`` of every path [S]."""
    if k < 1:
        raise UserInputError(f"AR-ness needs k ≥ 1, got {k}")
    follows = np.zeros(len(path_N), np.bool_)
    follows[1:] = np.diff(path_N) == 1
    follows[segments.starts[segments.lengths > 0]] = False
    run = follows.copy()
    for back in range(1, k):
        run[back:] &= follows[:-back]
        run[:back] = False
    return divide(segments.total(run), np.maximum(segments.lengths - k, 0))


def segment_concordance(path_N: IntArray, segments: Segments) -> FloatArray:
    """Return ``concordance`` of every path [S]."""
    n = segments.lengths
    pairs = segments.total(earlier_and_smaller(position_ranks(path_N, segments), segments))
    return divide(pairs, n * (n - 1) / 2)


def masks_to_the_left(path_N: IntArray, segments: Segments) -> IntArray:
    """Return for each reveal the number of masked positions of its path to its left [N]."""
    ranks = position_ranks(path_N, segments)
    return ranks - earlier_and_smaller(ranks, segments)


def position_ranks(path_N: IntArray, segments: Segments) -> IntArray:
    """Return the rank of each position within its path, from 0 [N]."""
    ranks = np.empty(len(path_N), np.int64)
    ranks[segments.text_order(path_N)] = segments.ranks()
    return ranks


def segment_frontier_distance(
    path_N: IntArray, segments: Segments, left_edge_S: IntArray | None = None
) -> IntArray:
    """Return ``frontier_distance`` of every reveal [N].

    Reveals are removed from a linked list of positions, last reveal first. When only the first t remain, the
    left neighbour of reveal t in the list is the nearest position that was revealed before it. There is one
    vector step per reveal of the longest path.
    """
    if not segments.n_rows:
        return np.zeros(0, np.int64)
    in_text = segments.text_order(path_N)
    place = np.empty(len(path_N), np.int64)
    place[in_text] = np.arange(len(path_N))
    # Slot 0 of each path is a sentinel for its left edge; row r is at slot place + its path index + 1.
    node = place + segments.ids() + 1
    filled = segments.lengths > 0
    edge = path_N[in_text[segments.starts[filled]]] - 1 if left_edge_S is None else left_edge_S[filled]
    position = np.empty(len(path_N) + segments.count, np.int64)
    position[node] = path_N
    position[(segments.starts + np.arange(segments.count))[filled]] = edge
    left = np.arange(-1, len(position))  # one extra entry: the right neighbour of the last node
    right = np.arange(1, len(position) + 1)
    distance = np.empty(len(path_N), np.int64)
    active = np.flatnonzero(filled)
    for step in range(int(segments.lengths.max()) - 1, -1, -1):
        rows = segments.starts[active[segments.lengths[active] > step]] + step
        at = node[rows]
        before = left[at]
        distance[rows] = path_N[rows] - position[before]
        right[before] = right[at]
        left[right[at]] = before
    return distance


def segment_eos_cascade(
    path_N: IntArray, eos_N: BoolArray, content_N: BoolArray, segments: Segments
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return length, start step and resume step of every path's EOS cascade, each [S]."""
    n_rows = segments.n_rows
    goes_on = np.zeros(n_rows, np.bool_)
    goes_on[1:] = eos_N[1:] & eos_N[:-1] & (path_N[1:] < path_N[:-1])
    goes_on[segments.starts[segments.lengths > 0]] = False
    run_start = (
        np.maximum.accumulate(np.where(goes_on, 0, np.arange(n_rows))) if n_rows else np.zeros(0, np.int64)
    )
    run_length = np.where(eos_N, np.arange(n_rows) - run_start + 1, 0)
    longest = segments.reduce(np.maximum, run_length, 0).astype(np.int64)
    # The cascade ends at the first row with the longest length.
    ends = np.where((run_length == segments.repeat(longest)) & eos_N, np.arange(n_rows), n_rows)
    last = segments.reduce(np.minimum, ends, n_rows).astype(np.int64)
    next_content = np.where(content_N, np.arange(n_rows), n_rows)
    next_content = np.minimum.accumulate(next_content[::-1])[::-1] if n_rows else next_content
    found = (longest > 0) & (last < n_rows)
    after = np.append(next_content, n_rows)[np.minimum(last + 1, n_rows)]
    resumes = found & (after < segments.bounds[1:])
    start = np.where(found, last - longest + 1 - segments.starts, np.nan)
    return longest.astype(np.float64), start, np.where(resumes, after - segments.starts, np.nan)


def _path(positions: ArrayLike) -> IntArray:
    path = np.asarray(positions)
    if path.ndim != 1:
        raise UserInputError(f"a path must be one list of positions, got shape {path.shape}")
    if path.size and not np.isfinite(path.astype(np.float64)).all():
        raise UserInputError("a path must contain positions, got an undefined value")
    return path.astype(np.int64)
