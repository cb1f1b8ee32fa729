"""``Estimate``: a number with its interval and counts, or the reason why it is undefined.

Intervals come from a seeded bootstrap that resamples prompts, not rows: all orders and seeds of a prompt stay
together. It works on matrices of resampling counts, and all statistics of the same prompts use the same
resamples. Does not depend on the meaning of the numbers.

Shape letters: N rows, C clusters (prompts), B resamples of a piece, K columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, divide

_PIECE = 200_000
"""Resampling counts per piece; few enough for the processor's cache."""

_CACHED = 32_000_000
"""Maximum number of cached resampling counts (two bytes each)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One cell of a table.

    Attributes:
        value: the estimate; NaN if undefined.
        low: lower end of the interval; NaN without an interval.
        high: upper end.
        n: number of rows used.
        n_undefined: number of rows without a value, which were ignored.
        why: reason for a NaN ``value``, or a caution; None otherwise.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    n_undefined: int = 0
    why: str | None = None

    @classmethod
    def undefined(cls, why: str, n_undefined: int = 0) -> Estimate:
        """Return a cell without a value, with the reason."""
        return cls(math.nan, n_undefined=n_undefined, why=why)

    @property
    def is_defined(self) -> bool:
        """Whether there is a number."""
        return not math.isnan(self.value)

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)


MAX_REPS = 1_000_000
"""More resamples take days without a visible change."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """Settings of the bootstrap: number of resamples (0: no intervals), seed, and coverage."""

    reps: int = 1000
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.reps <= MAX_REPS:
            raise UserInputError(
                f"the number of bootstrap resamples is {self.reps}; it must be between 0 and {MAX_REPS:,}"
            )
        if not 0 < self.level < 1:
            raise UserInputError(f"the confidence level is {self.level}; it must be between 0 and 1")


def _counts(n_clusters: int, resampling: Resampling) -> Iterator[NDArray[np.uint16]]:
    """Yield pieces [B, C] of the number of times each cluster is drawn."""
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
    """Return the counts from a cache: all cells of a table resample the same prompts."""
    return tuple(_counts(n_clusters, resampling))


class Clusters:
    """The prompts of a set of rows, and their resamples."""

    def __init__(self, ids: Iterable[Hashable], resampling: Resampling) -> None:
        """Number the prompts.

        Args:
            ids: the prompt of each row [N].
            resampling: how to resample them.
        """
        import pandas as pd  # imported here: the store must work without pandas

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
        """Yield matrices [B, C]: the number of times each cluster is drawn in each resample."""
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
        """Return the percentile interval of draws [B]; NaN if fewer than half of them are defined."""
        known = draws[np.isfinite(draws)]
        if not len(known) or 2 * len(known) < len(draws):
            return math.nan, math.nan
        tail = (1 - self.resampling.level) / 2
        low, high = np.quantile(known, [tail, 1 - tail])
        return float(low), float(high)

    def estimates(
        self,
        values: FloatArray,
        statistic: Callable[[FloatArray], FloatArray],
        n: int,
        n_undefined: int = 0,
        why: str | None = None,
    ) -> list[Estimate]:
        """Return ``values`` [S] with intervals; ``statistic`` takes counts [B, C] and returns [B, S].

        ``n`` rows were used, ``n_undefined`` were not; ``why`` is the reason of values that are not finite.
        """
        draws, out = self.draws(statistic), []
        for place, value in enumerate(values.tolist()):
            low, high = self.interval(draws[:, place]) if draws.ndim > 1 else (math.nan, math.nan)
            out.append(Estimate(value, low, high, n, n_undefined, None if math.isfinite(value) else why))
        return out


def function_of_sums(
    clusters: Clusters, sums_CK: FloatArray, function: Callable[[FloatArray], FloatArray], n: int = 0
) -> list[Estimate]:
    """Return estimates of statistics that are functions of column sums.

    Args:
        clusters: the prompts.
        sums_CK: each prompt's contribution to every sum.
        function: takes sums [B, K] and returns statistics [B, S].
        n: number of rows used.
    """
    value = function(sums_CK.sum(axis=0, keepdims=True))[0]
    return clusters.estimates(value, lambda counts: function(counts @ sums_CK), n)


def ratios_of_sums(clusters: Clusters, sums_CK: FloatArray, n: int = 0) -> list[Estimate]:
    """Return the sum of every column but the last, divided by the sum of the last; see above."""
    return function_of_sums(clusters, sums_CK, lambda total: divide(total[:, :-1], total[:, -1:]), n)


def difference_of_means(values_N: FloatArray, first_N: BoolArray, clusters: Clusters) -> Estimate:
    """Return the mean of the rows in ``first_N`` minus that of the others, for skewed values.

    Each mean has its own interval: the bootstrap of t = (mean − estimate) / standard error. A drawn
    prompt is multiplied by log-normal noise of mean 1, because sixty values of a skewed quantity such as Var
    rarely include its tail. The distances to the ends are combined as standard errors are, with the
    correlation of the two means (the method of variance estimates recovery, MOVER). Groups of few prompts
    have no interval; see ``two_groups``.
    """
    one, two = (_SkewedMean.of(values_N, rows_N, clusters) for rows_N in (first_N, ~first_N))
    draws = clusters.draws(_noisy(clusters, lambda *drawn: np.stack([one.t(*drawn), two.t(*drawn)], axis=1)))
    low = high = math.nan
    if draws.ndim > 1 and one.error + two.error > 0:
        (low_one, high_one), (low_two, high_two) = (
            part.distances(clusters.interval(draws[:, place])) for place, part in enumerate((one, two))
        )
        shared = 2 * float(one.influence_C @ two.influence_C)
        ratio = shared / (one.error * two.error) if one.error * two.error > 0 else 0.0
        low = math.sqrt(max(low_one**2 + high_two**2 - ratio * low_one * high_two, 0.0))
        high = math.sqrt(max(high_one**2 + low_two**2 - ratio * high_one * low_two, 0.0))
    value = one.value - two.value
    return two_groups(Estimate(value, value - low, value + high, len(values_N)), first_N, clusters)


def _noisy(
    clusters: Clusters, statistic: Callable[[FloatArray, NDArray[np.float32]], FloatArray]
) -> Callable[[FloatArray], FloatArray]:
    """Return ``statistic`` as a function of counts [B, C] alone; its noise has standard normal entries."""
    rng = keyed_generator(clusters.resampling.seed, "bootstrap noise", clusters.count)
    return lambda counts_BC: statistic(counts_BC, rng.standard_normal(counts_BC.shape, np.float32))


FEWEST = 8
"""Prompts that each of two groups needs for an interval, by simulation of log-normal values at level 0.95.

