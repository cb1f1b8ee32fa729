"""Findings on sampling temperature: greedy is best, Var grows, max-prob is the most stable order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orderlens.analysis import paper
from orderlens.analysis.frames import Paired, stack, wide_of
from orderlens.analysis.study import Study
from orderlens.claims.checks import Check, ContextNumber
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray, divide

ORDERS = paper.orders("decoding")
VARIANT = "max-prob:select=argmax"
COLLAPSED_PPL, HIGH_TEMPERATURE = paper.number("collapsed_ppl"), paper.number("high_temperature")
NO_PPL = "external perplexity was not measured"


_TWO_RULES = (
    "By default max-prob compares sampled tokens. This favours likely samples and thereby lowers the "
    "effective temperature. The argmax rule chooses the position first and then samples its token."
)


class Sweep:
    """Median external perplexity and means of statistics by order and temperature, resampled by prompt."""

    def __init__(self, study: Study) -> None:
        frame = study.generated
        self.n = int(frame["sample_id"].nunique())
        self.temperatures = sorted(float(value) for value in frame["temperature"].unique())
        self.warm = [value for value in self.temperatures if value > 0]
        self.measured = study.external is not None
        keys, resampling = ("order", "temperature"), study.options.resampling
        self.var = Paired.of(wide_of(frame, "var", keys), resampling)
        self.distinct = Paired.of(wide_of(frame, "distinct_3", keys), resampling)
        self.content_mean = Paired.of(wide_of(frame, "content_mean", keys), resampling)
        self.eos = Paired.of(wide_of(frame, "eos_fraction", keys), resampling)
        if study.external is not None:
            scored = frame.assign(ppl=np.exp(study.external["nll_whole"].reindex(frame.index)))
            self.ppl = Paired.of(wide_of(scored, "ppl", keys), resampling)

    def orders(self, table: Paired, temperature: float) -> list[str]:
        """Return the orders that have values at T = 0 and at ``temperature``."""
        wanted = (*ORDERS, VARIANT)
        return [o for o in wanted if table.has(cell(_greedy(o), 0.0), cell(o, temperature))]

    def near_one(self) -> float:
        """Return the temperature nearest to 1, where the paper compares orders."""
        return min(self.warm, key=lambda value: abs(value - 1.0), default=float("nan"))

    def median(self, order: str, temperature: float) -> Estimate:
        """Return the median external perplexity."""
        if not self.measured or not self.ppl.has(cell(order, temperature)):
            return Estimate.undefined(NO_PPL if not self.measured else "not generated")
        return self.ppl.pick(cell(order, temperature)).of_medians(lambda m: m)[0]


def _printed(order: str, temperature: float, column: str) -> float | str | None:
    """Return what the paper prints of an order at a temperature, if anything."""
    return paper.printed("temperature").get((order, f"{temperature:g}", column))


def cell(order: str, temperature: float) -> str:
    """Return the column of an order at a temperature."""
    return f"{order}@{temperature:g}"


def _greedy(order: str) -> str:
    return "max-prob" if order == VARIANT else order  # at T = 0 both selection rules are the same


def sweep_findings(study: Study) -> list[Finding]:
    """Return the findings that need a temperature sweep."""
    sweep = Sweep(study)
    return [
        greedy_lowest(sweep),
        var_grows(sweep),
        max_prob_stable(sweep),
        spread_grows(sweep),
        high_temperature(sweep),
    ]


def greedy_lowest(sweep: Sweep) -> Finding:
    """Is T = 0 the lowest point of every order's perplexity curve?"""
    checks = tuple(
        Check(
            f"lowest median external PPL at T > 0 minus that at T = 0, {order}",
            _over_greedy(sweep, order),
            paper="above 0",
            digits=2,
        )
        for order in ORDERS
    )
    numbers = [
        ContextNumber(
            f"median external PPL at T = 0, {order}",
            sweep.median(order, 0.0),
            _printed(order, 0.0, "external_ppl_whole"),
            2,
        )
        for order in ORDERS
    ]
    for value in (0.0, sweep.near_one()) if sweep.warm else ():
        distinct = sweep.distinct.mean(cell("max-prob", value))
        numbers.append(ContextNumber(f"Distinct-3 of max-prob at T = {value:g}", distinct))
    return Finding(
        "greedy-lowest",
        "For every order, greedy decoding has the lowest external perplexity.",
        checks,
        "Appendix C, Q1",
        rule="for each order, the lowest median at T > 0 exceeds the median at T = 0.",
        numbers=tuple(numbers),
        remarks=("Repetitive text also has low perplexity: compare with Distinct-3.",),
    )


