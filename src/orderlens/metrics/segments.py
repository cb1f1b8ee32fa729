"""Many traces in one flat array: reductions, sorting and counting within contiguous segments.

Chunks have up to a million rows; no function loops over traces in Python. Does not depend on tables or the
meaning of the numbers. Shape letters: N rows, S segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
AnyArray: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Segments:
    """Contiguous segments of a flat array: segment i is ``[bounds[i], bounds[i + 1])`` and may be empty."""

    bounds: IntArray

    @classmethod
    def one(cls, n_rows: int) -> Segments:
        """Return a single segment over ``n_rows`` rows."""
        return cls(np.array([0, n_rows], np.int64))

    @classmethod
    def of_lengths(cls, lengths: ArrayLike) -> Segments:
        """Return segments of the given lengths."""
        return cls(np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64))

    @classmethod
    def of_changes(cls, *keys: AnyArray) -> Segments:
        """Return the longest segments in which each of the ``keys``, all of equal length, is constant."""
        n_rows = len(keys[0])
        if n_rows == 0:
            return cls(np.zeros(1, np.int64))
        change = np.zeros(n_rows, np.bool_)
        change[0] = True
        for key in keys:
            change[1:] |= key[1:] != key[:-1]
        return cls(np.append(np.flatnonzero(change), n_rows))

    @property
    def count(self) -> int:
        """Number of segments S."""
        return len(self.bounds) - 1

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return int(self.bounds[-1])

    @property
    def starts(self) -> IntArray:
        """First row of each segment [S]."""
        return self.bounds[:-1]

    @property
    def lengths(self) -> IntArray:
        """Rows of each segment [S]."""
        return np.diff(self.bounds)

    def repeat(self, values_S: AnyArray) -> AnyArray:
        """Return each segment's value on each of its rows [N]."""
        return np.repeat(values_S, self.lengths)

    def ids(self) -> IntArray:
        """Return the segment index of each row [N]."""
        return self.repeat(np.arange(self.count))

    def ranks(self) -> IntArray:
        """Return the index of each row within its segment, from 0 [N]."""
        return np.arange(self.n_rows) - self.repeat(self.starts)

    def filter(self, keep_N: BoolArray) -> Segments:
        """Return the segments after dropping the rows where ``keep_N`` is false."""
        return Segments(np.concatenate([[0], np.cumsum(keep_N)])[self.bounds].astype(np.int64))

    def reduce(self, ufunc: np.ufunc, values_N: AnyArray, empty: float = np.nan) -> AnyArray:
        """Return ``ufunc.reduce`` of every segment [S]; ``empty`` where a segment has no rows."""
        filled = self.lengths > 0
        if filled.all() and self.count:
            return np.asarray(ufunc.reduceat(values_N, self.starts))
        out = np.full(self.count, empty)
        if filled.any():
            out[filled] = ufunc.reduceat(values_N, self.starts[filled])
        return out

    def total(self, values_N: AnyArray) -> FloatArray:
        """Return the float64 sum of each segment [S]; an empty sum is 0."""
        return np.asarray(self.reduce(np.add, np.asarray(values_N, np.float64), 0.0), np.float64)

    def mean(self, values_N: AnyArray) -> FloatArray:
        """Return the mean of each segment [S]; NaN if it is empty."""
        return divide(self.total(values_N), self.lengths)

    def any(self, flags_N: BoolArray) -> BoolArray:
        """Return whether any row of each segment is flagged [S]."""
        return self.total(flags_N) > 0

    def sort(self, values_N: AnyArray) -> AnyArray:
        """Return the values sorted within each segment [N].

        Segments of similar length are padded to a power of two and sorted as the rows of one matrix.
        """
        lengths = self.lengths
        if self.count and (lengths == lengths[0]).all():
            return np.sort(values_N.reshape(self.count, -1), axis=1).reshape(-1)
        out = np.empty_like(values_N)
        widths = 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
        for width in np.unique(widths[lengths > 0]):
            rows = np.flatnonzero((widths == width) & (lengths > 0))
            places = self.starts[rows, None] + np.arange(width)
            inside = np.arange(width) < lengths[rows, None]
            padded = np.full(places.shape, _largest(values_N.dtype), values_N.dtype)
            padded[inside] = values_N[places[inside]]
            padded.sort(axis=1)
            out[places[inside]] = padded[inside]
        return out

    def quantile(self, sorted_N: FloatArray, q: float) -> FloatArray:
        """Return the ``q`` quantile of each segment [S] of sorted values (linear interpolation)."""
        out = np.full(self.count, np.nan)
        filled = self.lengths > 0
        place = (self.lengths[filled] - 1) * q
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, self.lengths[filled] - 1)
        start = self.starts[filled]
        left, right = sorted_N[start + low], sorted_N[start + high]
        out[filled] = left + (place - low) * (right - left)
        return out

    def text_order(self, positions_N: IntArray) -> IntArray:
        """Return row indices [N] that put every segment's rows in order of position.

        Paths without gaps are placed by counting; otherwise the rows are sorted.
        """
        if not self.n_rows:
            return np.zeros(0, np.int64)
        first = np.asarray(self.reduce(np.minimum, positions_N, 0)).astype(np.int64)
        last = np.asarray(self.reduce(np.maximum, positions_N, -1)).astype(np.int64)
        if np.array_equal((last - first + 1)[self.lengths > 0], self.lengths[self.lengths > 0]):
            order = np.full(self.n_rows, -1, np.int64)
            order[positions_N - self.repeat(first - self.starts)] = np.arange(self.n_rows)
            if (order >= 0).all():  # otherwise a position occurs twice
                return order
        return np.lexsort((positions_N, self.ids()))


