"""The paper's explanation of confidence-first paths: the position next to revealed text is the surest."""

from __future__ import annotations

from orderlens.analysis.locality import shown_traces
from orderlens.analysis.states import RIVALS
from orderlens.analysis.study import Study
from orderlens.claims.checks import Check
from orderlens.claims.judge import Finding

SMALL_NATS = 0.01
"""Differences of entropy up to this are too small to count."""
_RANGE = {"2": "distance 2", "3": "distances from 3 on"}


def locality_findings(study: Study) -> list[Finding]:
    """Return the findings on falls of entropy and on entropy, by order, from the kept states."""
    frame = shown_traces(study)

    def checks(name: str, label: str) -> tuple[Check, ...]:
        out = []
        for order in study.orders(frame):
            part = frame[frame["order"] == order]
            found = study.estimates(part, [f"{name}_lead_{rival}" for rival in RIVALS])
            for rival, cell in zip(RIVALS, found, strict=True):
                out.append(Check(label.format(_RANGE[rival]), cell, margin=SMALL_NATS, where=order))
        return tuple(out)

    small = f"in the same passes; up to {SMALL_NATS:g} nats is too small to count."
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