With 4 in one group, intervals of an AUROC, a rank correlation or log-odds clustered by prompt cover 0.84 to
0.87, with 8 they cover 0.90 to 0.93. Those of a difference of skewed means always cover; with 4 their median
is 15 to 25 times as wide as the error warrants and the widest have no bound, with 8 it is twice as wide.
"""


def two_groups(estimate: Estimate, first_N: BoolArray, clusters: Clusters) -> Estimate:
    """Return the estimate, without its interval if ``first_N`` or the other rows are too few prompts."""
    why = too_few(first_N, clusters.codes)
    return replace(estimate, low=math.nan, high=math.nan, why=estimate.why or why) if why else estimate


def too_few(first_N: BoolArray, prompts_N: AnyArray) -> str | None:
    """Return why two groups of rows have no interval, if one has few prompts."""
    if min(len(np.unique(prompts_N[rows_N])) for rows_N in (first_N, ~first_N)) >= FEWEST:
        return None
    return f"no interval: a group has fewer than {FEWEST} prompts"


@dataclass(frozen=True, slots=True)
class _SkewedMean:
    """The mean over the rows of one group, prepared for the smoothed bootstrap of t.

    Attributes:
        value: the mean; NaN for an empty group.
        error: its standard error, clustered by prompt; NaN for an empty group.
        width: standard deviation of the noise of a drawn prompt, on the log scale.
        influence_C: each prompt's contribution to the error of the mean.
        sums_C: sum of each prompt's values.
        counts_C: number of each prompt's rows.
    """

    value: float
    error: float
    width: float
    influence_C: FloatArray
    sums_C: FloatArray
    counts_C: FloatArray

    @classmethod
    def of(cls, values_N: FloatArray, rows_N: BoolArray, clusters: Clusters) -> _SkewedMean:
        both = clusters.sums(np.column_stack([np.where(rows_N, values_N, 0.0), rows_N]).astype(np.float64))
        sums, counts = both[:, 0], both[:, 1]
        if not counts.any():
            return cls(math.nan, math.nan, 0.0, sums, sums, counts)
        value = float(sums.sum() / counts.sum())
        influence = (sums - value * counts) / counts.sum()
        used = sums != 0
        spread = float(np.log(np.abs(sums[used] / counts[used])).std()) if used.any() else 0.0
        n = np.count_nonzero(counts)
        error = math.sqrt(float(influence @ influence))
        # The noise is as wide as the kernels of density estimates.
        return cls(value, error, spread * float(n) ** -0.2, influence, sums, counts)

    def t(self, counts_BC: FloatArray, noise_BC: NDArray[np.float32]) -> FloatArray:
        """Return (mean − value) / standard error of each resample [B]; NaN where the error is 0."""
        factor = np.exp(self.width * noise_BC - self.width**2 / 2)
        noisy = counts_BC * factor
        n = counts_BC @ self.counts_C
        mean = divide(noisy @ self.sums_C, n)
        squares = (
            (noisy * factor) @ self.sums_C**2
            - 2 * mean * (noisy @ (self.sums_C * self.counts_C))
            + mean**2 * (counts_BC @ self.counts_C**2)
        )
        error = divide(np.sqrt(np.maximum(squares, 0.0)), n)
        return divide(mean - self.value, np.where(error > 1e-9 * self.error, error, 0.0))

    def distances(self, t: tuple[float, float]) -> tuple[float, float]:
        """Return the distances from the mean down and up to the ends, given quantiles of t; 0 if no error."""
        return (t[1] * self.error, -t[0] * self.error) if self.error > 0 else (0.0, 0.0)


def least_mean(values_NK: FloatArray, level: float) -> Estimate:
    """Return the least of the columns' means, with an interval that allows for the choice of the column.

    Student's t per column, NaN ignored; no interval if a column has one value. The lower end is the least
    lower end. The upper end is the least upper end, each with an error of (1 − level) / K. Where columns
    tie, the least mean of a sample is too low, and only the upper end errs; where one column is clearly the
    least, that end errs less.
    """
    n = np.isfinite(values_NK).sum(axis=0)
    middle = np.nanmean(values_NK, axis=0)
    value, count, freedom = float(middle.min()), int(n[middle.argmin()]), int(n.min()) - 1
    if freedom < 1:
        return Estimate(value, n=count)
    error = np.nanstd(values_NK, axis=0) / np.sqrt(n - 1)
    choice = 1 - 2 * (1 - level) / max(values_NK.shape[1], 2)
    low = float((middle - student_t(level, freedom) * error).min())
    high = float((middle + student_t(choice, freedom) * error).min())
    return Estimate(value, low, high, count)


def student_t(level: float, freedom: int) -> float:
    """Return the half-width of an interval of coverage ``level`` in standard errors, by Student's t."""
    from scipy import special  # imported here: the store must work without scipy

    return float(special.stdtrit(freedom, (1 + level) / 2))


