"""Open any runs for drawing: stored external scores, where there are some, answer for the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orderlens.analysis import Options, Study
from orderlens.replicate.external import StoredScores
from orderlens.replicate.plan import PLAN_FILE
from orderlens.replicate.results import open_studies
from orderlens.store.reader import Run, open_run


def studies_of(places: Sequence[Path]) -> Study | dict[str, Study]:
    """Return a study over runs or folders of runs; of one replication, the studies behind its results."""
    run = open_run([str(place) for place in places])
    if len(places) == 1 and (places[0] / PLAN_FILE).is_file():
        return open_studies(places[0] / "runs", stored_scores(run))
    return Study(run, Options(evaluator=stored_scores(run)))


def stored_scores(run: Run) -> StoredScores | None:
    """Return the external scores that the runs hold, of the first evaluator by name; None without any."""
    names = sorted({str(spec["evaluator"]) for spec in run.specs.values() if spec.get("kind") == "external"})
    return StoredScores.of(run, names[0]) if names and "external" in run.tables else None
