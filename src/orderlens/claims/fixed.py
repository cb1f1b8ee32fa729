"""Findings on fixed targets: chain-rule deviation, Var as a second axis, bottleneck steps, the theory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.coherence import Coherence, measure_coherence
from orderlens.analysis.frames import Paired, rank_rows, stack, wide_of
from orderlens.analysis.study import Study
from orderlens.analysis.tables_theory import fitted_noise, jensen_ranks
from orderlens.claims.checks import Check, ContextNumber, negated, p_of_sign
from orderlens.claims.judge import Finding
from orderlens.metrics.coherence import ROUNDING, tied_ranks
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import divide
from orderlens.metrics.significance import adjust

_SIX = paper.orders("fixed-sequence")
_RANGE, _SPEARMAN = (
    paper.value("coherence", "range_of_means", "all", "value"),
    paper.number("spearman_var_mean"),
)
NOISE_FACTOR = 10.0
"""A gap counts from ten times the noise floor, and never within the rounding error of an exact joint."""


_THRESHOLD = f"{NOISE_FACTOR:g} times the noise floor (and above {ROUNDING:g} nats per token)"
_NO_LIKELIHOOD = (
    "Orders that see the target do not define a distribution, so their sums of log q are not likelihoods. "
    "They do not decide this finding."
)
_ONLY_A_FIT = (
    "The fit summarises how often the target is the argmax; it does not confirm the noise model. Even below "
    "σ₀, Var need not rank traces by their exact loss."
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
    check = Check(label, _if_measured(decisive.value, found), _threshold(found), p=p, digits=4)
    gamma = found.circulation[0].median_abs
    return Finding(
        "chain-rule",
        "Changing only the reveal order changes log P/n, the log-probability per token of fixed texts.",
        (check,),
        "Section 4.2, Finding 1",
        rule="a permutation test within texts shows that orders differ on average; the whole interval of "
        f"range_of_means over deployable orders lies above {_THRESHOLD}.",
        numbers=(
            ContextNumber(
                "p of the hypothesis that orders agree (permuted within texts)",
                Estimate(p, why="no test"),
                digits=4,
            ),
            ContextNumber("range_of_means, all orders (nats/token)", everything.value, _RANGE, 4),
            ContextNumber("mean_of_ranges, all orders", found.find("mean_of_ranges", "all").value, digits=4),
            ContextNumber("noise floor (nats/token)", _floor(found), "not given", 4),
            ContextNumber("median |Γ| of adjacent swaps (nats)", gamma, digits=4),
        ),
        remarks=(_NO_LIKELIHOOD,),
    )


def chain_rule_per_text(study: Study) -> Finding:
    """Does log P/n of single texts depend on the order, in either direction, by more than rounding?"""
    found = study.shared(measure_coherence)
    cell = _if_measured(found.find("mean_of_ranges", "deployable").value, found)
    spread = found.find("dispersion", "random").value
    return Finding(
        "chain-rule-per-text",
        "For single texts, log P/n depends on the reveal order: the model has no single joint distribution.",
        (Check("mean_of_ranges, deployable orders (nats/token)", cell, _threshold(found), digits=4),),
        "ours, from the chain rule",
        rule=f"the mean over texts of max − min over deployable orders lies above {_THRESHOLD}.",
        numbers=(
            ContextNumber("dispersion over random orders (nats/token)", spread, digits=4),
            ContextNumber("noise floor (nats/token)", _floor(found), digits=4),
        ),
        remarks=("Changes of single texts may cancel on average; the finding chain-rule tests the average.",),
    )


def _threshold(found: Coherence) -> float:
    """Return the threshold that a deviation must exceed (nats per token)."""
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
    """Does Var rank orders differently from the mean?"""
    plane, orders = _planes(study)
    every, six = _spearman(plane, orders), _spearman(plane, [o for o in _SIX if o in orders])
    pairs = _pairs(plane, orders, study.options.resampling.level)
    along = [pair.name for pair in pairs if pair.sign > 0 and pair.p < 0.05]
    against = [pair.name for pair in pairs if pair.sign < 0 and pair.p < 0.05]
    whole_six = len([order for order in _SIX if order in orders]) == len(_SIX)
    numbers = [
        ContextNumber(f"Spearman(Var, mean log q) over {len(orders)} orders", every, digits=2),
        ContextNumber(
            "Spearman(Var, mean log q) over the paper's six orders",
            six if whole_six else _lacking(),
            paper.number("spearman_var_mean"),
            2,
        ),
        ContextNumber(
            "pairs in which the higher mean has the higher Var (both significant)",
            Estimate(float(len(along))),
            "some",
            0,
        ),
        ContextNumber(
            "pairs in which the higher mean has the lower Var (both significant)",
            Estimate(float(len(against))),
            "most",
            0,
        ),
        *_named_pairs(plane, orders),
    ]
    shown = ", ".join(along[:6]) + (", …" if len(along) > 6 else "")
    return Finding(
        "variance-axis",
        "Var(log q) ranks orders differently from the mean: it is a second axis.",
        (_clearest(pairs, 1), _clearest(pairs, -1)),
        "Section 4.2, Finding 2",
        rule="in one pair of orders the higher mean has the higher Var, in another the lower Var, so Var is "
        "not a monotone function of the mean; both differences must be significant (Holm over pairs).",
        numbers=tuple(numbers),
        remarks=(f"Higher mean with higher Var (after Holm over the pairs): {shown}.",) if along else (),
    )


@dataclass(frozen=True, slots=True)
class _OrderPair:
    """Two orders, compared by mean and Var.

    Attributes:
        name: both, the one with the higher mean first.
        var: Var of the first minus Var of the second.
        sign: 1 when the higher mean has the higher Var, −1 otherwise.
        p: p-value of both signs jointly, after Holm over all pairs.
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
        name, difference = (f"{a}/{b}", var) if mean.value >= 0 else (f"{b}/{a}", negated(var))
        found.append(_OrderPair(name, difference, 1 if difference.value > 0 else -1, p[-1]))
    adjusted = adjust(p, "holm")
    return [
        _OrderPair(pair.name, pair.var, pair.sign, float(q)) for pair, q in zip(found, adjusted, strict=True)
    ]


