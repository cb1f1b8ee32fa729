"""Claims about the setting and the one-step success function (appendix A.1 and A.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from orderlens.analysis import paper
from orderlens.theory._competition import equal_competitors
from orderlens.theory.competitors import success_k
from orderlens.theory.concavity import critical_sigma
from orderlens.theory.spreading import log_distortion, log_recoverability
from orderlens.theory.step import log_success, success

Standing = Literal["holds", "fails", "incomplete"]
"""``incomplete``: true in a smaller range than printed, or the printed argument does not prove it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper and our own computation of it.

    Attributes:
        name: short id, unique.
        section: its place in the paper (A: proofs, B: downstream protocol, C: sampling).
        statement: the claim in our words.
        paper: the paper's number or condition.
        ours: our computed value.
        standing: whether the claim holds.
        note: why it fails, or the condition under which it holds.
        values: the computed numbers, by name.
    """

    name: str
    section: str
    statement: str
    paper: str
    ours: str
    standing: Standing
    note: str = ""
    values: dict[str, float] = field(default_factory=dict)


def holds_if(condition: bool) -> Standing:
    """Return ``"holds"`` or ``"fails"``."""
    return "holds" if condition else "fails"


CONFIGURED_VOCABULARY = 157_184
"""``vocab_size`` in the configuration published with LLaDA-2.1-mini."""


def vocabulary_size() -> Claim:
    """S enters only through the many-competitor bound k = S − 1."""
    printed = int(paper.number("vocabulary"))
    theirs, real = critical_sigma(printed - 1), critical_sigma(CONFIGURED_VOCABULARY - 1)
    return Claim(
        "vocabulary-size",
        "A.1",
        "LLaDA-2.1-mini has a vocabulary of S tokens",
        f"S = {printed:,}",
        f"S = {CONFIGURED_VOCABULARY:,} (published configuration)",
        "fails",
        f"moves the bound for k = S - 1 from sigma0 = {theirs:.4f} to {real:.4f}",
        {"sigma0_paper": theirs, "sigma0_configured": real},
    )


def likelihood_spread() -> Claim:
    """The spread of mean log P/n over orders."""
    printed = paper.value("coherence", "range_of_means", "all", "value")
    high, low = (paper.value("fixed-sequence", order, "mean") for order in ("forced-ar", "oracle-min-q"))
    return Claim(
        "likelihood-spread",
        "A.1",
        "the reveal order moves log P/n by up to 0.49 nats per token",
        f"{printed:.2f}",
        f"{high - low:.2f} from the printed means {high:.2f} and {low:.2f}",
        holds_if(abs(high - low - printed) < 0.005),
        "a range of means over orders; the mean of the ranges of single sequences is larger",
        {"spread": high - low},
    )


def distortion_identity() -> Claim:
    """A = P·D."""
    y = np.log(np.random.default_rng(0).uniform(0.01, 0.99, 128))
    gap = abs(float(log_recoverability(y, 0.5)) - float(y.sum()) - float(log_distortion(y, 0.5)))
    return Claim(
        "distortion-identity",
        "A.1",
        "recoverability is likelihood times distortion, A = P D",
        "exact",
        f"|log A - log P - log D| = {gap:.1e} on a random profile of 128 steps",
        holds_if(gap < 1e-10),
        values={"gap": gap},
    )


def closed_form() -> Claim:
    """Φ(logit q/(σ√2)) against direct integration over the target's noise."""
    y = np.log(np.concatenate([np.geomspace(1e-12, 0.5, 40), 1.0 - np.geomspace(0.49, 1e-6, 40)]))
    logit = y - np.log(-np.expm1(y))
    gap = max(
        float(np.max(np.abs(equal_competitors(logit / sigma, 1.0).log_win / log_success(y, sigma) - 1.0)))
        for sigma in (0.5, 1.0, 3.0)
    )
    return Claim(
        "closed-form",
        "A.2",
        "with one competitor of mass 1 - q the target wins with probability Phi(logit q/(sigma sqrt 2))",
        "exact",
        f"log f agrees with quadrature over the noise to {gap:.1e} (relative)",
        holds_if(gap < 1e-9),
        values={"largest_relative_difference": gap},
    )


def zero_noise() -> Claim:
    """The hard threshold at q = ½."""
    below, above = float(success(0.499, 1e-4)), float(success(0.501, 1e-4))
    return Claim(
        "zero-noise-limit",
        "A.4, step 6",
        "as sigma -> 0 the success probability becomes the threshold 1[q > 1/2]",
        "0 and 1",
        f"f(0.499) = {below:.1e}, f(0.501) = 1 - {1.0 - above:.1e} at sigma = 1e-4",
        holds_if(below < 1e-9 and above > 1 - 1e-9),
        "true for one competitor; with k equal ones the threshold is at q = 1/(k + 1)",
        {"below": below, "above": above},
    )


def conservative() -> Claim:
    """Is one competitor the hardest case?"""
    one, two = float(success(0.05, 1.0)), float(success_k(0.05, 2, 1.0))
    crossing = brentq(lambda q: float(success_k(q, 2, 1.0)) - float(success(q, 1.0)), 0.05, 0.45)
    return Claim(
        "single-competitor-is-conservative",
        "A.2",
        "putting all residual mass on one competitor is the hardest allocation for the target",
        "f_1 <= f_k",
        f"f_1(0.05) = {one:.4f} > f_2(0.05) = {two:.4f} at sigma = 1",
        holds_if(one <= two),
        f"in the tail many weak competitors are harder: f_2 < f_1 for q < {crossing:.4f} at sigma = 1",
        {"f1": one, "f2": two, "crossing_q": float(crossing)},
    )


CLAIMS = (vocabulary_size, likelihood_spread, distortion_identity, closed_form, conservative, zero_noise)
