"""Claims about several competitors (appendix A.4, last paragraph) and about whole profiles (A.5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, ndtr, owens_t

from orderlens.claims.audit.model import CONFIGURED_VOCABULARY, Claim, holds_if
from orderlens.theory._competition import equal_competitors, unequal_bend
from orderlens.theory._inputs import Array
from orderlens.theory.competitors import success_k
from orderlens.theory.concavity import best_profile, critical_sigma
from orderlens.theory.spreading import jensen_loss, log_recoverability, second_order
from orderlens.theory.step import d2

_S = CONFIGURED_VOCABULARY


def two_competitors() -> Claim:
    """f_2 against the bivariate normal law with covariance σ²(I + 11ᵀ)."""
    u = np.linspace(-8.0, 8.0, 161)
    h = u / np.sqrt(2.0)
    reference = ndtr(h) - 2.0 * owens_t(h, 1.0 / np.sqrt(3.0))
    gap = float(np.max(np.abs(np.exp(equal_competitors(u, 2.0).log_win) - reference)))
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
    smallest = min(float(np.min(equal_competitors(u, float(k)).bend)) for k in (2, 10, 1000, _S - 1))
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
        sigma: min(
            unequal_bend((x - log_weights) / sigma, counts) / (sigma * float(expit(x))) for x in logits
        )
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


def one_bottleneck(n: int = 99, mean: float = -0.35, low: float = -0.85) -> Array:
    """Return n − 1 equal steps and one at ``low``, with the given mean."""
    return np.append(np.full(n - 1, (n * mean - low) / (n - 1)), low)


def two_levels(n: int = 99, mean: float = -0.35, share: float = 2 / 3, high: float = -1e-9) -> Array:
    """Return a share of the steps low and the rest near certainty, with the given mean."""
    lower = round(n * share)
    low = (n * mean - (n - lower) * high) / lower
    return np.concatenate([np.full(lower, low), np.full(n - lower, high)])


def _a(q: list[float], sigma: float) -> float:
    return float(np.exp(log_recoverability(np.log(q), sigma)))


def uniform_below() -> Claim:
    """The theorem where its premise holds."""
    profiles = np.log(np.random.default_rng(0).uniform(0.001, 0.999, (2000, 16)))
    smallest = min(float(np.min(jensen_loss(profiles, sigma))) for sigma in (0.1, 0.3, 0.5, 1.0, 1.05))
    gain = max(best_profile(-6.0, 10, sigma).gain for sigma in (0.1, 0.5, 1.0, 1.05))
    return Claim(
        "uniform-below-sigma0",
        "A.5",
        "for concave g the uniform profile maximises A at fixed P, and only it",
        "uniform",
        f"smallest Jensen loss of 10,000 profiles {smallest:.3f} > 0; numerical maximiser gains {gain:.1g}",
        holds_if(smallest > 0 and gain == 0),
        "for sigma up to sigma0",
        {"smallest_loss": smallest, "largest_gain": gain},
    )


def uniform_above() -> Claim:
    """The theorem without its premise: abstract and introduction state no condition on σ."""
    uneven, even = _a([0.9, 0.4], 2.0), _a([0.6, 0.6], 2.0)
    near_uneven, near_even = _a([0.75, 0.61], 1.1), _a([float(np.sqrt(0.75 * 0.61))] * 2, 1.1)
    return Claim(
        "uniform-above-sigma0",
        "A.5",
        "at fixed P, recoverability is uniquely maximised by spreading uniformly",
        "always",
        f"sigma = 2: A(0.9, 0.4) = {uneven:.9f} > A(0.6, 0.6) = {even:.9f}; "
        f"sigma = 1.1: A(0.75, 0.61) = {near_uneven:.9f} > {near_even:.9f}",
        holds_if(uneven <= even),
        "false above sigma0; the paper does not estimate sigma",
        {"uneven_2": uneven, "even_2": even, "uneven_1.1": near_uneven, "even_1.1": near_even},
    )


def signed_curvature() -> Claim:
    """The boxed −|g''| against g''."""
    curvature = float(d2(np.log(0.7), 1.1))
    pair = second_order(np.log([0.75, 0.65]), 1.1)
    return Claim(
        "second-order-sign",
        "A.5, boxed",
        "log A = n g(mean) - (n/2)|g''(mean)| Var to second order",
        "-|g''|",
        f"g''(log 0.7) = {curvature:+.6f} at sigma = 1.1; q = (0.75, 0.65): "
        f"exact loss {pair.exact_loss:+.2e}, signed second order {pair.loss:+.2e}, "
        f"printed form {abs(pair.loss):+.2e}",
        holds_if(curvature < 0),
        "the term is +(n/2) g'' Var with the sign of g''; the printed form is right only where g'' < 0",
        {"curvature": curvature, "exact_loss": pair.exact_loss, "signed_loss": pair.loss},
    )


def second_order_range() -> Claim:
    """Is the second order the leading loss for deviations of the observed size?"""
    found = second_order(one_bottleneck(), 0.1)
    return Claim(
        "second-order-range",
        "A.5",
        "at matched mean the leading loss is proportional to Var",
        "leading",
        f"one bottleneck in 99 steps (Var {found.variance:.5f}), sigma = 0.1: "
        f"exact loss {found.exact_loss:.4f}, second order {found.loss:.2e}",
        "incomplete",
        f"true inside the Taylor radius {found.radius:.2f}; the bottleneck deviates by {found.furthest:.2f}",
        {"exact": found.exact_loss, "second_order": found.loss, "radius": found.radius},
    )


def variance_orders() -> Claim:
    """Does Var order A at matched mean?"""
    first, second = one_bottleneck(), two_levels()
    one, two = (float(log_recoverability(profile, 0.1)) for profile in (first, second))
    return Claim(
        "variance-orders",
        "A.5, end",
        "among paths of equal mean, lower Var means higher recoverability",
        "lower Var is better",
        f"n = 99, mean -0.35, sigma = 0.1: Var {first.var():.5f} has log A = {one:.3f}, "
        f"Var {second.var():.4f} has log A = {two:.3f}",
        holds_if(one >= two),
        "only majorisation ranks A for every concave g; one deep bottleneck can cost more than a wide spread",
        {"var_one": float(first.var()), "var_two": float(second.var()), "log_a_one": one, "log_a_two": two},
    )


SPREADING_CLAIMS = (uniform_below, uniform_above, signed_curvature, second_order_range, variance_orders)
