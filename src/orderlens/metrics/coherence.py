"""Coherence: how much the model's log P of a text depends on the order. Pure functions, nats per token.

A coherent model gives every order the same log P. Target-aware orders do not define a distribution, so their
sums are not likelihoods; callers keep them separate from deployable orders. The decoder makes the forward
passes of circulation and noise floor; this module does only the arithmetic.

``order_range`` estimates the range of the orders' means without the bias of noise, and tests whether the
orders agree. The plain range, max − min of the observed means, is at least 0 and biased upwards by about the
noise of its extremes. A bootstrap interval around it has the same bias and never includes 0. Instead:

- the test permutes the orders within each text and compares the largest studentised difference of two orders,
  so its size is correct whenever orders agree up to noise;
- the lower end subtracts from the largest difference the chance maximum over all pairs that may be the widest
  (adaptive selection after Chernozhukov, Lee and Rosen 2013), and is at least 0;
- estimate and upper end are the true ranges for which the plain range falls below the observed one in 50 %,
  and in a few per cent, of all samples; the orders' means are scaled towards each other for this.

Differences to the first order up to ``ROUNDING`` count as 0. The null distribution flips the signs of whole
texts, which keeps the dependence between orders. ``tests/metrics/test_order_range.py`` measures the coverage
in simulations with a known range.

Shape letters: S texts, O orders, K random orders of one text, P ordered pairs of orders, R random draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray, divide

ROUNDING = 1e-9
"""Nats per token up to which two orders count as equal; the order of summation changes a sum by less."""

MIN_RANDOM_ORDERS = 8
"""With fewer random orders per sequence, tables call ``dispersion`` and ``ensemble_gap`` rough."""


def range_of_means(log_prob_per_token_SO: ArrayLike) -> float:
    """Return max − min over orders of the data-set mean of log P/n (the paper's 0.49).

    Only sequences with a value under every order count. Noise biases it upwards, several times with few
    texts; ``order_range`` corrects for this.
    """
    complete = complete_rows(log_prob_per_token_SO)
    return float(np.ptp(complete.mean(axis=0))) if _comparable(complete) else math.nan


def mean_of_ranges(log_prob_per_token_SO: ArrayLike) -> float:
    """Return the mean over sequences of the per-sequence max − min over orders of log P/n.

    At least ``range_of_means``, and often twice as large: always state which of the two is reported.
    """
    complete = complete_rows(log_prob_per_token_SO)
    return float(np.ptp(complete, axis=1).mean()) if _comparable(complete) else math.nan


def tied_ranks(values: ArrayLike) -> FloatArray:
    """Return integer ranks of ``values`` along the last axis; values up to ROUNDING apart are tied."""
    numbers = np.asarray(values, np.float64)
    by = np.argsort(numbers, axis=-1, kind="stable")
    differs = np.diff(np.take_along_axis(numbers, by, axis=-1), axis=-1, prepend=-np.inf) > ROUNDING
    out = np.empty_like(numbers)
    np.put_along_axis(out, by, np.cumsum(differs, axis=-1, dtype=np.float64), axis=-1)
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
    """Γ of one group of adjacent pairs: number, size and mean sign."""

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

    Each swap means: with R revealed, "i then j" becomes "j then i". For every model, the sum of Γ_ij(R) over
    the swaps is log P_a − log P_b.
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
        """The largest mean change; NaN without a measurement."""
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


DRAWS = 1999
"""Number of permutations of the test, and of sign flips for the quantiles; the smallest p is 1/2000."""
_PIECE = 2_000_000
"""Random numbers per batch."""
_FAR = 1e6
"""Finite replacement for an infinite quantile, which occurs with very few texts."""


@dataclass(frozen=True, slots=True)
class OrderRange:
    """The range of the orders' means.

    Attributes:
        estimate: corrected range with its interval, at least 0.
        plain: max − min of the observed means.
        p: permutation p-value of "the orders agree up to noise"; NaN if undefined.
    """

    estimate: Estimate
    plain: float
    p: float


def order_range(values_SO: FloatArray, resampling: Resampling | None = None) -> OrderRange:
    """Return the corrected range of the orders' means over texts.

    Args:
        values_SO: one row per text, one column per order; rows with a missing value are ignored.
        resampling: seed and coverage; with 0 repetitions there is no test and no interval.
    """
    how = resampling or Resampling()
    complete = np.isfinite(values_SO).all(axis=1)
    values, missing = values_SO[complete], int((~complete).sum())
    n, width = values.shape
    if width < 2:
        return _undefined("fewer than two orders", 0)
    if not n:
        return _undefined("no sequence was scored under every order", missing)
    values = values - values[:, :1]  # the common part of a text would only add rounding errors
    plain = float(np.ptp(values.mean(axis=0)))
    if n < 2 or not how.reps:
        why = "no interval: one text" if n < 2 else "no interval requested"
        return OrderRange(Estimate(plain, n=n, n_undefined=missing, why=why), plain, math.nan)
    low, middle, high = _corrected(values, how)
    # The upper end is not set to 0: an interval of zero width would hide the uncertainty.
    low, middle = (end if end > ROUNDING else 0.0 for end in (low, middle))
    differing = np.where(np.abs(values) > ROUNDING, values, 0.0)
    return OrderRange(Estimate(middle, low, high, n, missing), plain, agreement_p(differing, how))


def _undefined(why: str, missing: int) -> OrderRange:
    return OrderRange(Estimate.undefined(why, missing), math.nan, math.nan)


def agreement_p(values_SO: FloatArray, resampling: Resampling) -> float:
    """Return the p-value of the largest studentised difference under permutations of orders within texts.

    Exact if orders are exchangeable within texts. Studentised, hence also nearly correct if some orders are
    noisier than others.
    """
    n, width = values_SO.shape
    rng = keyed_generator(resampling.seed, "orders agree", n, width)
    observed = _largest_t(values_SO[None])[0]
    above, piece = 0, max(1, _PIECE // values_SO.size)
    for start in range(0, DRAWS, piece):
        size = min(piece, DRAWS - start)
        ranks = rng.random((size, n, width), np.float32).argsort(axis=2)
        permuted = np.take_along_axis(np.broadcast_to(values_SO, (size, n, width)), ranks, axis=2)
        above += int((_largest_t(permuted) >= observed * (1 - 1e-9)).sum())
    return (1 + above) / (1 + DRAWS)


def _largest_t(values_RSO: FloatArray) -> FloatArray:
    """Return the largest |difference of means| over its standard error, over all pairs of orders [R]."""
    n, width = values_RSO.shape[1:]
    mean_RO = values_RSO.mean(axis=1)
    inner = values_RSO - mean_RO[:, None]
    cross_ROO = np.einsum("rso,rsp->rop", inner, inner)
    own = np.diagonal(cross_ROO, axis1=1, axis2=2)
    first, second = np.triu_indices(width, 1)
    square = own[:, first] + own[:, second] - 2 * cross_ROO[:, first, second]
    error = np.sqrt(np.maximum(square, 0.0) / (n * (n - 1)))
    return np.asarray(_ratio(np.abs(mean_RO[:, first] - mean_RO[:, second]), error).max(axis=1))


def _ratio(difference: FloatArray, error: FloatArray) -> FloatArray:
    """Return difference / error; 0 where both are 0, infinite where only the error is 0."""
    tiny = error <= 1e-300
    safe = np.where(tiny, 1.0, error)
    return np.where(tiny, np.where(difference > 0, np.inf, 0.0), difference / safe)


def _corrected(values_SO: FloatArray, how: Resampling) -> tuple[float, float, float]:
    """Return lower end, estimate and upper end."""
    n = len(values_SO)
    mean_O = values_SO.mean(axis=0)
    rng = keyed_generator(how.seed, "order range", n)
    inner_SO = values_SO - mean_O
    chance_RO = rng.choice(np.array([-1.0, 1.0]), size=(DRAWS, n)) @ inner_SO / n
    low = _lower_end(mean_O, inner_SO, chance_RO, how.level)
    # The standard error is estimated too, hence Student's t instead of the normal distribution.
    scale_R1 = np.sqrt(n / rng.chisquare(n - 1, size=(DRAWS, 1)))
    tail = 0.4 * (1 - how.level)  # less than one half, because the shape is estimated as well
    middle, high = (_shrunk_range(mean_O, chance_RO * scale_R1, share) for share in (0.5, tail))
    middle = max(low, middle)
    return low, middle, max(middle, high, float(np.ptp(mean_O)))


def _lower_end(mean_O: FloatArray, inner_SO: FloatArray, chance_RO: FloatArray, level: float) -> float:
    n, width = inner_SO.shape
    first, second = np.nonzero(~np.eye(width, dtype=np.bool_))
    gap_P = mean_O[first] - mean_O[second]
    square_P = ((inner_SO[:, first] - inner_SO[:, second]) ** 2).mean(axis=0)
    error_P = np.sqrt(square_P / (n - 1))
    by_chance_RP = chance_RO[:, first] - chance_RO[:, second]
    error_RP = np.sqrt(np.maximum(square_P - by_chance_RP**2, 0.0) / (n - 1))
    t_RP = np.minimum(np.sign(by_chance_RP) * _ratio(np.abs(by_chance_RP), error_RP), _FAR)
    reach = float(np.quantile(t_RP.max(axis=1), 1 - 0.1 / math.log(max(n, 3))))
    widest_P = gap_P >= (gap_P - reach * error_P).max() - 2 * reach * error_P
    # If a pair may be the widest in both directions, the upper end hardly errs: the lower gets the full tail.
    tail = (1 - level) * (1.0 if _in_both_directions(widest_P, first, second) else 0.5)
    factor = float(np.quantile(t_RP[:, widest_P].max(axis=1), 1 - tail))
    return max(0.0, float((gap_P - factor * error_P)[widest_P].max()))


def _shrunk_range(mean_O: FloatArray, chance_RO: FloatArray, share: float) -> float:
    """Return the true range, with means of this shape, whose ``share`` quantile is the observed range."""
    observed = float(np.ptp(mean_O))

    def quantile(factor: float) -> float:
        return float(np.quantile(np.ptp(factor * mean_O + chance_RO, axis=1), share))

    if quantile(0.0) >= observed:
        return 0.0
    low, high = 0.0, 1.0
    while quantile(high) < observed and high < _FAR:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if quantile(middle) < observed else (low, middle)
    return high * observed


def _in_both_directions(widest_P: BoolArray, first: IntArray, second: IntArray) -> bool:
    pairs = set(zip(first[widest_P].tolist(), second[widest_P].tolist(), strict=True))
    return any((b, a) in pairs for a, b in pairs)