def _over_greedy(sweep: Sweep, order: str) -> Estimate:
    if not sweep.measured:
        return Estimate.undefined(NO_PPL)
    used = _from_greedy(sweep, sweep.ppl, order)
    if used is None:
        return Estimate.undefined("not generated at T = 0 and above")
    return used.of_medians(lambda m: stack(m[:, 1:].min(axis=1) - m[:, 0]))[0]


def _from_greedy(sweep: Sweep, table: Paired, order: str) -> Paired | None:
    """Return one order's columns, T = 0 first; None if there is nothing to compare."""
    warm = [cell(order, value) for value in sweep.warm if table.has(cell(order, value))]
    return table.pick(cell(order, 0.0), *warm) if warm and table.has(cell(order, 0.0)) else None


def var_grows(sweep: Sweep) -> Finding:
    """Does Var rise with temperature for every order?"""
    checks, numbers, steps = [], [], 0
    top = sweep.near_one()
    for order in ORDERS:
        rise = _var_rise(sweep, order)
        checks.append(Check(f"smallest rise of Var from T = 0, {order}", rise, paper="above 0"))
        values = [sweep.var.mean(cell(order, value)).value for value in sweep.temperatures]
        steps += int(np.sum(np.diff(values) <= 0))
        at_top, theirs = sweep.var.mean(cell(order, top)), _printed(order, top, "var")
        numbers.append(ContextNumber(f"Var at T = {top:g}, {order}", at_top, theirs))
    return Finding(
        "var-grows",
        "For every order, Var(log q) is smallest under greedy decoding.",
        tuple(checks),
        "Appendix C, Q1",
        rule="for each order, Var at every T > 0 exceeds Var at T = 0.",
        numbers=tuple(numbers),
        remarks=(
            "The paper also says that Var rises at every step of temperature; this is not judged.",
            f"Steps between neighbouring temperatures at which Var does not rise: {steps}.",
        ),
    )


def _var_rise(sweep: Sweep, order: str) -> Estimate:
    used = _from_greedy(sweep, sweep.var, order)
    if used is None:
        return Estimate.undefined("not generated at T = 0 and above")
    return used.of_means(lambda m: stack(m[:, 1:].min(axis=1) - m[:, 0]))[0]


def max_prob_stable(sweep: Sweep) -> Finding:
    """Does max-prob change least between greedy and T near 1, under either selection rule?"""
    top = sweep.near_one()
    at_one = top == 1
    checks = (
        Check(
            f"rise of log median PPL to T = {top:g}: smallest other − max-prob",
            _lead(sweep, "max-prob", top, "ppl"),
            paper=paper.number("log_ppl_rise_lead") if at_one else None,
        ),
        Check(
            f"Var at T = {top:g}: smallest other − max-prob",
            _lead(sweep, "max-prob", top, "var"),
            paper=paper.number("var_lead_at_1") if at_one else None,
        ),
    )
    name = f"median external PPL at T = {top:g}"
    numbers = (
        ContextNumber("the first with the argmax rule", _lead(sweep, VARIANT, top, "ppl")),
        ContextNumber("the second with the argmax rule", _lead(sweep, VARIANT, top, "var")),
        *(
            ContextNumber(
                f"{name}, {order}", sweep.median(order, top), _printed(order, top, "external_ppl_whole"), 1
            )
            for order in (*ORDERS, VARIANT)
        ),
    )
    return Finding(
        "max-prob-stable",
        "Under sampling, max-prob changes least: its perplexity rises most slowly and its Var stays lowest.",
        checks,
        "Appendix C, Q2",
        rule="max-prob's rise of log perplexity and its Var lie below those of every other order.",
        numbers=numbers,
        remarks=(_TWO_RULES,),
    )


