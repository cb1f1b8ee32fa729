"""Claims about several competitors (appendix A.4, last paragraph)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, ndtr, owens_t

from orderlens.claims.audit.claim import Claim, holds_if
from orderlens.claims.audit.model import CONFIGURED_VOCABULARY
from orderlens.theory._crowd import equal_crowd, mixed_bend
from orderlens.theory._inputs import Array
from orderlens.theory.competitors import success_k
from orderlens.theory.concavity import critical_sigma

_S = CONFIGURED_VOCABULARY


def two_competitors() -> Claim:
    """f_2 against the bivariate normal law with covariance σ²(I + 11ᵀ)."""
    u = np.linspace(-8.0, 8.0, 161)
    h = u / np.sqrt(2.0)
    reference = ndtr(h) - 2.0 * owens_t(h, 1.0 / np.sqrt(3.0))
    gap = float(np.max(np.abs(np.exp(equal_crowd(u, 2.0).log_win) - reference)))
    return Claim(
        "k-competitors",
        "A.4, extension",
        "f_k is the law of the largest of k noise differences at log(kq/(1 - q))",
        "exact",
        f"f_2 agrees with the bivariate normal law to {gap:.1e}",
        holds_if(gap < 1e-10),
        values={"largest_difference": gap},
    )


def prekopa() -> Claim:
    """Is log F_{W_k} concave in its argument?"""
    u = np.linspace(-40.0, 12.0, 209)
    smallest = min(float(np.min(equal_crowd(u, float(k)).bend)) for k in (2, 10, 1000, _S - 1))
    return Claim(
        "prekopa",
        "A.4, extension",
        "log F of the largest noise difference is concave for every k",
        "concave",
        f"smallest -(log F)''/(log F)' = {smallest:.3f} > 0 for k = 2, 10, 1000, {_S - 1:,}",
        holds_if(smallest > 0),
        values={"smallest": smallest},
    )


def same_mechanism() -> Claim:
    """σ₀(k)."""
    sizes = (1, 2, 10, 100, _S - 1)
    values = {f"sigma0_k{k}": critical_sigma(k) for k in sizes}
    rising = list(values.values()) == sorted(values.values())
    listed = ", ".join(f"{value:.4f}" for value in values.values())
    return Claim(
        "same-mechanism",
        "A.4, extension",
        "with k competitors the two-term argument goes through as before",
        "not quantified",
        f"sigma0(k) = {listed} for k = {', '.join(map(str, sizes))}",
        holds_if(rising and min(values.values()) > 1.0),
        "the range of sigma grows slowly with k",
        values,
    )


def zipf() -> Claim:
    """The sign of g'' with Zipf competitor masses over the whole vocabulary."""
    log_weights, counts = _grouped_zipf(_S - 1, 0.05)
    logits = np.linspace(-9.0, 7.0, 33)
    worst = {
        sigma: min(mixed_bend((x - log_weights) / sigma, counts) / (sigma * float(expit(x))) for x in logits)
        for sigma in (0.1, 0.5, 1.0, 2.0)
    }
    text = ", ".join(f"{ratio:.2f}" for ratio in worst.values())
    return Claim(
        "zipf-sign",
        "A.4, extension",
        "Zipf competitor masses preserve the sign of g'' in the regime used",
        "preserved",
        f"smallest concavity ratio {text} at sigma = 0.1, 0.5, 1, 2 (S - 1 competitors)",
        holds_if(min(worst[sigma] for sigma in (0.1, 0.5, 1.0)) > 1.0),
        "a ratio below 1 means convex somewhere: true up to sigma = 1, not at sigma = 2"
        if worst[2.0] < 1.0
        else "above 1 at every sigma tried",
        {f"ratio_sigma_{sigma:g}": value for sigma, value in worst.items()},
    )


def _grouped_zipf(k: int, width: float) -> tuple[Array, Array]:
    """Log-weights of a Zipf law over k ranks and their counts; ranks within ``width`` in log are grouped."""
    rank = np.arange(1, k + 1, dtype=np.float64)
    log_weight = -np.log(rank) - np.log(np.sum(1.0 / rank))
    group = np.unique(np.floor(np.log(rank) / width), return_inverse=True)[1]
    counts = np.bincount(group).astype(np.float64)
    return np.bincount(group, log_weight) / counts, counts


def effective_noise() -> Claim:
    """Do competitors change the noise scale or the location?"""
    x = np.linspace(-9.0, 6.0, 151)
    target = success_k(expit(x), 100, 1.0)
    scale = _closest(lambda factor: ndtr(x / (factor * np.sqrt(2.0))), target)
    shift = _closest(lambda offset: ndtr((x + offset) / np.sqrt(2.0)), target)
    return Claim(
        "effective-noise-scale",
        "A.4, extension",
        "the competitor distribution mainly changes the effective noise scale",
        "scale",
        f"f_100 at sigma = 1: off by {scale:.3f} with the best sigma, by {shift:.3f} with the best shift",
        holds_if(scale < shift),
        "competitors move the location of f; the scale hardly changes",
        {"scale_misfit": scale, "shift_misfit": shift},
    )


def _closest(family: Callable[[float], Array], target: Array) -> float:
    """Smallest largest difference between ``target`` and a one-parameter family."""
    found = minimize_scalar(
        lambda value: float(np.max(np.abs(family(value) - target))), bounds=(0.01, 8.0), method="bounded"
    )
    return float(found.fun)


CLAIMS = (two_competitors, prekopa, same_mechanism, zipf, effective_noise)
