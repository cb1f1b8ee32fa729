"""Least and greatest Var(log q) over all orders, and the front of log P against Var.

Var is the least of mean (y − μ)² over μ, and the best order for a given μ is a corner of the lower hull
of the points (Σ y, Σ y²) of all orders. Corners are searched between two known ones; a part of the hull
is left out where its tangents show that no point in it is better. The greatest Var has no such form and
is bounded for larger spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orderlens.metrics.census import LARGEST_LISTED, ROUNDING, OrderPath, SpanCensus
from orderlens.metrics.census_sets import cheapest_order, path_sums
from orderlens.metrics.segments import FloatArray

MAX_FRONT = 64
"""Maximum number of corners of the front that are searched."""
BOUND_STEPS = 24
"""Values of μ that are tried for the bound on the greatest Var."""


@dataclass(frozen=True, slots=True)
class Corner:
    """A corner of the lower hull of (Σ y, Σ y²): the path of ``size`` reveals that is best for ``mu``."""

    mu: float
    total: float
    square: float
    size: int
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, mu: float, log_q: FloatArray, order: Sequence[int]) -> Corner:
        """Return the corner of a path."""
        return cls(mu, float(log_q.sum()), float(log_q @ log_q), len(log_q), tuple(order))

    @property
    def var(self) -> float:
        """Var of log q along the path."""
        return max(self.square / self.size - (self.total / self.size) ** 2, 0.0)


def least_variance(census: SpanCensus) -> OrderPath:
    """Return the order with the least Var of log q."""
    low, high = (path.log_p / census.size for path in (census.worst, census.best))
    return census.path(least_corner(lambda mu: _corner(census, mu), low, high).order)


def least_corner(corner: Callable[[float], Corner], low: float, high: float) -> Corner:
    """Return the path of least Var.

    Args:
        corner: from μ to the path with the least sum of (y − μ)².
        low: the least mean log q of any path.
        high: the largest.
    """
    if high - low <= ROUNDING:
        return corner(low)
    found = [corner(low), corner(high)]

    def is_worse(left: Corner, right: Corner) -> bool:
        return _tangent_bound(left, right) >= min(item.var for item in found)

    _search(corner, found, is_worse)
    return min(found, key=lambda item: item.var)


def greatest_variance(census: SpanCensus) -> tuple[float, float]:
    """Return a Var that some order reaches and one that no order exceeds (equal for small spans).

    For every μ, Var is at most the largest mean (y − μ)² of any order; the bound is the minimum over μ.
    """
    flat, layers, size = census.flat, census.layers, census.size
    if size <= LARGEST_LISTED:
        total, square = (path_sums(value, layers, size)[0] for value in (flat, flat**2))
        var = max(float((square / size - (total / size) ** 2).max()), 0.0)
        return var, var
    low, high = (path.log_p / size for path in (census.worst, census.best))
    reached, bound = 0.0, math.inf
    for _ in range(BOUND_STEPS):
        middle = (low + high) / 2
        path = census.path(cheapest_order(-((flat - middle) ** 2), layers))
        mean = path.log_p / size
        bound = min(bound, path.var + (mean - middle) ** 2)
        reached = max(reached, path.var)
        low, high = (low, middle) if mean > middle else (middle, high)
    return reached, max(bound, reached)


def front(census: SpanCensus) -> list[OrderPath]:
    """Return orders from the least Var to the largest log P, of which each is best for a weight of the two.

    Orders that are best for no weight are left out, also where no other order is better in both.
    """
    start, square = least_variance(census), census.flat**2
    weight = ROUNDING / (1 + census.size * square[np.isfinite(square)].max())
    # Of several likeliest orders the one of least Σ y²: the corner of the hull.
    likeliest = cheapest_order(weight * square - census.flat, census.layers)
    end = Corner.of(math.inf, census.log_q(likeliest), likeliest)
    corners = [_corner(census, start.log_p / census.size), end]
    _search(lambda mu: _corner(census, mu), corners, lambda *_: len(corners) >= MAX_FRONT)
    paths = [start, *(census.path(corner.order) for corner in corners)]
    found: list[OrderPath] = []
    for path in sorted(paths, key=lambda path: (round(path.var, 9), -path.log_p)):
        if found and path.log_p <= found[-1].log_p + ROUNDING:
            continue
        while len(found) > 1 and _is_above_line(found[-2], found[-1], path):
            found.pop()
        found.append(path)
    return found


def _is_above_line(left: OrderPath, middle: OrderPath, right: OrderPath) -> bool:
    """Whether the Var of the middle one exceeds the line between the others."""
    rise = (right.var - left.var) * (middle.log_p - left.log_p)
    return (middle.var - left.var) * (right.log_p - left.log_p) > rise


def _corner(census: SpanCensus, mu: float) -> Corner:
    order = cheapest_order((census.flat - mu) ** 2, census.layers)
    return Corner.of(mu, census.log_q(order), order)


def _search(
    corner: Callable[[float], Corner], found: list[Corner], skip: Callable[[Corner, Corner], bool]
) -> None:
    """Add the corners between the two in ``found`` to it, except in parts that ``skip`` leaves out."""
    parts = [(found[0], found[1])]
    while parts:
        left, right = parts.pop()
        if right.total - left.total <= ROUNDING or skip(left, right):
            continue
        middle = corner(
            (right.square - left.square) / (2 * (right.total - left.total))
        )  # equally good for both
        line = left.square + 2 * middle.mu * (middle.total - left.total)
        is_below = middle.square < line - 1e-12 * max(1.0, abs(line))
        if is_below and left.total < middle.total < right.total:
            found.append(middle)
            parts += [(left, middle), (middle, right)]


def _tangent_bound(left: Corner, right: Corner) -> float:
    """Return a Var that no path between two corners falls below: that of the point where tangents meet."""
    slope = 2 * (right.mu - left.mu)
    if slope <= 0:
        return math.inf
    offset = (left.square - 2 * left.mu * left.total) - (right.square - 2 * right.mu * right.total)
    total = offset / slope
    square = left.square + 2 * left.mu * (total - left.total)
    return min((square - total**2 / left.size) / left.size, left.var, right.var)
