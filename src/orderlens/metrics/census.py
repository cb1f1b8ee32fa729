"""All orders of a span, exactly: best, worst, mean and distribution of log P, and the spread of log q.

For a fixed text, log p(x_i | R) depends on the set R of revealed positions, not on the order in which
they were revealed. A table of all 2^B states of a span of B positions therefore holds all B! orders.
Every quantity here is a dynamic programme over sets by size (``census_sets``), vectorised over the sets
of one size. Above ``LARGEST_EXACT`` positions, the distribution is that of ``DRAWN`` random orders.

A set is an integer whose bit i says that offset i is revealed. Orders are lists of offsets. All values
are in nats and are sums over the span, unless they are called mean or Var (ddof 0). Does not depend on
models, files or tables.

Shape letters: B positions of the span, S sets of one size, K members of a set, X queried values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.census_sets import (
    cheapest_order,
    count_below,
    count_bits,
    drawn_sums,
    log_mean_exp,
    path_sums,
    sets_by_size,
    values_by_set,
)
from orderlens.metrics.segments import FloatArray

LARGEST_SPAN = 20
"""Positions of a span: 2^20 states with 20 values each fill 84 MB in float32."""
LARGEST_EXACT = 12
"""Positions up to which the rank of an order is counted exactly, by joining all halves of orders."""
LARGEST_LISTED = 8
"""Positions up to which all orders are listed (40,320)."""
DRAWN = 1 << 17
"""Random orders that stand for all orders of larger spans; their shares have a standard error of 0.0014."""
ROUNDING = 1e-9
"""Nats up to which two sums over a span count as equal."""


@dataclass(frozen=True, slots=True)
class OrderPath:
    """One order of the span: offsets in the order of reveal, its log P and its Var of log q."""

    order: tuple[int, ...]
    log_p: float
    var: float


class Shares(NamedTuple):
    """Share of the variance of log P over random orders that one choice explains; NaN where it is 0.

    Attributes:
        first_choice: which offset comes first.
        position: the step at which one offset is revealed, for the offset that explains most.
        pair: which of two offsets comes first, for the pair that explains most.
    """

    first_choice: float
    position: float
    pair: float


class SpanCensus:
    """All orders of one span.

    Args:
        log_p: ``[2^B, B]``, row R and column i hold log p(x_i | R); entries with i in R are ignored.
    """

    def __init__(self, log_p: ArrayLike) -> None:
        table = np.asarray(log_p, np.float64)
        self.size = _checked_size(table)
        self.flat: FloatArray = np.ascontiguousarray(table).ravel()
        self.layers = sets_by_size(self.size)
        self._full = len(table) - 1

    @property
    def n_orders(self) -> int:
        """Number of orders, B!."""
        return math.factorial(self.size)

    @cached_property
    def best(self) -> OrderPath:
        """The order with the largest log P."""
        return self.path(cheapest_order(-self.flat, self.layers))

    @cached_property
    def worst(self) -> OrderPath:
        """The order with the smallest log P."""
        return self.path(cheapest_order(self.flat, self.layers))

    @property
    def varies(self) -> bool:
        """Whether log P depends on the order by more than rounding."""
        return self.best.log_p - self.worst.log_p > ROUNDING

    @cached_property
    def mean(self) -> float:
        """The mean of log P over all orders: the any-order bound of this text."""
        return float(self._prefix_mean[self._full])

    @cached_property
    def sd(self) -> float:
        """The standard deviation of log P over all orders."""
        mean, var = self._prefix_mean, np.zeros(self._full + 1)
        for layer in self.layers:  # variance within the choices of the last member, and between them
            between_SK = mean[layer.before_SK] + self.flat[layer.edge_SK] - mean[layer.set_S][:, None]
            var[layer.set_S] = (var[layer.before_SK] + between_SK**2).mean(axis=1)
        return math.sqrt(float(var[self._full]))

    @cached_property
    def mixture(self) -> float:
        """The log of the mean over all orders of P: the likelihood of the uniform mixture of orders."""
        return float(values_by_set(self.flat, self.layers, log_mean_exp)[self._full])

    def best_sum(self, gain: Callable[[FloatArray], FloatArray]) -> tuple[float, OrderPath]:
        """Return the largest sum of ``gain(log p)`` over the reveals of an order, and that order."""
        order = cheapest_order(-gain(self.flat), self.layers)
        return float(gain(self.log_q(order)).sum()), self.path(order)

    def log_q(self, order: Sequence[int]) -> FloatArray:
        """Return log q of each reveal of an order [B]."""
        if sorted(order) != list(range(self.size)):
            raise UserInputError(f"{list(order)} is not an order of the offsets 0 to {self.size - 1}")
        bit_B = 1 << np.asarray(order)
        revealed_B = np.cumsum(bit_B) - bit_B
        values: FloatArray = self.flat[revealed_B * self.size + np.asarray(order)]
        return values

    def path(self, order: Sequence[int]) -> OrderPath:
        """Return log P and Var of an order."""
        log_q = self.log_q(order)
        return OrderPath(tuple(int(offset) for offset in order), float(log_q.sum()), float(log_q.var()))

    def after(self, revealed: Sequence[int], chosen: Sequence[int]) -> SpanCensus:
        """Return all orders of the offsets ``chosen`` once the offsets ``revealed`` are."""
        offsets = np.asarray(chosen)
        bits = (np.arange(2 ** len(offsets))[:, None] >> np.arange(len(offsets))) & 1
        rows = sum(1 << offset for offset in revealed) + (bits << offsets).sum(axis=1)
        return SpanCensus(self.flat.reshape(-1, self.size)[rows][:, offsets])

    @property
    def joint(self) -> float:
        """The sum of log p if all positions are revealed in one pass, as if they were independent."""
        return float(self.flat[: self.size].sum())

    def share_below(self, values: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the share of all orders with a lower log P than each value [X], and its standard error [X].

        The error is 0 for spans up to ``LARGEST_EXACT``. Differences up to ``ROUNDING`` count as none.
        """
        values_X = np.atleast_1d(np.asarray(values, np.float64)) - ROUNDING
        none_X = np.zeros(len(values_X))
        if not self.varies:
            return np.where(values_X > self.worst.log_p, 1.0, 0.0), none_X
        if self.size <= LARGEST_EXACT:
            return count_below(self.flat, self.layers, values_X) / self.n_orders, none_X
        sums = _sorted_sums(self)
        share_X = np.searchsorted(sums, values_X) / len(sums)
        return share_X, np.sqrt(np.maximum(share_X * (1 - share_X), 1 / len(sums)) / len(sums))

    def distribution(self, bins: int = 64) -> tuple[FloatArray, FloatArray]:
        """Return the distribution of log P over all orders: edges [n + 1], share of orders per bin [n]."""
        edges = np.linspace(self.worst.log_p, self.best.log_p, bins + 1)
        if not self.varies:
            return edges[[0, -1]], np.ones(1)
        below, _ = self.share_below(edges[1:-1])
        return edges, np.diff(below, prepend=0.0, append=1.0)

    def sampled_range(self, count: int) -> float:
        """Return the expected largest minus smallest log P of ``count`` orders drawn at random (nats)."""
        sums = _sorted_sums(self)
        below = np.arange(1, len(sums)) / len(sums)
        return float(np.diff(sums) @ (1 - below**count - (1 - below) ** count))

    def extrapolated_range(self, count: int) -> float:
        """Return the range of all orders that ``sampled_range(count)`` implies for a normal log P (nats)."""
        return self.sampled_range(count) * normal_range(self.n_orders) / normal_range(count)

    def circulations(self, positions: Sequence[int] | None = None) -> tuple[FloatArray, FloatArray]:
        """Return number and mean |Γ| of squares: a row per distance (from 1), a column per number revealed.

        Γ = y(R, i) + y(R∪i, j) − y(R, j) − y(R∪j, i), for every R and pair i < j outside it. All are 0 if and
        only if the conditionals of this text are coherent. The mean is NaN where there is no square.

        Args:
            positions: where the offsets are in the text, increasing; adjacent by default.
        """
        place = np.arange(self.size) if positions is None else np.asarray(positions)
        shape = int(place[-1] - place[0]), max(self.size - 1, 0)
        count, total = np.zeros(shape), np.zeros(shape)
        revealed = count_bits(np.arange(2 ** max(self.size - 2, 0)))
        for i, j, gamma in self._squares():
            row = place[j] - place[i] - 1
            count[row] += np.bincount(revealed, minlength=self.size - 1)
            total[row] += np.bincount(revealed, np.abs(gamma).ravel(), minlength=self.size - 1)
        with np.errstate(invalid="ignore"):
            return count, total / count

    @property
    def circulation(self) -> float:
        """Mean |Γ| over all squares; NaN for a span of one position."""
        count, mean = self.circulations()
        return float(np.nansum(mean * count) / count.sum()) if count.any() else math.nan

    def _squares(self) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield i < j and Γ of the pair by what else is revealed, in the order of those sets."""
        by_offset = np.ascontiguousarray(self.flat.reshape(-1, self.size).T)
        for i in range(self.size):
            for j in range(i + 1, self.size):
                shape = -1, 2, 2 ** (j - i - 1), 2, 2**i
                y_i, y_j = by_offset[i].reshape(shape), by_offset[j].reshape(shape)
                yield i, j, y_i[:, 0, :, 0] + y_j[:, 0, :, 1] - y_j[:, 0, :, 0] - y_i[:, 1, :, 0]

    def shares(self) -> Shares:
        """Return how much of the variance of log P over random orders single choices explain."""
        if not self.varies:
            return Shares(math.nan, math.nan, math.nan)
        given, total = self._mean_given_edge(), self.sd**2
        position = self._means_by_step(given).var(axis=1).max()
        pair = max((mean - self.mean) ** 2 for mean in self._means_by_pair(given))
        return Shares(float(np.var(given[:, 0])) / total, float(position) / total, pair / total)

    @cached_property
    def _prefix_mean(self) -> FloatArray:
        """Mean over the orders of each set of their log P [2^B]."""
        return values_by_set(self.flat, self.layers, lambda sum_SK: sum_SK.mean(axis=1))

    @cached_property
    def _suffix_mean(self) -> FloatArray:
        """Mean over the orders of what is masked of the log P that remains [2^B]."""
        value = np.zeros(self._full + 1)
        for layer in self.layers:  # sets of masked positions, smallest first
            revealed_S1 = self._full ^ layer.set_S[:, None]
            y_SK = self.flat[revealed_S1 * self.size + layer.member_SK]
            value[revealed_S1[:, 0]] = (y_SK + value[self._full ^ layer.before_SK]).mean(axis=1)
        return value

    def _mean_given_edge(self) -> FloatArray:
        """Return the mean log P of the orders that reveal i right after R [B, 2^B]; NaN for i in R."""
        by_offset = self.flat.reshape(-1, self.size).T
        given = np.full(by_offset.shape, np.nan)
        for i in range(self.size):
            shape = -1, 2, 2**i
            before = self._prefix_mean.reshape(shape)[:, 0] + by_offset[i].reshape(shape)[:, 0]
            given[i].reshape(shape)[:, 0] = before + self._suffix_mean.reshape(shape)[:, 1]
        return given

    def _means_by_step(self, given: FloatArray) -> FloatArray:
        """Return for every offset the mean log P by the step at which it is revealed [B, B]."""
        others = count_bits(np.arange(2 ** (self.size - 1)))  # what else is revealed
        sizes = np.bincount(others)
        sums = [np.bincount(others, row.reshape(-1, 2, 2**i)[:, 0].ravel()) for i, row in enumerate(given)]
        return np.array(sums) / sizes

    def _means_by_pair(self, given: FloatArray) -> Iterator[float]:
        """Yield for every pair i < j the mean log P of the orders that reveal i before j."""
        others = count_bits(np.arange(2 ** (self.size - 2)))
        # Orders with the given set right before j, over those with i before j (half of all).
        each = np.array([2 / (self.size * math.comb(self.size - 1, k + 1)) for k in range(self.size - 1)])
        weight = each[others]
        for i in range(self.size):
            for j in range(i + 1, self.size):
                shape = -1, 2, 2 ** (j - i - 1), 2, 2**i
                yield float(weight @ given[j].reshape(shape)[:, 0, :, 1].ravel())


@lru_cache(maxsize=1)
def _sorted_sums(census: SpanCensus) -> FloatArray:
    """Return log P of all orders of a small span, of ``DRAWN`` random ones of a larger span; kept for one."""
    if census.size <= LARGEST_LISTED:
        return np.sort(path_sums(census.flat, census.layers, census.size)[0])
    rng = keyed_generator(0, "census", census.size)
    return np.sort(drawn_sums(census.flat, census.size, DRAWN, rng))


@cache
def normal_range(count: int) -> float:
    """Return the expected largest minus smallest of ``count`` standard normal numbers."""
    from scipy.special import log_ndtr  # imported here: the viewer must work without scipy

    x = np.arange(0.0025, 12, 0.005)
    within = 1 - np.exp(count * log_ndtr(x)) - np.exp(count * log_ndtr(-x))
    return float(2 * 0.005 * within.sum())


def _checked_size(table: NDArray[np.float64]) -> int:
    """Return B of a table ``[2^B, B]`` whose needed entries are finite."""
    if table.ndim != 2 or not 1 <= table.shape[1] <= LARGEST_SPAN or len(table) != 2 ** table.shape[1]:
        raise UserInputError(
            f"a census needs a table [2^B, B] with B from 1 to {LARGEST_SPAN}, not {table.shape}"
        )
    size = int(table.shape[1])
    masked = (np.arange(len(table))[:, None] >> np.arange(size)) & 1 == 0
    if not np.isfinite(table[masked]).all():
        raise UserInputError(
            "a census needs a finite log-probability for every masked position of every state"
        )
    return size
