"""The findings on fixed targets: chain-rule deviation, Var as a second axis, bottleneck steps, the theory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.coherence import Coherence, measure_coherence
from orderlens.analysis.compare import Paired, rank_rows, stack, wide_of
from orderlens.analysis.study import Study
from orderlens.analysis.tables_theory import fitted_noise, jensen_ranks
from orderlens.claims.checks import Check, Number, negated, p_of_sign
from orderlens.claims.judge import Finding
from orderlens.metrics.coherence import ROUNDING, settled
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import divide
from orderlens.metrics.significance import adjust

_SIX = paper.orders("fixed-sequence")
_RANGE, _SPEARMAN = (
    paper.value("coherence", "range_of_means", "all", "value"),
    paper.number("spearman_var_mean"),
)
NOISE_FACTOR = 10.0
"""A gap counts when it is ten times the noise floor, and never below what an exact joint shows (nats)."""


_BAR = f"{NOISE_FACTOR:g} times the noise floor (above {ROUNDING:g} nats per token where that is smaller)"
_NO_LIKELIHOOD = (
    "Orders that see the target define no distribution and their sums of log q are no likelihoods, so they "
    "do not decide."
)
_ONLY_A_FIT = (
    "The fit summarises how often the target is the argmax; it does not confirm the noise model, and Var "
    "need not order the exact loss even below σ₀."
)


def fixed_findings(study: Study) -> list[Finding]:
    """Return the findings that need scored targets."""
    return [
        chain_rule(study),
        chain_rule_per_text(study),
        variance_axis(study),
        bottlenecks(study),
        uniform_spreading(study),
    ]


def chain_rule(study: Study) -> Finding:
    """Does log P/n depend on the order on average, by more than rounding?"""
    found = study.shared(measure_coherence)
    decisive, everything = (found.find("range_of_means", scope) for scope in ("deployable", "all"))
    p = math.nan if decisive.p is None else decisive.p.value
    label = "range_of_means, deployable orders (nats/token)"
    check = Check(label, _if_measured(decisive.value, found), _bar(found), p=p, digits=4)
    gamma = found.circulation[0].median_abs
    return Finding(
        "chain-rule",
        "Changing only the reveal order shifts log P/n of fixed targets.",
        (check,),
        "Section 4.2, Finding 1",
        rule="permuting the orders within texts shows that they differ on average, and the whole interval "
        f"of range_of_means over deployable orders lies above {_BAR}.",
        numbers=(
            Number("p of 'the orders agree' (permuted within texts)", Estimate(p, why="no test"), digits=4),
            Number("range_of_means, all orders (nats/token)", everything.value, _RANGE, 4),
            Number("mean_of_ranges, all orders", found.find("mean_of_ranges", "all").value, digits=4),
            Number("noise floor (nats/token)", _floor(found), "not given", 4),
            Number("median |Γ| of adjacent swaps (nats)", gamma, digits=4),
        ),
        remarks=(_NO_LIKELIHOOD,),
    )


def chain_rule_per_text(study: Study) -> Finding:
    """Does log P/n of single texts depend on the order, in whatever direction, by more than rounding?"""
    found = study.shared(measure_coherence)
    cell = _if_measured(found.find("mean_of_ranges", "deployable").value, found)
    spread = found.find("dispersion", "random").value
    return Finding(
        "chain-rule-per-text",
        "For a single text log P/n depends on the reveal order: the model has no joint distribution.",
        (Check("mean_of_ranges, deployable orders (nats/token)", cell, _bar(found), digits=4),),
        "ours; the chain rule itself",
        rule=f"the mean over texts of each one's max − min over deployable orders lies above {_BAR}.",
        numbers=(
            Number("dispersion over random orders (nats/token)", spread, digits=4),
            Number("noise floor (nats/token)", _floor(found), digits=4),
        ),
        remarks=("Shifts of single texts may cancel on average; chain-rule asks for the average.",),
    )


def _bar(found: Coherence) -> float:
    """Return what a deviation must exceed."""
    return max(NOISE_FACTOR * found.noise_floor, ROUNDING) if math.isfinite(found.noise_floor) else ROUNDING


def _if_measured(cell: Estimate, found: Coherence) -> Estimate:
    if math.isfinite(found.noise_floor):
        return cell
    return Estimate.undefined("the noise floor was not measured: score with --noise-floor")


def _floor(found: Coherence) -> Estimate:
    return Estimate(found.noise_floor, why=None if math.isfinite(found.noise_floor) else "not measured")


def _planes(study: Study) -> tuple[Paired, list[str]]:
    """Return mean, Var and Gini of every order side by side, and the orders."""
    parts = {name: wide_of(study.scored, name) for name in ("mean", "var", "gini_block0")}
    orders = list(parts["mean"].columns)
    wide = pd.concat([part[orders].add_prefix(f"{name}:") for name, part in parts.items()], axis=1)
    return Paired.of(wide.dropna(), study.options.resampling), orders


def variance_axis(study: Study) -> Finding:
    """Is Var more than another way to write the mean?"""
    plane, orders = _planes(study)
    every, six = _spearman(plane, orders), _spearman(plane, [o for o in _SIX if o in orders])
    pairs = _pairs(plane, orders, study.options.resampling.level)
    along = [pair.name for pair in pairs if pair.sign > 0 and pair.p < 0.05]
    against = [pair.name for pair in pairs if pair.sign < 0 and pair.p < 0.05]
    whole_six = len([order for order in _SIX if order in orders]) == len(_SIX)
    numbers = [
        Number(f"Spearman(Var, mean log q) over {len(orders)} orders", every, digits=2),
        Number(
            "Spearman over the paper's six",
            six if whole_six else _lacking(),
            paper.number("spearman_var_mean"),
            2,
        ),
        Number(
            "pairs with the higher mean and the higher Var, both clearly",
            Estimate(float(len(along))),
            "some",
            0,
        ),
        Number(
            "pairs with the higher mean and the lower Var, both clearly",
            Estimate(float(len(against))),
            "most",
            0,
        ),
        *_named_pairs(plane, orders),
    ]
    shown = ", ".join(along[:6]) + (", …" if len(along) > 6 else "")
    return Finding(
        "variance-axis",
        "Var(log q) ranks orders differently from the mean: it is an axis of its own.",
        (_clearest(pairs, 1), _clearest(pairs, -1)),
        "Section 4.2, Finding 2",
        rule="some pair of orders has the higher mean with the higher Var and some with the lower Var, so "
        "Var is no monotone function of the mean; both differences of a pair count, Holm over the pairs.",
        numbers=tuple(numbers),
        remarks=(f"Higher mean with higher Var (after Holm over the pairs): {shown}.",) if along else (),
    )


@dataclass(frozen=True, slots=True)
class _OrderPair:
    """Two orders on the plane.

    Attributes:
        name: both, the one with the higher mean first.
        var: Var of the first minus Var of the second.
        sign: 1 when the higher mean has the higher Var, −1 otherwise.
        p: of both signs together, after Holm over all pairs.
    """

    name: str
    var: Estimate
    sign: int
    p: float


def _pairs(plane: Paired, orders: list[str], level: float) -> list[_OrderPair]:
    found, p = [], []
    for a, b in itertools.combinations(orders, 2):
        mean, var = _pair(plane, a, b)
        equal = min(abs(mean.value), abs(var.value)) <= ROUNDING
        p.append(1.0 if equal else max(p_of_sign(mean, level), p_of_sign(var, level)))
        name, ahead = (f"{a}/{b}", var) if mean.value >= 0 else (f"{b}/{a}", negated(var))
        found.append(_OrderPair(name, ahead, 1 if ahead.value > 0 else -1, p[-1]))
    adjusted = adjust(p, "holm")
    return [
        _OrderPair(pair.name, pair.var, pair.sign, float(q)) for pair, q in zip(found, adjusted, strict=True)
    ]


def _clearest(pairs: list[_OrderPair], sign: int) -> Check:
    """Return the check "there is a pair of this sign", made of the pair that shows it most clearly.

    It is absent only when every pair has clearly the other sign.
    """
    words = "higher" if sign > 0 else "lower"
    if not pairs:
        return Check(
            f"a pair whose higher mean has the {words} Var", Estimate.undefined("fewer than two orders")
        )
    best = min(pairs, key=lambda pair: (pair.p if pair.sign == sign else 1.0, -sign * pair.var.value))
    missing = max(pair.p if pair.sign != sign else 1.0 for pair in pairs)
    label = f"Var of the higher mean minus the other's, clearest pair with the {words} Var ({best.name})"
    cell = best.var if sign > 0 else negated(best.var)
    return Check(
        label if sign > 0 else f"minus the {label}",
        cell,
        p=best.p if best.sign == sign else 1.0,
        p_absent=missing,
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
    return used.of_means(lambda m: stack(rank_rows(settled(m[:, :half]), settled(m[:, half:]))))[0]


def _pair(plane: Paired, a: str, b: str) -> tuple[Estimate, Estimate]:
    """Return mean and Var of ``a`` minus those of ``b``."""
    used = plane.pick(*(f"{name}:{order}" for name in ("mean", "var") for order in (a, b)))
    found = used.of_means(lambda m: stack(m[:, 0] - m[:, 1], m[:, 2] - m[:, 3]))
    return found[0], found[-1]


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


def bottlenecks(study: Study) -> Finding:
    """Do high-variance orders concentrate self-information in a few steps?"""
    plane, orders = _planes(study)
    few = Estimate.undefined("fewer than three orders")
    cell = _rank_of_means(plane, orders, "var", "gini_block0") if len(orders) > 2 else few
    label = f"Spearman(Var, Gini of block 0) over {len(orders)} orders"
    return Finding(
        "bottlenecks",
        "Orders with higher Var push the Lorenz curve farther below uniform: few steps carry most.",
        (Check(label, cell, paper="positive", digits=2),),
        "Section 4.2, Finding 2; Fig. 1b",
        rule="Spearman of Var and block-0 Gini across orders lies above 0.",
    )


def uniform_spreading(study: Study) -> Finding:
    """Is the noise that fits the argmax hits small enough for the theorem's concavity?"""
    from orderlens.theory import critical_sigma

    fit = study.shared(fitted_noise)["deployable"]
    sigma, k = fit.sigma, fit.k
    n = int(study.scored["sample_id"].nunique())
    limit = float(critical_sigma(max(k.value, 1.0))) if k.is_defined else math.nan
    why = None if math.isfinite(limit - sigma.value) else "no fit"
    gap = Estimate(limit - sigma.value, limit - sigma.high, limit - sigma.low, n, why=why)
    return Finding(
        "uniform-spreading",
        "Spreading confidence evenly maximises recoverability, so Var measures what unevenness costs.",
        (Check("σ₀ for the fitted k minus the fitted σ (deployable orders)", gap, digits=2),),
        "Section 3, Theorem 1",
        rule="the interval of the fitted σ lies below σ₀(k), where the theorem's concavity holds.",
        numbers=(
            Number("fitted σ (deployable orders)", sigma, "never estimated", 2),
            Number("fitted number of equal competitors k", k, "assumed 1", 1),
            Number("σ₀ for that k, below which log f is concave", Estimate(limit, why="no fit"), digits=3),
            Number("fitted σ when k = 1 is imposed (σ₀ = 1.053)", fit.sigma_one, digits=2),
            *_loss_numbers(study),
        ),
        remarks=(_ONLY_A_FIT,),
    )


def _loss_numbers(study: Study) -> list[Number]:
    """Return how well Var and the worst step rank the exact loss, for one order and noise scale."""
    with study.needing(("jensen",)):
        part = study.scored[study.scored["order"] == "forced-ar"]
        if not len(part):
            return []
        cells = jensen_ranks(part, 0.5)
    return [
        Number("Spearman(Var, exact Jensen loss), forced-ar, σ = 0.5", cells["rho_var"], digits=2),
        Number("Spearman(min log q, the same loss)", cells["rho_min"], digits=2),
    ]
