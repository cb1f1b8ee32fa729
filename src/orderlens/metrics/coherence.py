"""Does the model's log P of one text depend on the order? Pure functions, nats per token.

A coherent model gives every order the same log P. Target-aware orders define no distribution, so their sums
are never called likelihoods; callers keep them apart from deployable orders. The forwards behind circulation
and the noise floor are the decoder's business: here is only their arithmetic.

Shape letters: S sequences, O orders, K random orders of one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import FloatArray, divide

ROUNDING = 1e-9
"""Nats per token up to which two orders agree: adding the same numbers in another order moves a sum by less,
and a model with one joint distribution shows no more."""

MIN_RANDOM_ORDERS = 8
"""Random orders per sequence below which ``dispersion`` and ``ensemble_gap`` are called rough."""


def range_of_means(log_prob_per_token_SO: ArrayLike) -> float:
    """Return max − min over orders of the data-set mean of log P/n (the paper's 0.49).

    Only sequences with a value under every order count. Noise only enlarges it: with few texts it is several
    times too large; ``metrics.order_range`` corrects for that.
    """
    complete = complete_rows(log_prob_per_token_SO)
    return float(np.ptp(complete.mean(axis=0))) if _comparable(complete) else math.nan


def mean_of_ranges(log_prob_per_token_SO: ArrayLike) -> float:
    """Return the mean over sequences of each one's max − min over orders of log P/n.

    Never smaller than ``range_of_means``, often twice as large: always say which of the two is meant.
    """
    complete = complete_rows(log_prob_per_token_SO)
    return float(np.ptp(complete, axis=1).mean()) if _comparable(complete) else math.nan


def settled(values: ArrayLike) -> FloatArray:
    """Return whole numbers that rank ``values`` along the last axis; up to ROUNDING apart they share one."""
    numbers = np.asarray(values, np.float64)
    by = np.argsort(numbers, axis=-1, kind="stable")
    apart = np.diff(np.take_along_axis(numbers, by, axis=-1), axis=-1, prepend=-np.inf) > ROUNDING
    out = np.empty_like(numbers)
    np.put_along_axis(out, by, np.cumsum(apart, axis=-1, dtype=np.float64), axis=-1)
    return np.where(np.isfinite(numbers), out, np.nan)


def complete_rows(values_SO: ArrayLike) -> FloatArray:
    """Return the sequences that have a finite value under every order."""
    values = np.asarray(values_SO, np.float64)
    if values.ndim != 2:
        raise UserInputError(
            f"expected one row per sequence and one column per order, got shape {values.shape}"
        )
    return values[np.isfinite(values).all(axis=1)]


def dispersion(log_prob_per_token_SK: ArrayLike) -> FloatArray:
    """Return each sequence's standard deviation (ddof = 1) of log P/n over random orders [S].

    The orders are a sample of all permutations, hence ddof = 1. Missing orders are skipped; fewer than two
    give NaN.
    """
    values = np.asarray(log_prob_per_token_SK, np.float64)
    known = np.isfinite(values)
    count = known.sum(axis=1)
    centred = np.where(known, values - _row_mean(values)[:, None], 0.0)
    squares = (centred**2).sum(axis=1)
    return np.sqrt(divide(squares, np.where(count > 1, count - 1, 0)))


def ensemble_gap(log_prob_SK: ArrayLike, n_S: ArrayLike) -> FloatArray:
    """Return [log mean_π e^{L_π} − mean_π L_π]/n ≥ 0 of each sequence over its random orders [S].

    ``log_prob_SK`` are whole-sequence sums L_π in nats, ``n_S`` the numbers of tokens. Fewer than two orders
    give NaN.
    """
    from scipy.special import logsumexp  # the store needs numpy only

    sums = np.asarray(log_prob_SK, np.float64)
    known = np.isfinite(sums)
    count = known.sum(axis=1)
    usable = count > 1
    out = np.full(len(sums), np.nan)
    log_mean = logsumexp(np.where(known, sums, -np.inf)[usable], axis=1) - np.log(count[usable])
    out[usable] = np.maximum(log_mean - _row_mean(sums)[usable], 0.0) / np.asarray(n_S, np.float64)[usable]
    return out


def circulation(
    logp_i: ArrayLike, logp_j_given_i: ArrayLike, logp_j: ArrayLike, logp_i_given_j: ArrayLike
) -> FloatArray:
    """Return Γ_ij(R) = [log p(i|R) + log p(j|R,i)] − [log p(j|R) + log p(i|R,j)], elementwise."""
    first = np.asarray(logp_i, np.float64) + np.asarray(logp_j_given_i, np.float64)
    return np.asarray(
        first - (np.asarray(logp_j, np.float64) + np.asarray(logp_i_given_j, np.float64)), np.float64
    )


@dataclass(frozen=True, slots=True)
class CirculationSummary:
    """Γ of one group of adjacent pairs: how many, how large, and in which direction."""

    n: int
    n_undefined: int
    median_abs: float
    rms: float
    signed_mean: float


def summarise_circulation(gamma: ArrayLike) -> CirculationSummary:
    """Return median |Γ|, root mean square and signed mean of the finite values."""
    values = np.asarray(gamma, np.float64)
    known = values[np.isfinite(values)]
    if not len(known):
        return CirculationSummary(0, len(values), math.nan, math.nan, math.nan)
    return CirculationSummary(
        n=len(known),
        n_undefined=len(values) - len(known),
        median_abs=float(np.median(np.abs(known))),
        rms=float(np.sqrt(np.mean(known**2))),
        signed_mean=float(known.mean()),
    )


def circulation_by(gamma: ArrayLike, by: ArrayLike, edges: Sequence[float]) -> dict[str, CirculationSummary]:
    """Return summaries of Γ in bins of ``by`` (distance or mask ratio), keyed ``"[low, high)"``.

    Bins are half-open; the last one is closed so that a mask ratio of exactly 1 is counted.
    """
    values, keys = np.asarray(gamma, np.float64), np.asarray(by, np.float64)
    out = {}
    for low, high in pairwise(edges):
        last = high == edges[-1]
        inside = (keys >= low) & ((keys <= high) if last else (keys < high))
        if inside.any():
            out[f"[{low:g}, {high:g}{']' if last else ')'}"] = summarise_circulation(values[inside])
    return out


def adjacent_swaps(
    path_a: Sequence[int], path_b: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield the adjacent swaps (R, i, j) that turn ``path_a`` into ``path_b``.

    Each says: with R revealed, i then j becomes j then i. The sum of Γ_ij(R) over them is
    log P_a − log P_b, whatever the model.
    """
    if sorted(path_a) != sorted(path_b):
        raise UserInputError("the two paths must reveal the same positions")
    rank = {position: place for place, position in enumerate(path_b)}
    path = list(path_a)
    for end in range(len(path) - 1, 0, -1):
        for place in range(end):
            i, j = path[place], path[place + 1]
            if rank[i] > rank[j]:
                yield tuple(path[:place]), i, j
                path[place], path[place + 1] = j, i


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Mean |Δ log P/n| of rescoring the same paths, by perturbation; ``headline`` is the largest."""

    by_perturbation: Mapping[str, float]
    n: Mapping[str, int]

    @property
    def headline(self) -> float:
        """The largest mean change, NaN when nothing was measured."""
        known = [value for value in self.by_perturbation.values() if math.isfinite(value)]
        return max(known, default=math.nan)


def noise_floor(
    log_prob: ArrayLike, log_prob_perturbed: ArrayLike, n: ArrayLike, perturbation: Sequence[str]
) -> NoiseFloor:
    """Return the noise floor of rescored paths; the four arguments have one entry per rescoring."""
    length = np.asarray(n, np.float64)
    change = np.abs(np.asarray(log_prob_perturbed, np.float64) - np.asarray(log_prob, np.float64))
    per_token = divide(change, length)
    kinds = np.asarray(perturbation, object)
    values, counts = {}, {}
    for kind in dict.fromkeys(perturbation):
        known = per_token[(kinds == kind) & np.isfinite(per_token)]
        values[kind], counts[kind] = float(known.mean()) if len(known) else math.nan, len(known)
    return NoiseFloor(values, counts)


def _row_mean(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return divide(total, count)


def _comparable(complete_SO: FloatArray) -> bool:
    return bool(len(complete_SO)) and int(complete_SO.shape[1]) > 1
