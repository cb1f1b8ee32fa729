"""Fit the theory's noise: f_k to observed argmax hits as a function of q.

The theory assumes a noise σ and k competitors; neither is observed. From the target's probability q at each
reveal, and whether the target was the argmax, both can be fitted by maximum likelihood. The fit is a summary,
not a confirmation. A target with q > ½ is always the argmax, so a model in which it can lose is wrong there
by construction (with k = 1 at every σ). The misfit is therefore part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc, xlogy

from orderlens.theory._fit import LARGEST_K, SIGMA_RANGE, HitData, Surface, maximise, maximise_sigma
from orderlens.theory._inputs import Array


@dataclass(frozen=True, slots=True)
class FitBin:
    """Reveals between two quantiles of q: their number, and the observed and fitted share of argmax hits."""

    q_low: float
    q_high: float
    n: int
    observed: float
    fitted: float


@dataclass(frozen=True, slots=True)
class NoiseFit:
    """A fitted (σ, k) with its intervals and its misfit.

    Attributes:
        sigma: fitted noise scale.
        k: fitted number of equal competitors.
        sigma_interval: interval of σ, 95 % by default.
        k_interval: interval of k.
        interval_kind: ``"profile likelihood"`` or ``"bootstrap"``.
        n: number of reveals used.
        n_certain: number of other reveals, with q exactly 1, which carry no information.
        n_hits: number of reveals used whose target was the argmax.
        log_likelihood: at the fit.
        sigma_one: fitted σ for k = 1.
        log_likelihood_one: log-likelihood at ``sigma_one``.
        deviance: binned deviance of the fit; under the model χ² with ``degrees`` degrees of freedom.
        degrees: number of bins − 2.
        p_value: probability of a larger deviance under the model.
        bins: the bins of the deviance, by increasing q.
        n_above_half: number of reveals with q > ½.
        misses_above_half: misses among them; 0 unless hits and q come from different predictions.
        fitted_misses_above_half: expected number of misses among them under the fit.
    """

    sigma: float
    k: float
    sigma_interval: tuple[float, float]
    k_interval: tuple[float, float]
    interval_kind: str
    n: int
    n_certain: int
    n_hits: int
    log_likelihood: float
    sigma_one: float
    log_likelihood_one: float
    deviance: float
    degrees: int
    p_value: float
    bins: list[FitBin]
    n_above_half: int
    misses_above_half: int
    fitted_misses_above_half: float

    @property
    def remarks(self) -> list[str]:
        """Cautions for the interpretation of the fit."""
        expected = f"{self.fitted_misses_above_half:.1f} misses among {self.n_above_half} such reveals"
        certain = "a target with q > 1/2 is always the argmax, which no sigma can express with k = 1"
        found = [f"{certain}; the fit expects {expected}"]
        if self.misses_above_half:
            found.append(
                f"{self.misses_above_half} misses at q > 1/2: hits and q come from different predictions"
            )
        if self.p_value < 0.01:
            found.append(
                f"the model does not fit: deviance {self.deviance:.1f} on {self.degrees} degrees of freedom"
            )
        if self.k >= 0.99 * LARGEST_K or not 1.01 * SIGMA_RANGE[0] < self.sigma < 0.99 * SIGMA_RANGE[1]:
            found.append("the fit is at the edge of the search range; read it as a bound")
        return found


def fit_noise(
    y: ArrayLike,
    hit: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    bins: int = 20,
    level: float = 0.95,
) -> NoiseFit:
    """Fit σ and k by maximum likelihood to argmax hits.

    Args:
        y: log q of the target at each reveal [N].
        hit: whether the target was the argmax [N].
        groups: labels [N], such as the text of each reveal; the bootstrap then resamples groups. Traces of
            one text under several orders should have one label.
        bootstrap: number of resamples for percentile intervals; 0 gives profile-likelihood intervals, which
            assume independent reveals.
        seed: of the resampling.
        bins: number of quantile bins of q for the misfit.
        level: coverage of the intervals.
    """
    data = HitData(y, hit)
    by_group = data.weights_by_group(groups) if bootstrap > 0 else None
    best = maximise(data)
    surface = Surface(data, best, by_group)
    if by_group is None:
        sigma_interval, k_interval = surface.profile_intervals(level)
    else:
        rng = np.random.default_rng(seed)
        sigma_interval, k_interval = surface.bootstrap(by_group, bootstrap, rng, level)
    log_sigma_one, value_one = maximise_sigma(data)
    return NoiseFit(
        sigma=float(np.exp(best[0])),
        k=float(np.exp(best[1])),
        sigma_interval=sigma_interval,
        k_interval=k_interval,
        interval_kind="bootstrap" if bootstrap > 0 else "profile likelihood",
        n=data.hit.size,
        n_certain=int((~data.used).sum()),
        n_hits=int(data.hit.sum()),
        log_likelihood=data.log_likelihood(*best),
        sigma_one=float(np.exp(log_sigma_one)),
        log_likelihood_one=value_one,
        **_misfit(data, data.fitted(*best), bins),
    )


def _misfit(data: HitData, fitted: Array, count: int) -> dict[str, Any]:
    """Return the fields of :class:`NoiseFit` that describe the misfit."""
    order = np.argsort(data.logit, kind="stable")
    parts = [part for part in np.array_split(order, max(count, 3)) if part.size]
    table = [
        FitBin(
            float(np.exp(data.y[part[0]])),
            float(np.exp(data.y[part[-1]])),
            part.size,
            float(data.hit[part].mean()),
            float(fitted[part].mean()),
        )
        for part in parts
    ]
    above = data.logit > 0
    degrees, deviance = max(len(table) - 2, 1), _deviance(table)
    return {
        "deviance": deviance,
        "degrees": degrees,
        "p_value": float(chdtrc(degrees, deviance)),
        "bins": table,
        "n_above_half": int(above.sum()),
        "misses_above_half": int((above & ~data.hit).sum()),
        "fitted_misses_above_half": float((1.0 - fitted[above]).sum()),
    }


def _deviance(table: list[FitBin]) -> float:
    """Return 2 Σ n [o log(o/e) + (1 − o) log((1 − o)/(1 − e))] over bins; o observed, e fitted hit rates."""
    n = np.array([item.n for item in table], dtype=np.float64)
    o = np.array([item.observed for item in table])
    e = np.clip([item.fitted for item in table], 1e-12, 1.0 - 1e-12)
    return float(2.0 * np.sum(n * (xlogy(o, o / e) + xlogy(1.0 - o, (1.0 - o) / (1.0 - e)))))
