"""Target-aware orders: diagnostics only, since they need the text they are scoring."""

from __future__ import annotations

import numpy as np

from orderlens.rules.orders.protocol import Card, OracleOrder, Scores
from orderlens.rules.stats import TargetStats
from orderlens.rules.view import StepView


class OracleMaxQ(OracleOrder):
    """Largest probability of the target token."""

    id = "oracle-max-q"
    summary = "target token most probable first (needs the target)"
    card = Card("Oracle max-q", "target-aware", 6, "P")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return log p(x*), which orders like p(x*)."""
        return view.stats.target_logprob


class OracleMargin(OracleOrder):
    """Largest gap between the target and its strongest competitor."""

    id = "oracle-margin"
    summary = "target beats its best competitor most clearly first (needs the target)"
    card = Card("Oracle margin", "target-aware", 7, "h")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return p(x*) − max over other tokens."""
        return np.exp(view.stats.target_logprob) - np.exp(view.stats.competitor_logprob)


class OracleMinQ(OracleOrder):
    """Smallest probability of the target token."""

    id = "oracle-min-q"
    summary = "target token least probable first (needs the target)"
    card = Card("Oracle min-q", "target-aware", 8, "*")

    def scores(self, view: StepView[TargetStats]) -> Scores:
        """Return −log p(x*)."""
        return -view.stats.target_logprob
