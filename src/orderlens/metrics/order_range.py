"""How far apart orders are on average: a range that noise does not inflate, and a test that they agree.

The plain range, max − min of the observed means, is never below 0 and too large by about the noise of its
extremes; a bootstrap interval around it repeats the mistake and excludes 0 always. Instead:

- the test permutes the orders within each text and compares the largest studentised difference of two orders,
  so it has its size whenever orders agree up to noise;
- the lower end takes off the largest difference what the pairs that may be the widest reach by chance
  (adaptive selection after Chernozhukov, Lee and Rosen 2013), and stops at 0;
- estimate and upper end ask which true range would show a plain range as small as the observed one in half,
  and in a few per cent, of all samples; the orders' means keep their shape and are only drawn together.

Differences to the first order up to ``metrics.coherence.ROUNDING`` count as none.

Chance comes from flipping the signs of whole texts, which keeps the dependence between orders. What the
interval covers is measured in ``tests/metrics/test_order_range.py`` on worlds whose range is known.

Shape letters: S texts, O orders, P ordered pairs of orders, R random draws. Arrays in, numbers out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orderlens.common.rng import keyed_generator
from orderlens.metrics.coherence import ROUNDING
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.metrics.segments import BoolArray, FloatArray, IntArray

DRAWS = 1999
"""Permutations of the test and sign flips behind the quantiles; the smallest p is 1/2000."""
_PIECE = 2_000_000
"""Random numbers made at once."""
_FAR = 1e6
"""Stands for an infinite quantile: so few texts that a flip leaves no spread."""


@dataclass(frozen=True, slots=True)
class OrderRange:
    """How far apart the orders' means are.

    Attributes:
        estimate: corrected range with its interval, never below 0.
        plain: max − min of the observed means.
        p: permutation p of "the orders agree up to noise"; NaN when undefined.
    """

    estimate: Estimate
    plain: float
    p: float


def order_range(values_SO: FloatArray, resampling: Resampling | None = None) -> OrderRange:
    """Return the corrected range of the orders' means over texts.

    Args:
        values_SO: one row per text, one column per order; rows with a missing value are left out.
        resampling: seed and coverage; 0 repetitions leave out test and interval.
    """
    how = resampling or Resampling()
    complete = np.isfinite(values_SO).all(axis=1)
    values, missing = values_SO[complete], int((~complete).sum())
    n, width = values.shape
    if width < 2:
        return _undefined(f"{width} order(s): at least two are needed", 0)
    if not n:
        return _undefined("no sequence was scored under every order", missing)
    values = values - values[:, :1]  # what texts share would only add its rounding
    plain = float(np.ptp(values.mean(axis=0)))
    if n < 2 or not how.reps:
        why = "no interval: one text" if n < 2 else "no interval asked for"
        return OrderRange(Estimate(plain, n=n, n_undefined=missing, why=why), plain, math.nan)
    low, middle, high = _corrected(values, how)
    # The upper end keeps its rounding: it says how sure 0 is, which an interval without width could not.
    low, middle = (end if end > ROUNDING else 0.0 for end in (low, middle))
    differing = np.where(np.abs(values) > ROUNDING, values, 0.0)
    return OrderRange(Estimate(middle, low, high, n, missing), plain, agreement_p(differing, how))


def _undefined(why: str, missing: int) -> OrderRange:
    return OrderRange(Estimate.undefined(why, missing), math.nan, math.nan)


def agreement_p(values_SO: FloatArray, resampling: Resampling) -> float:
    """Return the p of the largest studentised difference when orders are permuted within texts.

    Exact when orders are exchangeable within texts; studentised, so also about right when some orders are
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
    """Return difference / error; 0 where both vanish, infinite where only the error does."""
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
    # The scale of chance is itself estimated: as Student's t against the normal.
    scale_R1 = np.sqrt(n / rng.chisquare(n - 1, size=(DRAWS, 1)))
    tail = 0.4 * (1 - how.level)  # below one half, since the shape is estimated as well
    middle, high = (_drawn_together(mean_O, chance_RO * scale_R1, share) for share in (0.5, tail))
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
    kept_P = gap_P >= (gap_P - reach * error_P).max() - 2 * reach * error_P
    # Where a pair may be the widest in either direction the upper end hardly fails: the lower gets all.
    tail = (1 - level) * (1.0 if _either_way(kept_P, first, second) else 0.5)
    factor = float(np.quantile(t_RP[:, kept_P].max(axis=1), 1 - tail))
    return max(0.0, float((gap_P - factor * error_P)[kept_P].max()))


def _drawn_together(mean_O: FloatArray, chance_RO: FloatArray, share: float) -> float:
    """Return the range of means of this shape of which ``share`` of all samples would show less than this."""
    observed = float(np.ptp(mean_O))

    def shown(factor: float) -> float:
        return float(np.quantile(np.ptp(factor * mean_O + chance_RO, axis=1), share))

    if shown(0.0) >= observed:
        return 0.0
    low, high = 0.0, 1.0
    while shown(high) < observed and high < _FAR:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) < observed else (low, middle)
    return high * observed


def _either_way(kept_P: BoolArray, first: IntArray, second: IntArray) -> bool:
    chosen = set(zip(first[kept_P].tolist(), second[kept_P].tolist(), strict=True))
    return any((b, a) in chosen for a, b in chosen)
