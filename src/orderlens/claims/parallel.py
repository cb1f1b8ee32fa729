"""Claims about committing several tokens per pass: what it costs, why, and what adaptive rules win."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from orderlens.analysis.compare import Paired, wide_of
from orderlens.analysis.frontier import ACCURACY, BITS, EXTERNAL, FrontierPoint, Measure, ladder_of, measures
from orderlens.analysis.study import Study
from orderlens.analysis.tables_couplings import coupled_traces
from orderlens.claims.checks import Check
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.rules.cards import base_name

SMALL_NATS, SMALL_BITS, SMALL_POINTS = 0.005, 0.005, 1.0
"""Too small to count: nats per token, bits per byte (and nats per evaluator token), percentage points."""
HARDLY = 1.01
"""Tokens per pass up to which a rule commits hardly anything together: it is the ladder's first rung."""
SMALL_VAR = 0.01
"""Nats²."""


def parallel_findings(study: Study) -> list[Finding]:
    """Return the claims that the runs can speak about; a run without sets says nothing."""
    found = measures(study)
    out = [*_on_fixed_texts(study), *_gains(found, study.options.resampling)]
    return [finding for finding in out if finding.checks]


def _on_fixed_texts(study: Study) -> Iterator[Finding]:
    frame = study.scored
    ladder = ladder_of(study.orders(frame))
    if not ladder:
        return
    alone, sets = ladder[0], ladder[1:]
    how = study.options.resampling
    mean, var = (Paired.of(wide_of(frame, name), how) for name in ("mean", "var"))
    yield Finding(
        "sets-cost-likelihood",
        "Committing several tokens per pass costs likelihood, the order being the same.",
        tuple(
            Check("loss (nats/token)", mean.difference(alone, rung), margin=SMALL_NATS, digits=4, where=rung)
            for rung in sets
        ),
        "ours",
        rule=f"one token per pass minus K tokens per pass, mean log q; up to {SMALL_NATS:g} is too small.",
    )
    yield Finding(
        "var-falls-with-sets",
        "Larger sets have the lower Var over tokens, although they cost likelihood: Var misleads here.",
        tuple(
            Check("Var one by one − Var (nats²)", var.difference(alone, rung), margin=SMALL_VAR, where=rung)
            for rung in sets
        ),
        "ours",
        rule=f"Var of one token per pass minus Var of K; up to {SMALL_VAR:g} nats² is too small.",
    )
    yield Finding(
        "loss-is-coupling",
        "Most of what sets cost is coupling: what tokens committed together know of each other.",
        tuple(_share(study, alone, rung, how) for rung in sets),
        "ours",
        rule="coupling minus half of the loss lies above 0: it is more than half of the loss.",
    )


def _share(study: Study, alone: str, rung: str, how: Resampling) -> Check:
    """Return coupling per token minus half of the loss, text by text."""
    known = study.shared(coupled_traces)
    each = wide_of(known.assign(each=known["coupling"] / known["n"]), "each")
    mean = wide_of(known, "mean")
    label = "coupling − ½ loss (nats/token)"
    if rung not in each.columns:
        why = "no couplings were measured: score with --couplings N"
        return Check(label, Estimate.undefined(why), digits=4, where=rung)
    difference = each[rung] - (mean[alone] - mean[rung]) / 2
    paired = Paired.of(pd.DataFrame({"more": difference.dropna()}), how)
    return Check(label, paired.mean("more"), digits=4, where=rung)


def _gains(found: Sequence[Measure], how: Resampling) -> Iterator[Finding]:
    """Do rules that decide how many to commit beat even sets of the same order at equal passes?"""
    kinds = (
        (BITS, "likelihood", "saved (bits/byte)", SMALL_BITS, 4),
        (EXTERNAL, "external likelihood", "saved (nats/token)", SMALL_BITS, 4),
        (ACCURACY, "accuracy", "won (pp)", SMALL_POINTS, 2),
    )
    for start, what, label, margin, digits in kinds:
        for measure in found:
            if not measure.name.startswith(start):
                continue
            checks = [
                Check(f"{label} at equal passes", point.gain, margin=margin, digits=digits, where=point.order)
                for point in measure.points(how)
                if _is_rival(point, ladder_of(measure.orders))
            ]
            yield Finding(
                f"adaptive-{what.replace(' ', '-')}",
                f"At equal passes, rules that choose their sets have better {what} than even sets.",
                tuple(checks),
                "ours",
                task=measure.name.partition(", ")[2],
                rule="quality minus that of the mixture of two rungs of the ladder with as many passes.",
            )


def _is_rival(point: FrontierPoint, ladder: Sequence[str]) -> bool:
    """Whether a policy has the ladder's order and another commit rule, commits sets, and lies inside it."""
    same = bool(ladder) and base_name(point.order) == base_name(ladder[0])
    rules = same and point.order not in ladder and "+" in point.order
    return rules and point.gain.is_defined and point.tokens_per_pass.value > HARDLY
