"""A number with its interval, its counts, and the reason when there is no number.

Intervals come from a bootstrap that resamples prompts, not rows, so several orders or seeds of one prompt
stay together. It is seeded, works on whole matrices of resampling counts, and every statistic of the same
prompts sees the same resamples. Does not know what the numbers mean.

Shape letters: N rows, C clusters (prompts), B resamples of a piece, K columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray, Segments, divide

_PIECE = 200_000
"""Resampling counts worked on at once: few enough to stay in the processor's cache."""

_CACHED = 32_000_000
"""Resampling counts kept for the next statistic (two bytes each)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One cell of a table.

    Attributes:
        value: the estimate, NaN when undefined.
        low: lower end of the interval, NaN when there is none.
        high: upper end.
        n: rows behind it.
        n_undefined: rows that had no value and were left out.
        why: reason when ``value`` is NaN, or a caution; None otherwise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    n_undefined: int = 0
    why: str | None = None

    @classmethod
    def undefined(cls, why: str, n_undefined: int = 0) -> Estimate:
        """Return a cell that only says why it is empty."""
        return cls(math.nan, n_undefined=n_undefined, why=why)

    @property
    def is_defined(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)


MOST_REPS = 1_000_000
"""More resamples take days and change nothing."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """How intervals are made: number of resamples (0 = none), seed, and coverage."""

    reps: int = 1000
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.reps <= MOST_REPS:
            raise UserInputError(
                f"the number of bootstrap resamples must be ≥ 0 and at most {MOST_REPS:,}, got {self.reps}"
            )
        if not 0 < self.level < 1:
            raise UserInputError(f"the confidence level must lie between 0 and 1, got {self.level}")


def _counts(n_clusters: int, resampling: Resampling) -> Iterator[NDArray[np.uint16]]:
    """Yield pieces [B, C] of how often each cluster is drawn."""
    rng = keyed_generator(resampling.seed, "bootstrap", n_clusters)
    piece = max(1, _PIECE // n_clusters)
    for start in range(0, resampling.reps, piece):
        size = min(piece, resampling.reps - start)
        drawn = rng.integers(0, n_clusters, (size, n_clusters), dtype=np.int32)
        drawn = drawn + np.arange(size)[:, None] * n_clusters
        counts = np.bincount(drawn.reshape(-1), minlength=size * n_clusters)
        yield counts.reshape(size, n_clusters).astype(np.uint16)


@lru_cache(maxsize=4)
def _cached_counts(n_clusters: int, resampling: Resampling) -> tuple[NDArray[np.uint16], ...]:
    """Keep the last few sets: all cells of a table resample the same prompts."""
    return tuple(_counts(n_clusters, resampling))


class Clusters:
    """The prompts behind a set of rows, and their resamples."""

    def __init__(self, ids: Iterable[Hashable], resampling: Resampling) -> None:
        """Number the prompts.

        Args:
            ids: the prompt of each row [N].
            resampling: how to resample them.
        """
        import pandas as pd  # the store reads metrics on machines without pandas

        values = ids if isinstance(ids, pd.Series) else pd.Series(list(ids), dtype=object)
        codes, unique = pd.factorize(values, use_na_sentinel=False)
        self.codes: IntArray = np.asarray(codes, np.int64)
        self.count = len(unique)
        self.resampling = resampling

    def sums(self, values_NK: FloatArray) -> FloatArray:
        """Return the sum of each cluster's rows [C, K]."""
        order = np.argsort(self.codes, kind="stable")
        starts = np.searchsorted(self.codes[order], np.arange(self.count))
        return np.asarray(np.add.reduceat(values_NK[order], starts, axis=0)) if self.count else values_NK[:0]

    def resamples(self) -> Iterator[FloatArray]:
        """Yield matrices [B, C]: how often each cluster is drawn in each resample."""
        small = self.count * self.resampling.reps <= _CACHED
        pieces = (
            _cached_counts(self.count, self.resampling) if small else _counts(self.count, self.resampling)
        )
        for piece in pieces:
            yield piece.astype(np.float64)

    def draws(self, statistic: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Return ``statistic`` of all resamples, stacked; it takes counts [B, C] and returns [B, …]."""
        if self.count < 2 or not self.resampling.reps:
            return np.zeros((0,))
        return np.concatenate([statistic(counts) for counts in self.resamples()])

    def interval(self, draws: FloatArray) -> tuple[float, float]:
        """Return the percentile interval of draws [B]; NaN when fewer than half of them are defined."""
        known = draws[np.isfinite(draws)]
        if not len(known) or 2 * len(known) < len(draws):
            return math.nan, math.nan
        tail = (1 - self.resampling.level) / 2
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)


def function_of_sums(
    clusters: Clusters, sums_CK: FloatArray, function: Callable[[FloatArray], FloatArray], n: int = 0
) -> list[Estimate]:
    """Return estimates of statistics that are functions of column sums.

    Args:
        clusters: the prompts.
        sums_CK: each prompt's contribution to every sum.
        function: takes sums [B, K] and returns statistics [B, S].
        n: rows behind the estimates.
    """
    value = function(sums_CK.sum(axis=0, keepdims=True))[0]
    draws = clusters.draws(lambda counts: function(counts @ sums_CK))
    out = []
    for place in range(len(value)):
        low, high = clusters.interval(draws[:, place]) if draws.ndim > 1 else (math.nan, math.nan)
        out.append(Estimate(float(value[place]), low, high, n))
    return out


def difference_of_means(values_N: FloatArray, first_N: BoolArray, clusters: Clusters) -> Estimate:
    """Return the mean of the rows in ``first_N`` minus the mean of the others, with an interval.

    Each end is the farther one of Student's (as many degrees of freedom as the smaller group gives) and of
    the bootstrap of t = difference / standard error: with few and very skewed values either alone covers
    too little, and plain percentiles less than both.
    """
    sums_C4 = clusters.sums(
        np.column_stack([values_N * first_N, first_N, values_N * ~first_N, ~first_N]).astype(np.float64)
    )
    squares = np.einsum("ci,cj->cij", sums_C4, sums_C4).reshape(len(sums_C4), 16)
    both = np.concatenate([sums_C4, squares], axis=1)

    def statistics(total: FloatArray) -> FloatArray:
        one, two = divide(total[:, 0], total[:, 1]), divide(total[:, 2], total[:, 3])
        slope = np.stack(
            [
                divide(np.ones(len(total)), total[:, 1]),
                -divide(one, total[:, 1]),
                -divide(np.ones(len(total)), total[:, 3]),
                divide(two, total[:, 3]),
            ],
            axis=1,
        )
        spread = np.einsum("bi,bij,bj->b", slope, total[:, 4:].reshape(-1, 4, 4), slope)
        return np.stack([one - two, np.sqrt(np.maximum(spread, 0.0))], axis=1)

    value, error = statistics(both.sum(axis=0, keepdims=True))[0]
    draws = clusters.draws(lambda counts: statistics(counts @ both))
    low = high = math.nan
    if draws.ndim > 1 and error > 0:
        t = divide(draws[:, 0] - value, np.where(draws[:, 1] > 1e-12 * error, draws[:, 1], 0.0))
        left, right = clusters.interval(t)
        smaller = max(int(min(first_N.sum(), (~first_N).sum())), 2)
        student = student_t(clusters.resampling.level, smaller - 1)
        student *= math.sqrt(smaller / (smaller - 1))
        low, high = float(value - max(right, student) * error), float(value - min(left, -student) * error)
    return Estimate(float(value), low, high, len(values_N))


def student_t(level: float, freedom: int) -> float:
    """Return how many standard errors an interval of ``level`` reaches to each side, by Student's t."""
    from scipy import special  # the store reads metrics on machines without scipy

    return float(special.stdtrit(freedom, (1 + level) / 2))


def student_p(t: float, freedom: int) -> float:
    """Return the two-sided p of ``t`` standard errors, by Student's t."""
    from scipy import special

    return float(2 * special.stdtr(freedom, -abs(t)))


def means(values_NK: ArrayLike, clusters: Clusters, why: str = "no defined value") -> list[Estimate]:
    """Return the mean of every column with its interval; undefined rows are counted per column."""
    values = np.asarray(values_NK, np.float64)
    known = np.isfinite(values)
    width = values.shape[1]
    sums = clusters.sums(np.concatenate([np.where(known, values, 0.0), known], axis=1).astype(np.float64))
    cells = function_of_sums(clusters, sums, lambda total: divide(total[:, :width], total[:, width:]))
    counts = known.sum(axis=0)
    return [
        Estimate(
            cell.value, cell.low, cell.high, int(count), len(values) - int(count), None if count else why
        )
        for cell, count in zip(cells, counts, strict=True)
    ]


def mean(values: ArrayLike, clusters: Clusters, why: str = "no defined value") -> Estimate:
    """Return the mean of one column with its interval."""
    return means(np.asarray(values, np.float64)[:, None], clusters, why)[0]


def median(values: ArrayLike, clusters: Clusters, why: str = "no defined value") -> Estimate:
    """Return the median of one column with its interval (resamples use the weighted median)."""
    column = np.asarray(values, np.float64)
    known = np.isfinite(column)
    missing = int((~known).sum())
    if not known.any():
        return Estimate.undefined(why, missing)
    rows = np.flatnonzero(known)[np.argsort(column[known], kind="stable")]
    ordered = column[rows]

    def weighted(counts_BC: FloatArray) -> FloatArray:
        above = np.cumsum(counts_BC[:, clusters.codes[rows]], axis=1)
        half = above[:, -1:] / 2
        low = np.minimum((above < half).sum(axis=1), len(ordered) - 1)
        high = np.minimum((above <= half).sum(axis=1), len(ordered) - 1)
        return np.where(above[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)

    low, high = clusters.interval(clusters.draws(weighted))
    return Estimate(float(np.median(ordered)), low, high, len(rows), missing)


@dataclass(frozen=True, slots=True)
class BinaryRanks:
    """A score against a yes/no outcome, ready to be resampled: rank correlation and AUROC in one pass.

    Attributes:
        rows: row of each entry, sorted by score [N].
        groups: equal scores as segments of those entries.
        yes: outcome of each entry (0/1) [N].
    """

    rows: IntArray
    groups: Segments
    yes: FloatArray

    @classmethod
    def of(cls, score_N: ArrayLike, yes_N: ArrayLike) -> BinaryRanks:
        """Sort the scores once."""
        score = np.asarray(score_N, np.float64)
        rows = np.argsort(score, kind="stable")
        return cls(rows, Segments.of_changes(score[rows]), np.asarray(yes_N, np.float64)[rows])

    def statistics(self, weights_BN: FloatArray) -> FloatArray:
        """Return (Spearman correlation with the outcome, AUROC) of each weighting of the entries [B, 2]."""
        weight = weights_BN
        yes = weight * self.yes
        if self.groups.count < len(self.rows):
            weight = np.add.reduceat(weight, self.groups.starts, axis=1)
            yes = np.add.reduceat(yes, self.groups.starts, axis=1)
        rank = np.cumsum(weight, axis=1)
        total = rank[:, -1].copy()  # rank changes in place below
        rank -= (weight - 1) / 2
        n_yes = yes.sum(axis=1)
        n_no = total - n_yes
        rank_sum = np.einsum("bg,bg->b", yes, rank)
        rank -= (total[:, None] + 1) / 2
        spread = np.einsum("bg,bg,bg->b", weight, rank, rank) * divide(n_yes * n_no, total)
        covariance = rank_sum - n_yes * (total + 1) / 2
        rho = divide(covariance, np.sqrt(np.maximum(spread, 0.0)))
        auroc = divide(rank_sum - n_yes * (n_yes + 1) / 2, n_yes * n_no)
        return np.stack([rho, auroc], axis=1)

    def estimates(self, clusters: Clusters) -> tuple[Estimate, Estimate]:
        """Return Spearman correlation and AUROC with intervals."""
        n_rows = len(self.rows)
        value = self.statistics(np.ones((1, n_rows)))[0]
        prompt_of_entry = clusters.codes[self.rows]
        draws = clusters.draws(lambda counts: self.statistics(counts[:, prompt_of_entry]))
        cells = []
        for place in range(2):
            low, high = clusters.interval(draws[:, place]) if draws.ndim > 1 else (math.nan, math.nan)
            cells.append(Estimate(float(value[place]), low, high, n_rows))
        return cells[0], cells[1]
