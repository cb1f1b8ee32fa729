"""What a claim is; claims about the setting and the one-step success function (appendix A.1 and A.2).

``REPORTED_CLAIMS`` follow from numbers that the paper prints (appendices B and C) by arithmetic.
"""

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


_BENCHMARKS = paper.benchmarks()
_ORDERS = paper.orders("decoding")
TASKS = tuple(str(item["name"]) for item in _BENCHMARKS.values())
ITEMS = np.array([int(item["items"]) for item in _BENCHMARKS.values()])


_AS_PRINTED = (3, 1, 0, 2)
"""The benchmarks as appendix B lists them."""


def _printed(table: str, column: str) -> np.ndarray:
    """Return a column by task (rows) and by order: forced-ar, max-prob, top-margin, random."""
    return np.array([[paper.value(table, task, order, column) for order in _ORDERS] for task in _BENCHMARKS])


ACCURACY, RHO = _printed("downstream", "accuracy"), _printed("within-cell", "rho")
"""Accuracy in percent, and the Spearman correlation of Var and correctness."""
PPL_TABLE = np.array([paper.value("generation", "external_ppl_whole", order) for order in _ORDERS])
PPL_APPENDIX = np.array([paper.value("temperature", order, "0", "external_ppl_whole") for order in _ORDERS])


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _by_task(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}_{task}": float(value) for task, value in zip(TASKS, values, strict=True)}


def half_widths() -> Claim:
    """Largest 95 % half-widths of a proportion."""
    widths = 196.0 * np.sqrt(0.25 / ITEMS)
    printed = np.array([float(item["half_width"]) for item in _BENCHMARKS.values()])
    return Claim(
        "interval-half-widths",
        "B",
        "95 % half-widths of an accuracy, IFEval, CMath, HellaSwag, MMLU-Pro, in points",
        ", ".join(f"{printed[i]:.1f}" for i in _AS_PRINTED),
        ", ".join(f"{widths[i]:.2f}" for i in _AS_PRINTED),
        holds_if(bool(np.all(np.abs(widths - printed) < 0.05))),
        values=_by_task("half_width", widths),
    )


def generations() -> Claim:
    """Number of graded generations."""
    total = int(4 * ITEMS.sum())
    return Claim(
        "graded-generations",
        "B",
        "four orders on all items of four benchmarks",
        f"{paper.number('graded_generations'):,}",
        f"{total:,}",
        holds_if(total == paper.number("graded_generations")),
        values={"total": float(total)},
    )


def random_gap() -> Claim:
    """Random against the structured orders."""
    gap = ACCURACY[:, :3] - ACCURACY[:, 3:]
    times = gap.min(axis=1) / (196.0 * np.sqrt(0.25 / ITEMS))
    multiples = ", ".join(f"{task} {value:.1f}x" for task, value in zip(TASKS, times, strict=True))
    return Claim(
        "random-gap",
        "B",
        "Random trails the rest by 6 to 35 points, ten times the half-width on every benchmark",
        "6-35 points, 10x",
        f"{gap.min():.1f} to {gap.max():.1f} points; smallest gap over half-width: {multiples}",
        holds_if(
            bool(
                round(gap.min()) >= paper.number("random_gap_pp")
                and times.min() >= paper.number("random_gap_half_widths")
            )
        ),
        values={"smallest": float(gap.min()), "largest": float(gap.max()), **_by_task("multiple", times)},
    )


def structured_gap() -> Claim:
    """Spread among the structured orders."""
    spread = np.ptp(ACCURACY[:, :3], axis=1)
    return Claim(
        "structured-gap",
        "B",
        "structured orders lie within 1.6 points on HellaSwag and IFEval",
        f"<= {paper.number('structured_band_pp'):g}",
        f"{spread[0]:.2f} and {spread[3]:.2f} (CMath {spread[1]:.2f}, MMLU-Pro {spread[2]:.2f})",
        holds_if(bool(max(spread[0], spread[3]) <= paper.number("structured_band_pp"))),
        f"Section 4.4 says +-1.6 pp, which holds around the middle: at most {spread.max() / 2:.3f}",
        _by_task("spread", spread),
    )