def _lead(sweep: Sweep, order: str, top: float, kind: str) -> Estimate:
    """Return how far ``order`` lies below the nearest of the other orders (the other rule left out)."""
    if kind == "ppl" and not sweep.measured:
        return Estimate.undefined(NO_PPL)
    table = sweep.ppl if kind == "ppl" else sweep.var
    known = sweep.orders(table, top)
    others = [name for name in known if name not in ("max-prob", VARIANT)]
    if order not in known or not others:
        return Estimate.undefined("not generated at both temperatures")
    both = (order, *others)
    used = table.pick(*(cell(name, top) for name in both), *(cell(_greedy(name), 0.0) for name in both))

    def rise(m: FloatArray) -> FloatArray:
        hot, cold = m[:, : len(both)], m[:, len(both) :]
        values = np.log(hot / cold) if kind == "ppl" else hot
        return stack(values[:, 1:].min(axis=1) - values[:, 0])

    return (used.of_medians if kind == "ppl" else used.of_means)(rise)[0]


def spread_grows(sweep: Sweep) -> Finding:
    """Does the difference between orders grow with temperature?"""
    top = sweep.near_one()
    theirs = {t: paper.number(f"ppl_spread_{t:g}") for t in (0.0, 0.3, 0.7, 1.0)}
    shown = [value for value in sweep.temperatures if value <= 1.0]
    growth = _spread(sweep, [0.0, top])
    label = f"log of spread at T = {top:g} ÷ spread at T = 0"
    return Finding(
        "spread-grows",
        "The spread of external perplexity across orders grows from greedy to moderate sampling.",
        (Check(label, growth, paper=paper.number("log_spread_growth") if top == 1 else None, digits=2),),
        "Appendix C, Q2",
        rule=f"the log of the spread at T = {top:g} over the spread at T = 0 lies above 0.",
        numbers=tuple(
            ContextNumber(f"spread of median PPL at T = {t:g}", _spread(sweep, [t]), theirs.get(t), 2)
            for t in shown
        ),
    )


def _spread(sweep: Sweep, temperatures: Sequence[float]) -> Estimate:
    """Return the range across the four orders at one temperature, or the log ratio of two ranges."""
    if not sweep.measured:
        return Estimate.undefined(NO_PPL)
    names = [cell(order, value) for value in temperatures for order in ORDERS]
    if not sweep.ppl.has(*names):
        return Estimate.undefined("not all four orders were generated")

    def statistic(m: FloatArray) -> FloatArray:
        first, last = np.ptp(m[:, : len(ORDERS)], axis=1), np.ptp(m[:, -len(ORDERS) :], axis=1)
        return stack(first if len(temperatures) == 1 else np.log(divide(last, first)))

    return sweep.ppl.pick(*names).of_medians(statistic)[0]


def high_temperature(sweep: Sweep) -> Finding:
    """Do all orders collapse at T ≥ 1.3?"""
    hot = [value for value in sweep.warm if value >= HIGH_TEMPERATURE]
    name = "median external PPL at T"
    checks = [
        Check(
            f"{name} = {value:g}, {order}",
            sweep.median(order, value),
            above=COLLAPSED_PPL,
            paper="above 1000",
            digits=0,
        )
        for value in hot
        for order in ORDERS
    ]
    none = Check(f"{name} ≥ {HIGH_TEMPERATURE:g}", Estimate.undefined("no such temperature in this run"))
    return Finding(
        "high-temperature",
        "From T = 1.3 on, every order collapses: median external perplexity exceeds 1,000.",
        tuple(checks) or (none,),
        "Appendix C, high-temperature regime",
        rule="at every T ≥ 1.3 the median of every order exceeds 1,000.",
        numbers=tuple(
            ContextNumber(f"{what} at T = {hot[0]:g}, {order}", table.mean(cell(order, hot[0])), theirs)
            for what, table, theirs in (
                ("content mean log q", sweep.content_mean, "below −12"),
                ("EOS fraction", sweep.eos, "nearly 0"),
            )
            for order in ORDERS[: len(ORDERS) * bool(hot)]
        ),
        remarks=("The threshold was set for GPT-2 Large; other evaluators have other scales.",),
    )
