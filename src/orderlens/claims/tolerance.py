"""The paper's reading of its sweep: the margin that even confidence gives against noise grows with the noise.

The theory's predicted loss of the measured profiles is compared across orders at two temperatures. Perplexity
plays no part; ``claims.sweep`` judges the observed spread.
"""

from __future__ import annotations

import numpy as np

from orderlens.analysis.compare import Paired, stack
from orderlens.analysis.study import Study
from orderlens.analysis.tolerance import lowest_losses
from orderlens.claims.checks import Check, ContextNumber
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate
from orderlens.metrics.segments import FloatArray

SMALL_NATS = 0.005
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
            (Check(label, growth, margin=SMALL_NATS),),
            "Appendix C, Q2",
            rule=f"the range across orders at T = {top:g} exceeds that at T = {first:g}; up to "
            f"{SMALL_NATS:g} nats per token is too small to count.",
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