def paired_tests() -> Claim:
    """Are the per-cell tests paired and free of the √n floor?"""
    smallest = int(ITEMS.min())
    return Claim(
        "paired-tests",
        "B",
        "the per-cell tests escape the sqrt(n) floor: they are paired, with at least 500 samples",
        "paired, n >= 500",
        f"smallest cell n = {smallest}; Mann-Whitney U compares two unpaired groups",
        "fails",
        "the sample size is right; an unpaired test has the same sqrt(n) limit",
        {"smallest_cell": float(smallest)},
    )


def correlations() -> Claim:
    """Signs and ranges of ρ(Var, correct)."""
    choice, arithmetic, instructions = RHO[2, :3], RHO[1, 3], np.abs(RHO[3]).max()
    as_printed = np.round(choice.max(), 1) == -0.3 and np.round(choice.min(), 2) == -0.34
    return Claim(
        "spearman-signs",
        "B",
        "rho(Var, correct) is negative in all 16 cells; MMLU-Pro structured, CMath Random, IFEval as given",
        "-0.30 to -0.34, -0.39, <= 0.13",
        f"{int((RHO < 0).sum())} of 16 negative; {choice.max():.3f} to {choice.min():.3f}, {arithmetic:.3f}, "
        f"<= {instructions:.3f}",
        holds_if(
            bool(np.all(RHO < 0) and as_printed and round(arithmetic, 2) == -0.39 and instructions <= 0.13)
        ),
        "arithmetic on the printed table; whether Var adds to the mean needs partial or nested tests",
        {"negative": float((RHO < 0).sum())},
    )


def correlation_order() -> Claim:
    """Choice > arithmetic > instructions?"""
    size = np.abs(RHO)
    means = size[:, :3].mean(axis=1)
    structured = ", ".join(f"{task} {value:.3f}" for task, value in zip(TASKS, means, strict=True))
    return Claim(
        "spearman-order",
        "B",
        "|rho| falls from multiple choice over arithmetic to instruction following",
        "choice > arithmetic > instructions",
        f"structured: {structured}; Random: CMath {size[1, 3]:.3f} > choice {size[[0, 2], 3].max():.3f}",
        "incomplete",
        "true for the structured orders, reversed for Random",
        _by_task("mean", means),
    )


def perplexities() -> Claim:
    """Table 1 against the appendix."""
    gap = float(np.max(np.abs(PPL_TABLE - PPL_APPENDIX)))
    return Claim(
        "perplexity-agreement",
        "C",
        "greedy perplexities of the four orders, as in the main table",
        _listed(PPL_APPENDIX),
        f"main table: {_listed(PPL_TABLE)}, off by up to {gap:.2f}",
        holds_if(gap < 0.005),
        "the two places do not report the same statistic or run",
        {"largest_difference": gap},
    )


def sampling_spreads() -> Claim:
    """The growth of the spread over orders with temperature."""
    greedy, hot = float(np.ptp(PPL_APPENDIX)), paper.number("ppl_spread_1")
    var = {order: paper.value("temperature", order, "1", "var") for order in _ORDERS}
    ratios = np.array([var[order] for order in _ORDERS if order != "max-prob"]) / var["max-prob"]
    return Claim(
        "sampling-spread",
        "C",
        "perplexity spread over orders at T = 0, its growth to T = 1, and max-prob's evenness there",
        "{:g}, ~{:g}x, ~{:g}x".format(
            *map(paper.number, ("ppl_spread_0", "ppl_spread_growth", "var_ratio_at_1"))
        ),
        f"{greedy:.2f}, {hot / greedy:.0f}x, {ratios.min():.1f}x to {ratios.max():.1f}x",
        holds_if(
            abs(greedy - paper.number("ppl_spread_0")) < 0.05
            and abs(hot / greedy - paper.number("ppl_spread_growth")) < 6
            and 15 < ratios.mean() < 25
        ),
        values={"greedy_spread": greedy, "growth": hot / greedy, "least_ratio": float(ratios.min())},
    )


REPORTED_CLAIMS = (
    half_widths,
    generations,
    random_gap,
    structured_gap,
    paired_tests,
    correlations,
    correlation_order,
    perplexities,
    sampling_spreads,
)
