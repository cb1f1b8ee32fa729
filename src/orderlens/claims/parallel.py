"""Claims on committing several tokens per pass: its cost, the cause, and the gain of adaptive rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from orderlens.analysis.frames import Paired, wide_of
from orderlens.analysis.frontier import ACCURACY, BITS, EXTERNAL, FrontierPoint, Measure, ladder_of, measures
from orderlens.analysis.study import Study
from orderlens.analysis.tables_couplings import coupled_traces
from orderlens.claims.checks import Check
from orderlens.claims.judge import Finding
from orderlens.metrics.estimate import Estimate, Resampling
from orderlens.rules.cards import base_name
from orderlens.rules.catalogue import COMMITS
from orderlens.rules.protocol import Schedule

SMALL_NATS, SMALL_BITS, SMALL_POINTS = 0.005, 0.005, 1.0
"""Too small to count: nats per token, bits per byte (and nats per evaluator token), percentage points."""
ONE_PER_PASS = 1.01
"""Tokens per pass up to which a rule counts as one token per pass, the ladder's first rung."""
SMALL_VAR = 0.01
"""Differences of Var up to this (nats²) are too small to count."""


def parallel_findings(study: Study) -> list[Finding]:
    """Return the claims that the runs have data for; empty if no policy commits sets."""
    found = measures(study)
    out = [*_on_fixed_texts(study), *_gains(found, study.options.resampling)]
    return [finding for finding in out if finding.checks]


def _on_fixed_texts(study: Study) -> Iterator[Finding]:
    frame = study.scored
    ladder = ladder_of(study.orders(frame))
    if not ladder:
        return
    single, sets = ladder[0], ladder[1:]
    how = study.options.resampling
    mean, var = (Paired.of(wide_of(frame, name), how) for name in ("mean", "var"))
    yield Finding(
        "sets-cost-likelihood",
        "Under the same order, committing several tokens per pass lowers the likelihood.",
        tuple(
            Check("loss (nats/token)", mean.difference(single, rung), margin=SMALL_NATS, digits=4, where=rung)
            for rung in sets
        ),
        "ours",
        rule="mean log q with one token per pass minus that with K tokens per pass lies above 0; up to "
        f"{SMALL_NATS:g} nats per token is too small to count.",
    )
    yield Finding(
        "var-falls-with-sets",
        "Larger sets have lower Var over tokens but also a lower likelihood, so Var is misleading here.",
        tuple(
            Check(
                "Var with one token per pass − Var (nats²)",
                var.difference(single, rung),
                margin=SMALL_VAR,
                where=rung,
            )
            for rung in sets
        ),
        "ours",
        rule="Var with one token per pass minus Var with K tokens per pass lies above 0; up to "
        f"{SMALL_VAR:g} nats² is too small to count.",
    )
    yield Finding(
        "loss-is-coupling",
        "Most of the loss of committing sets is coupling: ignored dependence between tokens of a set.",
        tuple(_share(study, single, rung, how) for rung in sets),
        "ours",
        rule="coupling minus half of the loss lies above 0, so coupling is more than half of the loss.",
    )


def _share(study: Study, single: str, rung: str, how: Resampling) -> Check:
    """Return coupling per token minus half of the loss, text by text."""
    known = study.shared(coupled_traces)
    coupling = wide_of(known.assign(per_token=known["coupling"] / known["n"]), "per_token")
    mean = wide_of(known, "mean")
    label = "coupling − ½ loss (nats/token)"
    if rung not in coupling.columns:
        why = "no couplings were measured: score with --couplings N"
        return Check(label, Estimate.undefined(why), digits=4, where=rung)
    difference = coupling[rung] - (mean[single] - mean[rung]) / 2
    paired = Paired.of(pd.DataFrame({"more": difference.dropna()}), how)
    return Check(label, paired.mean("more"), digits=4, where=rung)


def _gains(found: Sequence[Measure], how: Resampling) -> Iterator[Finding]:
    """At equal passes, do adaptive commit rules beat fixed-size sets of the same order?"""
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
                f"At equal passes, adaptive commit rules have better {what} than sets of fixed size.",
                tuple(checks),
                "ours",
                task=measure.name.partition(", ")[2],
                rule="quality minus that of fixed-size sets at equal passes (a mixture of two rungs of the "
                "ladder) lies above 0.",
            )


def _is_rival(point: FrontierPoint, ladder: Sequence[str]) -> bool:
    """Whether a policy has the ladder's order and an adaptive rule, commits sets, and lies inside it."""
    same = bool(ladder) and base_name(point.order) == base_name(ladder[0])
    rules = same and point.order not in ladder and _is_adaptive(point.order)
    return rules and point.gain.is_defined and point.tokens_per_pass.value > ONE_PER_PASS


def _is_adaptive(order: str) -> bool:
    """Whether a policy has a rule whose counts are not known in advance, as those of ``steps`` are."""
    rule = order.partition("+")[2].partition("+")[0].partition("=")[0]
    return bool(rule) and not (rule in COMMITS.names() and issubclass(COMMITS.get(rule), Schedule))