def divide(numerator: ArrayLike, denominator: ArrayLike) -> FloatArray:
    """Return numerator / denominator, NaN where the denominator is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    out = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=out, where=bottom != 0)
    return out


_SHORT = 255
"""Longest segment whose counts fit in a byte."""


def earlier_and_smaller(ranks_N: IntArray, segments: Segments) -> IntArray:
    """Return for each row the number of earlier rows of its segment with a smaller rank [N].

    ``ranks_N`` are distinct integers in 0…length−1 within each segment. Short segments of equal length are
    compared in parallel, in bytes; long segments take one pass per binary digit.
    """
    counts = np.zeros(segments.n_rows, np.int64)
    lengths = segments.lengths
    for length in np.unique(lengths[(lengths > 1) & (lengths <= _SHORT)]):
        rows_SL = segments.starts[lengths == length, None] + np.arange(length)
        ranks_LS = np.ascontiguousarray(ranks_N[rows_SL].T.astype(np.uint8))
        found_LS = np.zeros_like(ranks_LS)
        for step in range(1, length):
            smaller = ranks_LS[:step] < ranks_LS[step]
            np.add.reduce(smaller.view(np.uint8), axis=0, dtype=np.uint8, out=found_LS[step])
        counts[rows_SL] = found_LS.T
    if (lengths > _SHORT).any():
        long = segments.repeat(lengths > _SHORT)
        counts[long] = _by_digits(ranks_N[long], segments.filter(long))
    return counts


def _by_digits(ranks_N: IntArray, segments: Segments) -> IntArray:
    """Do the same in O(N log length), by a radix sort from the highest binary digit.

    Rows with equal leading digits form a group, in the original order. In each pass a row with digit 1 counts
    the rows with digit 0 before it in its group.
    """
    counts = np.zeros(segments.n_rows, np.int64)
    rows = np.arange(segments.n_rows)
    groups = Segments(np.unique(segments.bounds))
    for bit in range(int(segments.lengths.max()).bit_length() - 1, -1, -1):
        one = (ranks_N[rows] >> bit) & 1 == 1
        zeros_before = np.cumsum(~one) - ~one
        zeros_before -= groups.repeat(zeros_before[groups.starts])
        counts[rows[one]] += zeros_before[one]
        n_zeros = groups.filter(~one).lengths
        place = groups.repeat(groups.starts)
        place += np.where(one, groups.repeat(n_zeros) + groups.ranks() - zeros_before, zeros_before)
        moved = np.empty_like(rows)
        moved[place] = rows
        rows = moved
        split = np.stack([n_zeros, groups.lengths - n_zeros], axis=1).reshape(-1)
        groups = Segments.of_lengths(split[split > 0])
    return counts


def _largest(kind: np.dtype[Any]) -> Any:
    return np.inf if kind.kind == "f" else np.iinfo(kind).max


def moments(values_N: AnyArray, segments: Segments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance (ddof = 0) and sum of each segment [S]; NaN if it is empty."""
    values = np.asarray(values_N, np.float64)
    total = segments.total(values)
    with np.errstate(invalid="ignore"):  # −inf minus −inf: no variance
        mean = divide(total, segments.lengths)
        deviation = values - segments.repeat(mean)
        var = segments.mean(deviation * deviation)
    return mean, var, np.where(segments.lengths > 0, total, np.nan)
