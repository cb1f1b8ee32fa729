"""The claims by name, open to plug-ins. Each is a function from a study to findings that are not yet judged.

``read`` judges all requested claims together, so that the correction covers all their checks. ``replicate``
and ``downstream`` use the built-in claims only, so that installed plug-ins cannot change their outcomes. A
plug-in registers its function under the entry-point group ``orderlens.findings``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from orderlens.analysis.study import NO_TARGET, NOT_GENERATED, NOT_GRADED, Study
from orderlens.analysis.table import NO_CENSUS, NO_STATES, has_census, has_temperatures
from orderlens.analysis.tables_downstream import guessing_levels
from orderlens.analysis.traces import in_sets
from orderlens.claims.judge import Finding, Reading, judge
from orderlens.errors import UserInputError
from orderlens.registry import Registry

Claims: TypeAlias = Callable[[Study], "list[Finding] | Finding"]

NOT_SWEPT = "the texts were generated at one temperature only"

FINDINGS: Registry[Claims] = Registry(
    "finding",
    {
        name: f"orderlens.claims.catalogue:{name}"
        for name in (
            "fixed",
            "decoding",
            "sweep",
            "correctness",
            "parallel",
            "census",
            "independence",
            "locality",
            "tolerance",
        )
    },
    entry_point_group="orderlens.findings",
    check=lambda found: None if callable(found) else "is not a function of a study",
)


def read(study: Study, names: str | Iterable[str]) -> Reading:
    """Return the named findings, judged together.

    Args:
        study: runs of one model.
        names: entries of ``FINDINGS``.

    Raises:
        UserInputError: no finding was named, or the runs lack the traces that a claim needs.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise UserInputError(f"no finding named; choose from {', '.join(FINDINGS.names())}")
    study.one_setup()
    found: list[Finding] = []
    for name in wanted:
        claims = FINDINGS.get(name)(study)
        found += [claims] if isinstance(claims, Finding) else claims
    return judge(found, study.options.resampling.level)


def fixed(study: Study) -> list[Finding]:
    """Return the paper's claims on fixed targets."""
    from orderlens.claims.fixed import fixed_findings

    own = study.view("score")
    _require(len(own.scored), "fixed", NO_TARGET)
    return fixed_findings(own)


def decoding(study: Study) -> list[Finding]:
    """Return the paper's claims on greedy generation."""
    from orderlens.claims.decoding import decoding_findings

    own = study.view("generate")
    _require(len(own.generated), "decoding", NOT_GENERATED)
    return decoding_findings(own, study.view("ending"))


def sweep(study: Study) -> list[Finding]:
    """Return the paper's claims on temperature."""
    from orderlens.claims.sweep import sweep_findings

    own = study.view("sweep")
    _require(len(own.generated), "sweep", NOT_GENERATED)
    return sweep_findings(own)


def correctness(study: Study) -> list[Finding]:
    """Return the claims on Var and correctness in graded runs."""
    from orderlens.claims.correctness import correctness_findings

    _require(len(study.verdicts), "correctness", NOT_GRADED)
    return correctness_findings(study.graded, study.options.resampling, guessing_levels(study))


def parallel(study: Study) -> list[Finding]:
    """Return the claims on committing several tokens per pass."""
    from orderlens.claims.parallel import parallel_findings

    _require(int(in_sets(study.samples).sum()), "parallel", "every policy reveals one token per pass")
    with study.needing(("text",)):
        return parallel_findings(study)


def census(study: Study) -> list[Finding]:
    """Return the claims on all orders of a span."""
    from orderlens.claims.census import census_findings

    _require(has_census(study), "census", NO_CENSUS)
    return census_findings(study)


def independence(study: Study) -> list[Finding]:
    """Return the claim that greedy successes are independent given q."""
    from orderlens.claims.assumptions import independence_findings

    own = study.view("score")
    _require(len(own.scored), "independence", NO_TARGET)
    return independence_findings(own)


def locality(study: Study) -> list[Finding]:
    """Return the claims on entropy by distance to the revealed text."""
    from orderlens.analysis.tables_assumptions import shown_traces
    from orderlens.claims.assumptions import locality_findings

    _require(len(shown_traces(study)), "locality", NO_STATES)
    return locality_findings(study)


def tolerance(study: Study) -> list[Finding]:
    """Return the claim on the theory's predicted loss against temperature."""
    from orderlens.claims.assumptions import tolerance_findings

    own = study.view("sweep")
    _require(has_temperatures(own), "tolerance", NOT_SWEPT)
    return tolerance_findings(own)


def _require(count: int, name: str, why: str) -> None:
    if not count:
        raise UserInputError(f"finding '{name}': {why}")
