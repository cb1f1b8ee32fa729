"""Paired comparisons between orders and temperatures, resampled by prompt. Numbers in, estimates out.

Shape letters: C prompts, K columns (an order, or an order at a temperature), B resamples, S statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from orderlens.analysis.frames import side_by_side
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, difference_of_means, mean
from orderlens.metrics.segments import FloatArray, divide

Function = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Paired:
    """A table with one row per prompt and one column per order or condition; rows are resampled."""

    columns: tuple[str, ...]
    values_CK: FloatArray
    clusters: Clusters

    @classmethod
    def of(cls, wide: pd.DataFrame, resampling: Resampling) -> Paired:
        """Build from a frame whose index names the prompts."""
        names = tuple(str(name) for name in wide.columns)
        return cls(names, wide.to_numpy(np.float64), Clusters(list(wide.index), resampling))

    def pick(self, *names: str) -> Paired:
        """Return the table with these columns only, in this sequence."""
        places = [self.columns.index(name) for name in names]
        return replace(self, columns=names, values_CK=self.values_CK[:, places])

    def has(self, *names: str) -> bool:
        """Whether the table has all these columns."""
        return set(names) <= set(self.columns)

    def mean(self, name: str) -> Estimate:
        """Return the mean of one column."""
        if not self.has(name):
            return Estimate.undefined(f"{name} was not run, or is undefined for every text")
        return self.pick(name).of_means(lambda m: m)[0]

    def difference(self, a: str, b: str) -> Estimate:
        """Return the mean of ``a`` minus that of ``b``."""
        if not self.has(a, b):
            return Estimate.undefined(f"{a} and {b} were not both run")
        return self.pick(a, b).of_means(lambda m: stack(m[:, 0] - m[:, 1]))[0]

    def of_means(self, function: Function, why: str = "no value") -> list[Estimate]:
        """Return statistics of the columns' means; ``function`` takes means [B, K] and returns [B, S]."""
        known = np.isfinite(self.values_CK)
        filled = np.where(known, self.values_CK, 0.0)

        def statistic(counts_BC: FloatArray) -> FloatArray:
            return function(divide(counts_BC @ filled, counts_BC @ known.astype(np.float64)))

        return self._estimates(statistic, why)

    def of_medians(self, function: Function, why: str = "no value") -> list[Estimate]:
        """Return statistics of the columns' medians; ``function`` takes medians [B, K] and returns [B, S]."""
        return self._estimates(lambda counts: function(weighted_medians(self.values_CK, counts)), why)

    def _estimates(self, statistic: Function, why: str) -> list[Estimate]:
        n = len(self.values_CK)
        if not n:
            return [Estimate.undefined(why)]
        values = statistic(np.ones((1, n)))[0]
        draws = self.clusters.draws(statistic)
        out = []
        for place, value in enumerate(values):
            low, high = self.clusters.interval(draws[:, place]) if draws.ndim > 1 else (math.nan, math.nan)
            defined = math.isfinite(value)
            out.append(
                Estimate(float(value) if defined else math.nan, low, high, n, why=None if defined else why)
            )
        return out


def mean_difference(differences: pd.Series, resampling: Resampling, why: str) -> Estimate:
    """Return the mean of differences, one per prompt or item (the index), with its interval."""
    known = differences.dropna()
    if not len(known):
        return Estimate.undefined(why)
    return mean(known.to_numpy(), Clusters(list(known.index), resampling))


def paired_difference(first: pd.Series, second: pd.Series, resampling: Resampling, why: str) -> Estimate:
    """Return the mean of ``first`` minus that of ``second`` over the items (the index) that both have.

    For skewed values such as Var; see ``difference_of_means``. ``n`` counts items.
    """
    both = pd.DataFrame({"first": first, "second": second}).dropna()
    if not len(both):
        return Estimate.undefined(why)
    items, is_first = [*both.index, *both.index], np.repeat([True, False], len(both))
    found = difference_of_means(both.to_numpy().T.reshape(-1), is_first, Clusters(items, resampling))
    return replace(found, n=len(both))


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


def stack(*parts: FloatArray) -> FloatArray:
    """Return statistics [B] side by side [B, S]."""
    return np.stack(parts, axis=1)


def rank_rows(x_BK: FloatArray, y_BK: FloatArray) -> FloatArray:
    """Return the Spearman correlation of each row of ``x`` with the same row of ``y`` [B]."""
    u, v = (pd.DataFrame(values).rank(axis=1).to_numpy() for values in (x_BK, y_BK))
    u, v = u - u.mean(axis=1, keepdims=True), v - v.mean(axis=1, keepdims=True)
    scale = np.sqrt((u * u).sum(axis=1) * (v * v).sum(axis=1))
    rho = divide((u * v).sum(axis=1), scale)
    bad = ~(np.isfinite(x_BK).all(axis=1) & np.isfinite(y_BK).all(axis=1))
    return np.where(bad, np.nan, rho)


def wide_of(frame: pd.DataFrame, column: str, keys: Sequence[str] = ("order",)) -> pd.DataFrame:
    """Return ``column`` of a study's traces by ``prompt``; ``keys`` joined with ``@`` name the columns."""
    named = frame.assign(
        what=["@".join(_name(value) for value in row) for row in frame[list(keys)].itertuples(index=False)],
    )
    return side_by_side(named, column, by="what")


def _name(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
