"""The finding on the theory's assumption that greedy successes are independent given q."""

from __future__ import annotations

from orderlens.analysis.hits import ALL, SPANS, HitNumbers, measure_hits
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.claims.checks import Check, ContextNumber
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate

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
            numbers=_numbers(found) if found else (),
            remarks=("Hit rates are those of reveals with similar q, so a misfit of f_k does not matter.",),
        )
    ]


def _numbers(found: HitNumbers) -> tuple[ContextNumber, ...]:
    """Return how far σ and k, fitted to steps, predict spans."""
    return tuple(
        ContextNumber(f"log(recovered / Π f_k(q)), spans of {span}", found.spans[span].log_excess_fitted)
        for span in SPANS
    )