def _clearest(pairs: list[_OrderPair], sign: int) -> Check:
    """Return the check "there is a pair of this sign", using the pair with the clearest evidence.

    The claim is absent only if every pair clearly has the other sign.
    """
    words = "higher" if sign > 0 else "lower"
    if not pairs:
        return Check(
            f"a pair in which the higher mean has the {words} Var",
            Estimate.undefined("fewer than two orders"),
        )
    best = min(pairs, key=lambda pair: (pair.p if pair.sign == sign else 1.0, -sign * pair.var.value))
    missing = max(pair.p if pair.sign != sign else 1.0 for pair in pairs)
    first, second = ("higher", "lower") if sign > 0 else ("lower", "higher")
    return Check(
        f"Var at the {first} mean − Var at the {second} mean, clearest pair ({best.name})",
        best.var if sign > 0 else negated(best.var),
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
    return used.of_means(lambda m: stack(rank_rows(tied_ranks(m[:, :half]), tied_ranks(m[:, half:]))))[0]


def _pair(plane: Paired, a: str, b: str) -> tuple[Estimate, Estimate]:
    """Return mean and Var of ``a`` minus those of ``b``."""
    used = plane.pick(*(f"{name}:{order}" for name in ("mean", "var") for order in (a, b)))
    found = used.of_means(lambda m: stack(m[:, 0] - m[:, 1], m[:, 2] - m[:, 3]))
    return found[0], found[-1]


def _named_pairs(plane: Paired, orders: list[str]) -> list[ContextNumber]:
    """Return the numbers of the two pairs that the paper names."""
    numbers = []
    if {"forced-ar", "oracle-max-q"} <= set(orders):
        mean, _ = _pair(plane, "oracle-max-q", "forced-ar")
        numbers.append(ContextNumber("oracle-max-q − forced-ar, mean log q", mean, "about 0"))
        numbers.append(ContextNumber("their Var, larger ÷ smaller", _var_ratio(plane), "about 2", 2))
    if {"random", "reverse-ar"} <= set(orders):
        mean, var = _pair(plane, "random", "reverse-ar")
        numbers.append(ContextNumber("random − reverse-ar, mean log q", mean, "same sign as Var's"))
        numbers.append(ContextNumber("random − reverse-ar, Var", var, "same sign as the mean's"))
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
        "Orders with higher Var concentrate self-information in fewer steps: their Lorenz curves lie lower.",
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
        "The theorem applies: at the fitted noise, evenly spread confidence maximises recoverability.",
        (Check("σ₀ for the fitted k minus the fitted σ (deployable orders)", gap, digits=2),),
        "Section 3, Theorem 1",
        rule="the interval of the fitted σ lies below σ₀(k), where the theorem's concavity holds.",
        numbers=(
            ContextNumber("fitted σ (deployable orders)", sigma, "never estimated", 2),
            ContextNumber("fitted number of equal competitors k", k, "assumed 1", 1),
            ContextNumber(
                "σ₀ for that k, below which log f is concave", Estimate(limit, why="no fit"), digits=3
            ),
            ContextNumber("fitted σ when k = 1 is imposed (σ₀ = 1.053)", fit.sigma_one, digits=2),
            *_loss_numbers(study),
        ),
        remarks=(_ONLY_A_FIT,),
    )


def _loss_numbers(study: Study) -> list[ContextNumber]:
    """Return how well Var and the worst step rank the exact loss, for one order and noise scale."""
    with study.needing(("jensen",)):
        part = study.scored[study.scored["order"] == "forced-ar"]
        if not len(part):
            return []
        cells = jensen_ranks(part, 0.5)
    return [
        ContextNumber("Spearman(Var, exact Jensen loss), forced-ar, σ = 0.5", cells["rho_var"], digits=2),
        ContextNumber(
            "Spearman(min log q, exact Jensen loss), forced-ar, σ = 0.5", cells["rho_min"], digits=2
        ),
    ]
