"""Claims that only all orders of a span can decide: near-optimal rules, left to right, least Var."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from orderlens.analysis.study import Study
from orderlens.analysis.tables_census import COHERENT, SAMPLED, census_frames
from orderlens.claims.checks import Check, ContextNumber
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Clusters, Estimate, means

CONFIDENCE = ("max-prob", "top-margin", "entropy")
NEAR = 0.9
"""A rule is near-optimal if it goes this much of the way from the mean order to the best; an order is among
the likeliest if this share of all orders has a lower log P."""
SMALL_NATS = 0.005
"""Nats per token that are too small to count."""
FEW = 8
"""Sampled orders whose range is judged."""
SMALL_SHARE = 0.1
"""Part of the true range that is too small to count."""


def census_findings(study: Study) -> list[Finding]:
    """Return the claims that the censuses of the study can decide."""
    frames = study.shared(census_frames)
    rules, spans = frames.rules, frames.spans
    greedy = [order for order in CONFIDENCE if (rules["order"] == order).any()]
    found = [_near_optimal(study, rules, greedy), _left_to_right(study, rules), _least_var(study, spans)]
    return [finding for finding in [*found, _understated(study, spans)] if finding.checks]


def _near_optimal(study: Study, rules: pd.DataFrame, greedy: Sequence[str]) -> Finding:
    return Finding(
        "greedy-near-optimal",
        "Greedy confidence orders are near-optimal for the likelihood.",
        tuple(
            Check(
                "share of the way from the mean order to the best",
                _mean(study, rules[rules["order"] == order], "of_best"),
                above=NEAR,
                where=order,
            )
            for order in greedy
        ),
        "ours",
        rule=f"(log P − mean of all orders) / (best − mean) is above {NEAR:g}.",
        numbers=tuple(
            ContextNumber(f"{order}: {text}", _mean(study, rules[rules["order"] == order], name))
            for order in greedy
            for name, text in (
                ("share_worse", "share of orders below"),
                ("regret_each", "regret (nats/token)"),
            )
        ),
    )


def _left_to_right(study: Study, rules: pd.DataFrame) -> Finding:
    part = rules[rules["order"] == "forced-ar"]
    checks = [
        Check(
            "log P − mean of all orders (nats/token)",
            _mean(study, part, "gain_each"),
            margin=SMALL_NATS,
            digits=4,
        )
    ]
    return Finding(
        "left-to-right-beats-random",
        "Left to right is better than a random order.",
        tuple(checks if len(part) else ()),
        "ours",
        rule=f"log P left to right minus the mean over all orders; up to {SMALL_NATS:g} is too small.",
        numbers=(ContextNumber("share of orders below", _mean(study, part, "share_worse")),)
        if len(part)
        else (),
    )


def _least_var(study: Study, spans: pd.DataFrame) -> Finding:
    return Finding(
        "least-var-is-likely",
        "The order of least Var is among the likeliest.",
        (Check("share of orders below it", _mean(study, spans, "least_var_rank"), above=NEAR),),
        "ours",
        rule=f"on average more than {NEAR:g} of all orders have a lower log P than the order of least Var.",
        numbers=(
            ContextNumber("least Var (nats²)", _mean(study, spans, "var_least")),
            ContextNumber("Var of the likeliest order (nats²)", _mean(study, spans, "var_best")),
        ),
    )


def _understated(study: Study, spans: pd.DataFrame) -> Finding:
    label = f"part of the range that {FEW} random orders miss"
    return Finding(
        "few-orders-understate-range",
        "The gap between a few sampled orders understates the range over all orders.",
        (Check(label, _mean(study, spans, f"missed_{FEW}"), above=SMALL_SHARE),),
        "ours",
        rule=f"1 − expected range of {FEW} random orders / range of all; up to {SMALL_SHARE:g} is too small.",
        numbers=(
            ContextNumber("range of all orders (nats/token)", _mean(study, spans, "range_each")),
            *(
                ContextNumber(f"part missed by {count} orders", _mean(study, spans, f"missed_{count}"))
                for count in SAMPLED
            ),
            *(
                ContextNumber(
                    f"range extrapolated from {count} orders / range of all",
                    _mean(study, spans, f"implied_{count}"),
                )
                for count in SAMPLED
            ),
        ),
    )


def _mean(study: Study, frame: pd.DataFrame, column: str) -> Estimate:
    if not len(frame):
        return Estimate.undefined("no such trace")
    clusters = Clusters(frame["text"], study.options.resampling)
    return means(frame[[column]].to_numpy(np.float64), clusters, COHERENT)[0]
