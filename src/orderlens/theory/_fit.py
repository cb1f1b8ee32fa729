"""The likelihood of argmax hits and its surface around the maximum. The public module is ``estimate``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.interpolate import RectBivariateSpline
from scipy.optimize import minimize, minimize_scalar
from scipy.special import chdtri

from orderlens.theory import _inputs
from orderlens.theory._competition import equal_competitors
from orderlens.theory._inputs import Array, ProfileError
from orderlens.theory.step import logit_of_log

_SPACING = 0.025
_WIDEST = 90.0
"""Logits are clipped to ±90, where success is certain or impossible for every relevant σ."""


class Knots:
    """Interpolation of functions of logit q at given logits [N].

    Attributes:
        logit: logits of the knots [G].
        weights: sparse [N, G]; ``weights @ f(logit)`` interpolates f at the data.
    """

    def __init__(self, logit_N: Array) -> None:
        place = np.arcsinh(np.clip(logit_N, -_WIDEST, _WIDEST) / 2.0) / _SPACING
        first = int(np.floor(place.min())) - 1
        count = max(int(np.floor(place.max())) + 3 - first, 4)
        self.logit = 2.0 * np.sinh((first + np.arange(count)) * _SPACING)
        cell = np.floor(place).astype(np.int64)
        x = place - cell
        left = cell - 1 - first
        columns = (left[:, None] + np.arange(4)).ravel()
        rows = np.repeat(np.arange(place.size), 4)
        table = sparse.coo_array((_cubic(x).ravel(), (rows, columns)), shape=(place.size, count))
        self.weights = sparse.csr_array(table)

    def gather(self, amount_N: Array) -> Array:
        """Return the knot weights [G] of reveals with the weights ``amount_N``."""
        return np.asarray(self.weights.T @ amount_N)


def _cubic(x: Array) -> Array:
    """Return weights [N, 4] of the points −1, 0, 1, 2 for cubic interpolation at x in [0, 1)."""
    return np.stack(
        [
            -x * (x - 1.0) * (x - 2.0) / 6.0,
            (x + 1.0) * (x - 1.0) * (x - 2.0) / 2.0,
            -(x + 1.0) * x * (x - 2.0) / 2.0,
            (x + 1.0) * x * (x - 1.0) / 6.0,
        ],
        axis=1,
    )


SIGMA_RANGE = (0.01, 20.0)
LARGEST_K = 1e6
BOUNDS = ((float(np.log(SIGMA_RANGE[0])), float(np.log(SIGMA_RANGE[1]))), (0.0, float(np.log(LARGEST_K))))
"""Search range of (log σ, log k)."""

_LOWEST = -1e6
_SIDE = 11
_FINE = 241

Interval = tuple[float, float]


class HitData:
    """Reveals reduced to knot weights, and their log-likelihood as a function of (log σ, log k).

    Attributes:
        y: log q of the reveals used [N], those with q < 1.
        hit: whether the target was the argmax [N].
        logit: logit q [N].
    """

    def __init__(self, y: ArrayLike, hit: ArrayLike) -> None:
        all_y, all_hit = _inputs.profile(y), np.asarray(hit)
        if all_y.ndim != 1 or all_hit.shape != all_y.shape:
            raise ProfileError(
                f"y and hit must have the same length; got shapes {all_y.shape} and {all_hit.shape}"
            )
        if all_hit.dtype.kind not in "biu" or not np.isin(all_hit, (0, 1)).all():
            raise ProfileError(f"hit must contain booleans (or 0 and 1); got {all_hit.dtype} values")
        self.used = all_y < 0
        self.y, self.hit = all_y[self.used], all_hit[self.used].astype(bool)
        if self.hit.all() or not self.hit.any():
            raise ProfileError(
                f"the fit needs hits and misses; got {int(self.hit.sum())} hits in {self.hit.size}"
            )
        with np.errstate(all="ignore"):
            self.logit = logit_of_log(self.y)[0]
        self.knots = Knots(self.logit)
        sides = (self.hit.astype(np.float64), (~self.hit).astype(np.float64))
        self.weights = np.concatenate([self.knots.gather(side) for side in sides])

    def log_chances(self, log_sigma: float | Array, log_k: float) -> Array:
        """Return log f, then log(1 − f), at the knots [2G]; very low but finite after an underflow.

        Several values of log σ [S] are evaluated in one call: [S, 2G].
        """
        leads = (log_k + self.knots.logit) / np.exp(np.asarray(log_sigma))[..., None]
        found = equal_competitors(leads.ravel(), float(np.exp(log_k)), with_bend=False)
        both = [part.reshape(leads.shape) for part in (found.log_win, found.log_lose)]
        return np.asarray(np.maximum(np.concatenate(both, axis=-1), _LOWEST))

    def log_likelihood(self, log_sigma: float, log_k: float) -> float:
        """Return Σ log f over hits + Σ log(1 − f) over misses."""
        return float(self.weights @ self.log_chances(log_sigma, log_k))

    def fitted(self, log_sigma: float, log_k: float) -> Array:
        """Return f at every reveal [N]."""
        chances = self.log_chances(log_sigma, log_k)[: self.knots.logit.size]
        return np.asarray(np.clip(self.knots.weights @ np.exp(chances), 0.0, 1.0))

    def weights_by_group(self, groups: ArrayLike | None) -> Any:
        """Return sparse knot weights [groups, 2G]; without labels every reveal is a separate group."""
        labels = np.arange(self.used.size) if groups is None else np.asarray(groups)
        if labels.shape != self.used.shape:
            raise ProfileError(f"groups must have one label per reveal; got shape {labels.shape}")
        _, index = np.unique(labels[self.used], return_inverse=True)
        rows = np.arange(index.size)
        blocks = [
            sparse.csr_array((side.astype(np.float64), (index, rows))) @ self.knots.weights
            for side in (self.hit, ~self.hit)
        ]
        return sparse.hstack(blocks, format="csr")


def maximise(data: HitData) -> tuple[float, float]:
    """Return the maximum-likelihood (log σ, log k): a coarse grid, then Nelder–Mead."""
    log_sigmas, log_ks = np.log([0.05, 0.2, 0.5, 1.0, 2.0, 5.0]), np.log([1.0, 4.0, 30.0, 1000.0, 1e5])
    heights = np.stack([data.log_chances(log_sigmas, float(b)) @ data.weights for b in log_ks], axis=1)
    i, j = np.unravel_index(int(heights.argmax()), heights.shape)
    start = np.array([log_sigmas[i], log_ks[j]])
    simplex = start + np.array([[0.05, 0.05], [0.35, 0.05], [0.05, 0.8]])
    options: Any = {"xatol": 1e-5, "fatol": 1e-6, "initial_simplex": simplex}

    def loss(point: Array) -> float:
        return -data.log_likelihood(float(point[0]), float(point[1]))

    found = minimize(loss, simplex[0], method="Nelder-Mead", bounds=BOUNDS, options=options)
    return float(found.x[0]), float(found.x[1])


def maximise_sigma(data: HitData) -> tuple[float, float]:
    """Return the maximum-likelihood log σ for k = 1, and its log-likelihood."""
    found = minimize_scalar(lambda x: -data.log_likelihood(float(x), 0.0), bounds=BOUNDS[0], method="bounded")
    return float(found.x), -float(found.fun)


class Surface:
    """Log-probabilities on a grid of (log σ, log k) around the maximum.

    A log-likelihood is linear in the knot weights, so one table serves the data and all its resamples.
    """

    def __init__(self, data: HitData, best: tuple[float, float], by_group: Any = None) -> None:
        errors = _standard_errors(data, best, by_group)
        self.axes = [
            np.linspace(max(centre - 4.5 * error, low), min(centre + 4.5 * error, high), _SIDE)
            for centre, error, (low, high) in zip(best, errors, BOUNDS, strict=True)
        ]
        self.fine = [np.linspace(axis[0], axis[-1], _FINE) for axis in self.axes]
        columns = [data.log_chances(self.axes[0], float(b)) for b in self.axes[1]]
        self.table = np.stack(columns, axis=1).reshape(_SIDE * _SIDE, -1)
        self.weights, self.best = data.weights, best

    def profile_intervals(self, level: float = 0.95) -> list[Interval]:
        """Return profile-likelihood intervals of σ and k: within χ²/2 of the maximum log-likelihood."""
        surface = self._smooth(self.weights)
        inside = surface >= surface.max() - chdtri(1, 1 - level) / 2
        return [_span(self.fine[axis][inside.any(axis=1 - axis)], self.best[axis]) for axis in (0, 1)]

    def bootstrap(
        self, by_group: Any, count: int, rng: np.random.Generator, level: float = 0.95
    ) -> list[Interval]:
        """Return percentile intervals of σ and k over ``count`` resamples of the groups."""
        size = by_group.shape[0]
        found = np.empty((count, 2))
        for draw in range(count):
            times = rng.multinomial(size, np.full(size, 1.0 / size)).astype(np.float64)
            surface = self._smooth(np.asarray(by_group.T @ times))
            place = np.unravel_index(int(surface.argmax()), surface.shape)
            found[draw] = [self.fine[axis][place[axis]] for axis in (0, 1)]
        low, high = np.exp(np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0))
        return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]

    def _smooth(self, weights: Array) -> Array:
        values = (self.table @ weights).reshape(_SIDE, _SIDE)
        # Clipped far below the maximum: a spline through a steep drop would oscillate.
        heights = np.maximum(values - values.max(), -60.0)
        spline = RectBivariateSpline(self.axes[0], self.axes[1], heights)
        return np.asarray(spline(self.fine[0], self.fine[1]))


def _span(inside: Array, best: float) -> Interval:
    """Return the range of the logs inside, extended to include the estimate, as numbers."""
    return float(np.exp(min(inside[0], best))), float(np.exp(max(inside[-1], best)))


def _standard_errors(data: HitData, best: tuple[float, float], by_group: Any = None) -> Array:
    """Return marginal standard errors of (log σ, log k) from second differences; large for a flat surface.

    Given knot weights by group, the cluster-robust (sandwich) errors are used where they are larger. Reveals
    of one text under many orders are dependent, so resampled texts vary more than independent reveals.
    """
    h = 0.02
    a, b = best[0], max(best[1], h)

    def at(i: int, j: int) -> float:
        return data.log_likelihood(a + i * h, b + j * h)

    middle = at(0, 0)
    cross = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4.0
    information = -np.array(
        [[at(1, 0) + at(-1, 0) - 2 * middle, cross], [cross, at(0, 1) + at(0, -1) - 2 * middle]]
    )
    values = np.linalg.eigvalsh(information / h**2)
    if values[0] <= 0.05:
        return np.array([0.5, 2.0])
    inverse = np.linalg.inv(information / h**2)
    found = np.diag(inverse)
    if by_group is not None:
        slopes = [
            (data.log_chances(a + i * h, b + j * h) - data.log_chances(a - i * h, b - j * h)) / (2 * h)
            for i, j in ((1, 0), (0, 1))
        ]
        scores = by_group @ np.column_stack(slopes)
        found = np.maximum(found, np.diag(inverse @ (scores.T @ scores) @ inverse))
    return np.clip(np.sqrt(found), 1e-4, [0.5, 2.0])
