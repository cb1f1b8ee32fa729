"""Everything that comes from a frontier's runs: tables, figures and findings. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orderlens.analysis import Options, Study, Table
from orderlens.claims import read
from orderlens.claims.judge import Reading
from orderlens.errors import RunError
from orderlens.figures.catalogue import Drawn, draw_figures
from orderlens.metrics.estimate import Resampling
from orderlens.show.report.content import writing_results
from orderlens.studies.frontier.plan import read_plan
from orderlens.studies.replicate.external import read_scores

TABLES = ("frontier", "policies", "couplings")
FIGURES = ("frontier", "couplings")


@dataclass(frozen=True, slots=True)
class Results:
    """What was made of the runs."""

    folder: Path
    tables: tuple[Table, ...]
    reading: Reading
    figures: tuple[Drawn, ...]


def write_results(
    folder: str | Path, resampling: Resampling | None = None, formats: Sequence[str] | None = None
) -> Results:
    """Write ``tables/``, ``figures/``, ``findings.json`` and ``findings.txt`` beside a frontier's runs."""
    place = Path(folder)
    plan = read_plan(place)
    if not (place / "runs").is_dir():
        raise RunError(f"{place} holds no runs yet: run the other parts first")
    evaluator = read_scores(place / "runs", plan.evaluator)
    study = Study.open(place / "runs", Options(resampling or Resampling(), evaluator=evaluator)).one_setup()
    names = [name for name in TABLES if name != "couplings" or "couplings" in study.run.tables]
    tables = tuple(study.tables(names))
    reading = read(study, ["parallel"])
    drawn = tuple(draw_figures(study, place / "figures", FIGURES, formats))
    with writing_results(place, tables, reading, "findings"):
        return Results(place, tables, reading, drawn)
