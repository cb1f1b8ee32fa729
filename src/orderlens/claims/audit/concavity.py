"""Claims of the concavity proof (appendix A.4)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit

from orderlens.analysis import paper
from orderlens.claims.audit.model import Claim, holds_if
from orderlens.theory.concavity import concavity_margin, concavity_ratio, critical_point
from orderlens.theory.step import d1, d2, inverse_mills, log_success, mills_excess

_ROOT_2_OVER_PI = float(np.sqrt(2.0 / np.pi))


def outer_derivatives() -> Claim:
    """(log Φ)' = r and r' = −r(z + r), and z + r > 0."""
    z = np.linspace(-30.0, 8.0, 400)
    h = 1e-4
    slope = (inverse_mills(z + h) - inverse_mills(z - h)) / (2.0 * h)
    gap = float(np.max(np.abs(slope + inverse_mills(z) * mills_excess(z))))
    smallest = float(np.min(mills_excess(-np.geomspace(1e-3, 1e8, 400))))
    return Claim(
        "outer-derivatives",
        "A.4, step 2",
        "r' = -r(z + r) and z + r > 0 for every z, so log Phi is concave",
        "exact",
        f"off a numerical derivative by at most {gap:.1e}; smallest z + r on [-1e8, 0) is {smallest:.1e} > 0",
        holds_if(gap < 1e-5 and smallest > 0),
        values={"largest_difference": gap, "smallest_excess": smallest},
    )


def second_derivative() -> Claim:
    """The factored g'' against numerical differentiation of g'."""
    y, h = np.log(np.linspace(0.02, 0.98, 60)), 1e-6
    worst = 0.0
    for sigma in (0.2, 0.5, 1.0, 2.0):
        first = (log_success(y + h, sigma) - log_success(y - h, sigma)) / (2.0 * h)
        second = (d1(y + h, sigma) - d1(y - h, sigma)) / (2.0 * h)
        scale = 1.0 + np.abs(d2(y, sigma))
        worst = max(worst, float(np.max(np.abs(first - d1(y, sigma)) / scale)))
        worst = max(worst, float(np.max(np.abs(second - d2(y, sigma)) / scale)))
    return Claim(
        "second-derivative",
        "A.4, steps 3-4",
        "g'' = r[z'' - (z + r) z'^2]",
        "exact",
        f"g' and g'' agree with differences of g and g' to {worst:.1e}",
        holds_if(worst < 1e-5),
        values={"largest_difference": worst},
    )


def criterion() -> Claim:
    """Sign of g'' against the scalar criterion."""
    y = np.log(expit(np.linspace(-40.0, 25.0, 1301)))[:, None]
    sigma = np.array([0.05, 0.1, 0.3, 0.5, 1.0, 1.05, 1.06, 1.2, 2.0, 5.0])
    curvature, margin = d2(y, sigma), concavity_margin(y, sigma)
    seen = curvature != 0
    wrong = int(np.sum(np.sign(curvature[seen]) == np.sign(margin[seen])))
    return Claim(
        "criterion",
        "A.4, step 5",
        "g'' < 0 exactly where z + r > sqrt(2) sigma q",
        "equivalent",
        f"{wrong} disagreements at {int(seen.sum())} points (q, sigma)",
        holds_if(wrong == 0),
        values={"disagreements": float(wrong), "points": float(seen.sum())},
    )


def upper_half() -> Claim:
    """The sufficient bound 1/√π for q ≥ ½."""
    bound = 1.0 / float(np.sqrt(np.pi))
    y = np.log(np.linspace(0.5, 1.0 - 1e-9, 20_001))
    smallest = float(np.min(concavity_margin(y, bound)))
    return Claim(
        "upper-half-bound",
        "A.4, step 6",
        "for q >= 1/2 the criterion holds whenever sigma <= 1/sqrt(pi)",
        "1/sqrt(pi)",
        f"1/sqrt(pi) = {bound:.12f}; smallest margin there {smallest:.4f} > 0",
        holds_if(smallest > 0),
        f"sufficient, far from necessary: the sharp bound is sigma0 = {critical_point().sigma:.6f}",
        {"bound": bound, "smallest_margin": smallest},
    )


def mills_expansion() -> Claim:
    """The expansion z + r = −1/z + O(z⁻³)."""
    u = np.array([20.0, 50.0, 100.0])
    coefficient = (mills_excess(-u) - 1.0 / u) * u**3
    return Claim(
        "mills-expansion",
        "A.4, step 6",
        "z + r(z) = -1/z + O(z^-3) as z -> -infinity",
        "-1/z + O(z^-3)",
        f"u^3 (z + r - 1/u) = {coefficient[0]:.4f}, {coefficient[1]:.4f}, {coefficient[2]:.4f} "
        "at u = -z = 20, 50, 100",
        holds_if(bool(abs(coefficient[2] + 2.0) < 1e-2)),
        "the next term is -2/u^3",
        {"coefficient_at_100": float(coefficient[2])},
    )


