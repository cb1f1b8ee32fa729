"""Several competitors: k equal ones, or any given masses (a Zipf law, a softmax row).

f_k(q) = E[Φ(u + t)^k] with u = log(kq/(1 − q))/σ and t ~ N(0, 1); k = 1 is the closed form of ``step``. k may
be a fraction, which interpolates smoothly between whole numbers. Does not depend on the source of the masses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from orderlens.theory import _inputs
from orderlens.theory import step as single
from orderlens.theory._competition import Competition, equal_competitors, unequal_log_win
from orderlens.theory._inputs import Array, CompetitorError, Values
from orderlens.theory.step import logit_of_log, logit_of_probability

_SUM_TOLERANCE = 1e-6
"""Relative tolerance of the sum of masses against 1 − q; float32 softmax rows need it."""


def success_k(q: ArrayLike, k: ArrayLike, sigma: ArrayLike) -> Values:
    """f_k(q): the probability to win against k equal competitors of mass (1 − q)/k each.

    Args:
        q: probability of the target, strictly between 0 and 1.
        k: number of competitors, at least 1; broadcasts with the others.
        sigma: noise scale on each logit, positive.
    """
    checked = _inputs.probabilities(q)
    return _per_k(checked, k, sigma, logit_of_probability, single.success, lambda c: np.exp(c.log_win))


def log_success_k(y: ArrayLike, k: ArrayLike, sigma: ArrayLike) -> Values:
    """g_k(y) = log f_k(e^y), with y = log q in nats."""
    checked = _inputs.log_probabilities(y)
    return _per_k(checked, k, sigma, _logit, single.log_success, lambda c: c.log_win)


def log_failure_k(y: ArrayLike, k: ArrayLike, sigma: ArrayLike) -> Values:
    """Return log(1 − f_k(e^y))."""
    checked = _inputs.log_probabilities(y)
    return _per_k(checked, k, sigma, _logit, single.log_failure, lambda c: c.log_lose)


def d1_k(y: ArrayLike, k: float, sigma: float) -> Values:
    """g_k'(y) for one k and one σ; y of any shape."""
    checked, noise = _inputs.log_probabilities(y), _inputs.single_noise(sigma)
    if _inputs.competitors(k) == 1:
        return single.d1(checked, noise)
    competition, log_failure = _competition_of(checked, k, noise)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(competition.log_slope - log_failure).reshape(checked.shape)[()] / noise


def d2_k(y: ArrayLike, k: float, sigma: float) -> Values:
    """g_k''(y) for one k and one σ: G'·(σq − bend)/(σ(1 − q))² with bend = −G''/G' (see ``_competition``)."""
    checked, noise = _inputs.log_probabilities(y), _inputs.single_noise(sigma)
    if _inputs.competitors(k) == 1:
        return single.d2(checked, noise)
    competition, log_failure = _competition_of(checked, k, noise)
    with np.errstate(over="ignore", under="ignore"):
        bracket = noise * np.exp(checked.reshape(-1)) - competition.bend
        scale = np.exp(competition.log_slope - 2.0 * log_failure)
        return (scale * bracket).reshape(checked.shape)[()] / noise**2


def success_masses(q: ArrayLike, masses: ArrayLike, sigma: float) -> Values:
    """Return the probability to win against competitors of the given masses.

    Args:
        q: probability of the target, any shape.
        masses: masses of the competitors on the last axis, not negative, with sum 1 − q; leading axes
            broadcast with ``q``. Equal masses are grouped, so long flat tails are cheap.
        sigma: noise scale, one number.
    """
    return np.exp(log_success_masses(q, masses, sigma))


def log_success_masses(q: ArrayLike, masses: ArrayLike, sigma: float) -> Values:
    """Return the log of :func:`success_masses`."""
    checked, noise = _inputs.probabilities(q), _inputs.single_noise(sigma)
    rows = _inputs.real_array(masses, "masses", CompetitorError)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise CompetitorError(f"masses need at least one competitor on the last axis; got shape {rows.shape}")
    shape = _inputs.common_shape(checked, rows[..., 0])
    targets = np.broadcast_to(checked, shape).reshape(-1)
    table = np.broadcast_to(rows, (*shape, rows.shape[-1])).reshape(-1, rows.shape[-1])
    values = [_log_success_row(float(p), row, noise) for p, row in zip(targets, table, strict=True)]
    return np.array(values).reshape(shape)[()]


def zipf_masses(q: float, k: int, exponent: float = 1.0) -> Array:
    """Return k competitor masses [k] proportional to rank^−exponent that sum to 1 − q."""
    count = int(_inputs.competitors(k))
    if count != k:
        raise CompetitorError(f"a Zipf law needs a whole number of competitors; got {k!r}")
    weights = np.arange(1, count + 1, dtype=np.float64) ** -float(_inputs.finite(exponent, "exponent"))
    return np.asarray((1.0 - float(_inputs.probabilities(q))) * weights / weights.sum())


def _log_success_row(q: float, masses: Array, sigma: float) -> float:
    if not np.all((masses >= 0) & (masses < 1)):
        wrong = masses[~((masses >= 0) & (masses < 1))]
        raise CompetitorError(f"competitor masses must be between 0 and 1; got {float(wrong[0])!r}")
    total, rest = float(masses.sum()), 1.0 - q
    if abs(total - rest) > _SUM_TOLERANCE * rest + 1e-15:
        raise CompetitorError(f"competitor masses must sum to 1 − q = {rest!r}; got {total!r}")
    distinct, counts = np.unique(masses[masses > 0], return_counts=True)
    leads = (np.log(q) - np.log(distinct)) / sigma
    return unequal_log_win(leads, counts.astype(np.float64))


def _logit(y: Array) -> Array:
    return logit_of_log(y)[0]


def _competition_of(y: Array, k: float, sigma: float) -> tuple[Competition, Array]:
    """Return the competition at every y, as flat arrays, and log(1 − q)."""
    flat = y.reshape(-1)
    with np.errstate(all="ignore"):
        logit = _logit(flat)
        return equal_competitors((np.log(k) + logit) / sigma, float(k)), flat - logit


def _per_k(
    values: Array,
    k: ArrayLike,
    sigma: ArrayLike,
    logit: Callable[[Array], Array],
    closed_form: Callable[[Array, Array], Values],
    pick: Callable[[Competition], Array],
) -> Values:
    """Broadcast the three arguments and evaluate one k at a time; k = 1 has a closed form."""
    sizes, noises = _inputs.many_competitors(k), _inputs.noise(sigma)
    shape = _inputs.common_shape(values, sizes, noises)
    flat, size, noise = (np.broadcast_to(item, shape).reshape(-1) for item in (values, sizes, noises))
    out = np.empty(flat.shape)
    for count in np.unique(size):
        rows = np.flatnonzero(size == count)
        if count == 1:
            out[rows] = closed_form(flat[rows], noise[rows])
            continue
        with np.errstate(all="ignore"):
            leads = (np.log(count) + logit(flat[rows])) / noise[rows]
            out[rows] = pick(equal_competitors(leads, float(count), with_bend=False))
    return out.reshape(shape)[()]