def student_p(t: float, freedom: int) -> float:
    """Return the two-sided p-value of ``t`` standard errors, by Student's t."""
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
    values = np.array([np.median(column[known])])

    def weighted(counts_BC: FloatArray) -> FloatArray:
        return weighted_medians(column[:, None], counts_BC[:, clusters.codes])

    return clusters.estimates(values, weighted, int(known.sum()), missing)[0]


def weighted_medians(values_CK: FloatArray, counts_BC: FloatArray) -> FloatArray:
    """Return the median of every column under every resample [B, K]; undefined entries do not count."""
    out = np.full((len(counts_BC), values_CK.shape[1]), np.nan)
    for column in range(values_CK.shape[1]):
        rows = np.flatnonzero(np.isfinite(values_CK[:, column]))
        if not len(rows):
            continue
        rows = rows[np.argsort(values_CK[rows, column], kind="stable")]
        ordered = values_CK[rows, column]
        above = np.cumsum(counts_BC[:, rows], axis=1)
        half = above[:, -1:] / 2
        low = np.minimum((above < half).sum(axis=1), len(rows) - 1)
        high = np.minimum((above <= half).sum(axis=1), len(rows) - 1)
        out[:, column] = np.where(above[:, -1] > 0, (ordered[low] + ordered[high]) / 2, np.nan)
    return out
