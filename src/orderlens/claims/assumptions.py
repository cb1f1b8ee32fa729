"""Findings on what the paper assumes or explains without testing it.

Are greedy successes independent given q? Is the position next to revealed text the surest? Does the margin
that even confidence gives against noise grow with the noise? The last one compares the theory's predicted
loss of the measured profiles at two temperatures; ``claims.sweep`` judges the observed perplexity.
"""

from __future__ import annotations

import numpy as np

from orderlens.analysis.frames import Paired, stack
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.tables_assumptions import (
    ALL,
    SPANS,
    HitNumbers,
    lowest_losses,
    measure_hits,
    shown_traces,
    state_means,
)
from orderlens.analysis.traces import RIVALS
from orderlens.claims.checks import Check, ContextNumber
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray

SMALL_CORRELATION, SMALL_LOG_RATIO = 0.05, 0.1
"""Correlations and log ratios up to these sizes count as none."""
DECISIVE_SPAN = 8


def independence_findings(study: Study) -> list[Finding]:
    """Return the finding, from scored traces of deployable orders."""
    found = study.shared(measure_hits).get(ALL)
    missing = Estimate.undefined(NO_TARGET)
    lag = found.lags[1] if found else missing
    excess = found.spans[DECISIVE_SPAN].log_excess if found else missing
    return [
        Finding(
            "independent-successes",
            "Given q, the greedy successes of a trace are independent, as the theory assumes.",
            (
                Check("autocorrelation of hits, lag 1", lag, -SMALL_CORRELATION, SMALL_CORRELATION),
                Check(
                    f"log(recovered / Π hit rate), spans of {DECISIVE_SPAN}",
                    excess,
                    -SMALL_LOG_RATIO,
                    SMALL_LOG_RATIO,
                ),
            ),
            "Section 3, the theory's assumption",
            rule=f"the correlation lies within ±{SMALL_CORRELATION:g} and the log ratio within "
            f"±{SMALL_LOG_RATIO:g}.",
            numbers=_span_numbers(found) if found else (),
            remarks=("Hit rates are those of reveals with similar q, so a misfit of f_k does not matter.",),
        )
    ]


def _span_numbers(found: HitNumbers) -> tuple[ContextNumber, ...]:
    """Return how far σ and k, fitted to steps, predict spans."""
    return tuple(
        ContextNumber(f"log(recovered / Π f_k(q)), spans of {span}", found.spans[span].log_excess_fitted)
        for span in SPANS
    )


SMALL_ENTROPY = 0.01
"""Differences of entropy up to this are too small to count."""
_RANGE = {"2": "distance 2", "3": "distances from 3 on"}


def locality_findings(study: Study) -> list[Finding]:
    """Return the findings on falls of entropy and on entropy, by order, from the kept states."""
    frame = shown_traces(study)

    def checks(name: str, label: str) -> tuple[Check, ...]:
        out = []
        for order in study.orders(frame):
            part = frame[frame["order"] == order]
            found = state_means(study, part, [f"{name}_lead_{rival}" for rival in RIVALS])
            for rival, cell in zip(RIVALS, found, strict=True):
                out.append(Check(label.format(_RANGE[rival]), cell, margin=SMALL_ENTROPY, where=order))
        return tuple(out)

    small = f"in the same passes; up to {SMALL_ENTROPY:g} nats is too small to count."
    return [
        Finding(
            "neighbours-learn-most",
            "A revealed token lowers the entropy of the positions next to it most.",
            checks("fall", "fall of entropy at distance 1 − at {} (nats)"),
            "Section 4.3, Finding 1",
            rule=f"the fall at distance 1 exceeds that at distance 2 and that from 3 on, {small}",
            remarks=(
                "The fall estimates mutual information; it is exact only for a coherent model's texts.",
            ),
        ),
        Finding(
            "neighbours-are-surest",
            "The masked positions next to revealed text have the lowest entropy.",
            checks("entropy", "entropy at {} − at distance 1 (nats)"),
            "Section 4.3, Finding 1",
            rule=f"entropy at distance 2 and from 3 on exceeds that at distance 1, {small}",
        ),
    ]


SMALL_LOSS = 0.005
"""Differences of predicted loss per token up to this are too small to count."""


def tolerance_findings(study: Study) -> list[Finding]:
    """Return the finding, from the profiles at the lowest temperature of a sweep."""
    losses = lowest_losses(study)
    warm = sorted({float(name.rpartition("@")[2]) for name in losses.columns})
    top = min(warm, key=lambda value: abs(value - 1.0))
    first = warm[0]
    growth = _spread(losses, (top, first)) if top > first else Estimate.undefined("one temperature above 0")
    label = f"spread of the predicted loss, T = {top:g} − T = {first:g} (nats/token)"
    return [
        Finding(
            "tolerance-grows",
            "The theory's predicted loss separates the orders more as the temperature rises.",
            (Check(label, growth, margin=SMALL_LOSS),),
            "Appendix C, Q2",
            rule=f"the range across orders at T = {top:g} exceeds that at T = {first:g}; up to "
            f"{SMALL_LOSS:g} nats per token is too small to count.",
            numbers=tuple(
                ContextNumber(
                    f"predicted spread across orders at T = {value:g} (nats/token)", _spread(losses, (value,))
                )
                for value in warm
            ),
            remarks=(
                "The noise at T is σ = T π/√6; the profiles are those at the lowest temperature.",
                "Noise lowers the predicted success of a token with q > ½ and raises that of one with q < ½.",
            ),
        )
    ]


def _spread(losses: Paired, temperatures: tuple[float, ...]) -> Estimate:
    """Return the range of the mean loss across orders at one temperature, or the first minus the second."""
    orders = list(dict.fromkeys(name.rpartition("@")[0] for name in losses.columns))
    orders = [name for name in orders if losses.has(*(f"{name}@{value:g}" for value in temperatures))]
    if len(orders) < 2:
        return Estimate.undefined("fewer than two orders were generated")
    names = [f"{order}@{value:g}" for value in temperatures for order in orders]

    def statistic(m: FloatArray) -> FloatArray:
        ranges = [np.ptp(part, axis=1) for part in np.split(m, len(temperatures), axis=1)]
        return stack(ranges[0] - ranges[1] if len(ranges) > 1 else ranges[0])

    return losses.pick(*names).of_means(statistic)[0]