def maximum() -> Claim:
    """The maximum of q|logit q| on (0, ½)."""
    found = minimize_scalar(
        lambda q: q * float(logit(q)), bounds=(1e-6, 0.5), method="bounded", options={"xatol": 1e-12}
    )
    value, place = -float(found.fun), float(found.x)
    printed, at = paper.number("largest_q_logit"), paper.number("largest_q_logit_at")
    return Claim(
        "largest-q-logit",
        "A.4, step 6",
        "max of q|logit q| on (0, 1/2), and one minus it",
        f"{printed:.4f} at q = {at:.3f}; {1 - printed:.4f}",
        f"{value:.12f} at q = {place:.6f}; {1.0 - value:.6f}",
        holds_if(abs(value - printed) < 5e-5 and abs(place - at) < 5e-4),
        "the value is W(1/e)",
        {"maximum": value, "place": place},
    )


def small_sigma_step() -> Claim:
    """Is the last step of the proof uniform in q?"""
    sigma = 0.1
    s = sigma * np.sqrt(2.0)
    q = np.array([0.2, 0.4, 0.49, 0.499])
    leading = s / np.abs(logit(q)) * (1.0 - q * np.abs(logit(q)))
    exact = concavity_margin(np.log(q), sigma)
    ratio = leading / exact
    return Claim(
        "small-sigma-step",
        "A.4, step 6",
        "for q < 1/2 the expansion in sigma shows the criterion for all q once sigma is small",
        "error O(sigma^3)",
        "leading term over exact margin at sigma = 0.1: "
        + ", ".join(f"{item:.3g}" for item in ratio)
        + " at q = 0.2, 0.4, 0.49, 0.499",
        "incomplete",
        "the error term is not uniform as q -> 1/2; the statement is true, see repaired-proof",
        {f"ratio_at_{value:g}": float(item) for value, item in zip(q, ratio, strict=True)},
    )


def repaired_proof() -> Claim:
    """The two inequalities that prove concavity for all q and every σ ≤ 1."""
    s = np.sqrt(2.0)
    low = np.concatenate([np.geomspace(1e-300, 0.4, 4000), np.linspace(0.4, 0.5, 4001)])
    distance = np.abs(logit(low))
    lower = float(np.max(low * distance + low * np.sqrt(distance**2 + 8.0 * s * s)))
    high = np.concatenate([np.linspace(0.5, 0.99, 4001), 1.0 - np.geomspace(1e-2, 1e-15, 2000)])
    upper = float(np.min(_ROOT_2_OVER_PI + (1.0 - 2.0 / np.pi) * logit(high) / s - s * high))
    return Claim(
        "repaired-proof",
        "A.4, step 6",
        "g is concave on all of (0, 1) for small enough sigma",
        "some sigma0 > 0",
        f"proved for sigma <= 1: q|L| + q sqrt(L^2 + 8 s^2) <= {lower:.6f} (needs <= 2) for q <= 1/2, "
        f"tangent bound minus s q >= {upper:.4f} for q >= 1/2",
        holds_if(lower <= 2.0 + 1e-12 and upper > 0),
        "Sampford's inequality below 1/2, convexity of r above; L = logit q, s = sigma sqrt 2",
        {"largest_lower_side": lower, "smallest_upper_side": upper},
    )


def critical_noise() -> Claim:
    """σ₀."""
    (sigma, q), printed = critical_point(), paper.number("critical_sigma")
    return Claim(
        "critical-sigma",
        "A.4, end",
        "concavity holds on all of (0, 1) up to sigma0",
        f"{printed:.2f}",
        f"{sigma:.12f}, first violated at q = {q:.6f}",
        holds_if(abs(sigma - printed) < 5e-3),
        "above it uniform spreading is not optimal",
        {"sigma0": sigma, "q": q},
    )


def margin_at_tenth() -> Claim:
    """The sweep at σ = 0.1."""
    found = minimize_scalar(
        lambda x: float(concavity_ratio(np.log(expit(x)), 0.1)), bounds=(-4.0, 0.0), method="bounded"
    )
    y = np.log(expit(np.linspace(-600.0, 36.0, 20_000)))
    positive = bool(np.all(concavity_ratio(y, 0.1) > 1.0))
    return Claim(
        "margin-at-0.1",
        "A.4, end",
        "at sigma = 0.1 the margin z + r - sqrt(2) sigma q stays positive",
        "positive",
        f"smallest ratio (z + r)/(sqrt(2) sigma q) = {found.fun:.6f} at q = {expit(found.x):.6f}",
        holds_if(positive),
        "the margin itself tends to 0 with q: only its sign or the ratio can be tested",
        {"smallest_ratio": float(found.fun), "q": float(expit(found.x))},
    )


CLAIMS = (
    outer_derivatives,
    second_derivative,
    criterion,
    upper_half,
    mills_expansion,
    maximum,
    small_sigma_step,
    repaired_proof,
    critical_noise,
    margin_at_tenth,
)
