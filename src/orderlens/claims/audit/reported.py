"""Claims that follow from numbers the paper prints (appendices B and C): arithmetic, not a new experiment."""

from __future__ import annotations

import numpy as np

from orderlens.analysis import paper
from orderlens.claims.audit.model import Claim, holds_if

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
        values=_by_task("spread", spread),
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


CLAIMS = (
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
