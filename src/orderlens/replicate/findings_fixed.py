"""The findings on fixed targets: chain-rule deviation, Var as a second axis, bottleneck steps, the theory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pandas as pd

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.study import Study
from orderlens.analysis.table import Table
from orderlens.figures.fixed_sequence import PAPER_ORDERS
from orderlens.metrics.segments import divide
from orderlens.replicate.compare import Paired, rank_rows, stack, wide_of
from orderlens.replicate.verdicts import (
    OPEN,
    REFUSED,
    SUPPORTED,
    Number,
    Verdict,
    Word,
    above,
    few_prompts,
    judge,
)

NOISE_FACTOR = 10.0
COHERENT = 1e-9
"""A gap counts when it is ten times the noise floor, and never below what an exact joint shows (nats)."""


_NO_LIKELIHOOD = (
    "Orders that see the target define no distribution and their sums of log q are no likelihoods, so they "
    "do not decide."
)
_ONLY_A_FIT = (
    "The fit summarises how often the target is the argmax; it does not confirm the noise model, and Var "
    "need not order the exact loss even below σ₀."
)


def fixed_findings(study: Study, tables: Mapping[str, Table]) -> list[Verdict]:
    """Return the verdicts that need scored targets; ``tables`` are those made of the same study, by name."""
    return [
        chain_rule(tables),
        variance_axis(study),
        bottlenecks(study),
        uniform_spreading(study, tables),
    ]


def chain_rule(tables: Mapping[str, Table]) -> Verdict:
    """Does log P/n depend on the order by more than rounding?"""
    cells = _cells(tables["coherence"])
    floor = max(
        (c.value for (name, _), c in cells.items() if name == "noise_floor" and c.is_defined),
        default=math.nan,
    )
    bar = max(NOISE_FACTOR * floor, COHERENT) if math.isfinite(floor) else math.nan
    decisive = cells["range_of_means", "deployable"]
    gamma = tables["circulation"].rows[0]["median_abs"]
    numbers = (
        Number("range_of_means, deployable orders (nats/token)", decisive, digits=4),
        Number("range_of_means, all orders (nats/token)", cells["range_of_means", "all"], 0.49, 4),
        Number("mean_of_ranges, deployable orders", cells["mean_of_ranges", "deployable"], digits=4),
        Number("mean_of_ranges, all orders", cells["mean_of_ranges", "all"], digits=4),
        Number("noise floor (nats/token)", _floor_cell(floor), "not given", 4),
        Number("dispersion over random orders", cells["dispersion", "random"], digits=4),
        Number("median |Γ| of adjacent swaps (nats)", _estimate(gamma), digits=4),
    )
    word = judge([above(decisive, bar)]) if math.isfinite(bar) else OPEN
    return Verdict(
        "chain-rule",
        "Changing only the reveal order shifts log P/n of a fixed target.",
        "Section 4.2, Finding 1",
        word,
        f"range_of_means over deployable orders lies above {NOISE_FACTOR:g} times the noise floor.",
        numbers,
        (_NO_LIKELIHOOD, *few_prompts(decisive.n)),
    )


def _floor_cell(floor: float) -> Estimate:
    return Estimate(floor) if math.isfinite(floor) else Estimate.undefined("not measured")


def _cells(table: Table) -> dict[tuple[str, str], Estimate]:
    return {(str(row["statistic"]), str(row["scope"])): _estimate(row["value"]) for row in table.rows}


def _estimate(cell: object) -> Estimate:
    return cell if isinstance(cell, Estimate) else Estimate.undefined("no value")


def _planes(study: Study) -> tuple[Paired, list[str]]:
    """Return mean, Var and Gini of every order side by side, and the orders."""
    parts = {name: wide_of(study.scored, name) for name in ("mean", "var", "gini_block0")}
    orders = list(parts["mean"].columns)
    wide = pd.concat([part[orders].add_prefix(f"{name}:") for name, part in parts.items()], axis=1)
    return Paired.of(wide.dropna(), study.options.resampling), orders


def variance_axis(study: Study) -> Verdict:
    """Is Var more than another way to write the mean?"""
    plane, orders = _planes(study)
    every, six = _spearman(plane, orders), _spearman(plane, [o for o in PAPER_ORDERS if o in orders])
    pairs = {pair: _pair(plane, *pair) for pair in itertools.combinations(orders, 2)}
    decided = {pair: _direction(*cells) for pair, cells in pairs.items()}
    along = [pair for pair, sign in decided.items() if sign > 0]
    against = [pair for pair, sign in decided.items() if sign < 0]
    settled = bool(pairs) and all(decided.values())
    word: Word = SUPPORTED if along and against else REFUSED if settled else OPEN
    whole_six = len([order for order in PAPER_ORDERS if order in orders]) == len(PAPER_ORDERS)
    numbers = [
        Number(f"Spearman(Var, mean log q) over {len(orders)} orders", every, digits=2),
        Number("Spearman over the paper's six", six if whole_six else _lacking(), -0.77, 2),
        Number("pairs with the higher mean and the higher Var", Estimate(float(len(along))), "some", 0),
        Number("pairs with the higher mean and the lower Var", Estimate(float(len(against))), "most", 0),
        *_named_pairs(plane, orders),
    ]
    shown = ", ".join(f"{a}/{b}" for a, b in along[:6]) + (", …" if len(along) > 6 else "")
    return Verdict(
        "variance-axis",
        "Var(log q) ranks orders differently from the mean: it is an axis of its own.",
        "Section 4.2, Finding 2",
        word if every.n and not few_prompts(every.n) else OPEN,
        "some pairs of orders have the higher mean with the higher Var and some with the lower Var (both "
        "differences' intervals clear of 0), so Var is no monotone function of the mean.",
        tuple(numbers),
        (*((f"Higher mean with higher Var: {shown}.",) if along else ()), *few_prompts(every.n)),
    )


def _lacking() -> Estimate:
    return Estimate.undefined("not all of the paper's six orders were scored")


def _spearman(plane: Paired, orders: list[str]) -> Estimate:
    if len(orders) < 3:
        return Estimate.undefined("fewer than three orders")
    return _rank_of_means(plane, orders, "var", "mean")


def _rank_of_means(plane: Paired, orders: list[str], x: str, y: str) -> Estimate:
    """Return the Spearman correlation across orders of two statistics' means."""
    used = plane.pick(*(f"{name}:{order}" for name in (x, y) for order in orders))
    half = len(orders)
    return used.of_means(lambda m: stack(rank_rows(m[:, :half], m[:, half:])))[0]


def _pair(plane: Paired, a: str, b: str) -> tuple[Estimate, Estimate]:
    """Return mean and Var of ``a`` minus those of ``b``."""
    used = plane.pick(*(f"{name}:{order}" for name in ("mean", "var") for order in (a, b)))
    found = used.of_means(lambda m: stack(m[:, 0] - m[:, 1], m[:, 2] - m[:, 3]))
    return found[0], found[-1]


def _direction(mean: Estimate, var: Estimate) -> int:
    """Return 1 when both differences have the same sign, −1 when opposite ones, 0 when one is not settled."""
    if not all(cell.low > 0 or cell.high < 0 for cell in (mean, var)):
        return 0
    return 1 if (mean.value > 0) == (var.value > 0) else -1


def _named_pairs(plane: Paired, orders: list[str]) -> list[Number]:
    """Return the two pairs that the paper names."""
    numbers = []
    if {"forced-ar", "oracle-max-q"} <= set(orders):
        mean, _ = _pair(plane, "oracle-max-q", "forced-ar")
        numbers.append(Number("oracle-max-q − forced-ar, mean log q", mean, "about 0"))
        numbers.append(Number("the larger Var of the two ÷ the smaller", _var_ratio(plane), "about 2", 2))
    if {"random", "reverse-ar"} <= set(orders):
        mean, var = _pair(plane, "random", "reverse-ar")
        numbers.append(Number("random − reverse-ar, mean log q", mean, "same sign as Var's"))
        numbers.append(Number("random − reverse-ar, Var", var, "same sign as the mean's"))
    return numbers


def _var_ratio(plane: Paired) -> Estimate:
    used = plane.pick("var:oracle-max-q", "var:forced-ar")
    return used.of_means(lambda m: stack(divide(m.max(axis=1), m.min(axis=1))))[0]


def bottlenecks(study: Study) -> Verdict:
    """Do high-variance orders concentrate self-information in a few steps?"""
    plane, orders = _planes(study)
    few = Estimate.undefined("fewer than three orders")
    cell = _rank_of_means(plane, orders, "var", "gini_block0") if len(orders) > 2 else few
    return Verdict(
        "bottlenecks",
        "Orders with higher Var push the Lorenz curve farther below uniform: few steps carry most.",
        "Section 4.2, Finding 2; Fig. 1b",
        judge([cell]),
        "Spearman of Var and block-0 Gini across orders lies above 0.",
        (Number(f"Spearman(Var, Gini of block 0) over {len(orders)} orders", cell, "positive", 2),),
        few_prompts(cell.n),
    )


def uniform_spreading(study: Study, tables: Mapping[str, Table]) -> Verdict:
    """Is the noise that fits the argmax hits small enough for the theorem's concavity?"""
    from orderlens.theory import critical_sigma

    row = next(row for row in tables["theory-fit"].rows if row["orders"] == "deployable")
    sigma, k, one = (_estimate(row[name]) for name in ("sigma", "k", "sigma_one"))
    n = int(study.scored["sample_id"].nunique())
    limit = float(critical_sigma(max(k.value, 1.0))) if k.is_defined else math.nan
    gap = Estimate(limit - sigma.value, limit - sigma.high, limit - sigma.low, n)
    numbers = (
        Number("fitted σ (deployable orders)", sigma, "never estimated", 2),
        Number("fitted number of equal competitors k", k, "assumed 1", 1),
        Number("σ₀ for that k, below which log f is concave", Estimate(limit, why="no fit"), digits=3),
        Number("fitted σ when k = 1 is imposed (σ₀ = 1.053)", one, digits=2),
        *_loss_numbers(tables["theory"]),
    )
    return Verdict(
        "uniform-spreading",
        "Spreading confidence evenly maximises recoverability, so Var measures what unevenness costs.",
        "Section 3, Theorem 1",
        judge([gap]),
        "the interval of the fitted σ lies below σ₀(k), where the theorem's concavity holds.",
        numbers,
        (_ONLY_A_FIT, *few_prompts(n)),
    )


def _loss_numbers(table: Table) -> list[Number]:
    """Return how well Var and the worst step stand for the exact loss, for one order and noise scale."""
    rows = [row for row in table.rows if row["order"] == "forced-ar" and row["sigma"] == "0.5"]
    names = {
        "rho_var": "Spearman(Var, exact Jensen loss), forced-ar, σ = 0.5",
        "rho_min": "Spearman(min log q, the same loss)",
    }
    return [Number(text, _estimate(row[name]), digits=2) for row in rows for name, text in names.items()]
