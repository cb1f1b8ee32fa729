"""What a run folder holds already, and what a job adds to it: the units to compute, each with its spec.

Between ``work`` (which plans extensions and knows no files) and the store (which keeps their records).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from orderlens.errors import RunError
from orderlens.runs.extend import (
    EXTENSIBLE,
    GROWING,
    Addition,
    SampleKey,
    Stage,
    addition_to,
    grown,
    staged_units,
)
from orderlens.runs.job import Job
from orderlens.runs.options import PathLike
from orderlens.runs.spec import RunSpec
from orderlens.runs.units import Unit
from orderlens.store.extensions import Extension, add_extension, read_extensions
from orderlens.store.folder import open_folder
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run
from orderlens.store.records import SPEC
from orderlens.store.schema import parse_version
from orderlens.store.sources import folder_source
from orderlens.store.specfile import plain_spec, read_spec, spec_diff
from orderlens.store.writer import RunWriter, open_writer

Items: TypeAlias = dict[str, tuple[RunSpec, Unit]]
"""Units by key, each with the spec it is computed under."""


def open_plan(job: Job, out: PathLike, *, extend: bool) -> tuple[Job, Items, RunWriter]:
    """Plan the job and create the run, or resume the one that is there.

    Processes that start together may cut the work differently, where each counts the GPUs of its machine: the
    first one's units hold for all.

    Returns:
        The job as the run states it, all its units, and a writer.
    """
    folder = open_folder(out)
    new = not folder.exists(SPEC)
    try:
        whole, items = plan_folder(job, folder, extend=extend)
        return whole, items, open_writer(out, stated(whole, folder))
    except RunError:
        if not (new and job.free_size and folder.exists(SPEC)):
            raise
        whole, items = plan_folder(job, folder, extend=extend)
        return whole, items, open_writer(out, stated(whole, folder))


def plan_folder(job: Job, folder: Folder, *, extend: bool) -> tuple[Job, Items]:
    """Return the job as the folder's run will state it, and all its units.

    Args:
        job: what is asked for.
        folder: new, or with a run to resume.
        extend: add to the run that is there what it lacks, instead of refusing another spec.
    """
    if folder.exists(SPEC):
        job = _in_units_of(job, folder)
        if extend:
            return _extended(job, folder)
        stages, wanted = stages_in(folder), plain_spec(job.spec.to_json())
        for number, stage in enumerate(stages[1:], start=2):
            if plain_spec(stage.spec.to_json()) == wanted:
                return job, staged_units(job, stages[:number])
        _refuse_growth(folder, wanted)
    return job, {unit.key(): (job.spec, unit) for unit in job.units}


def _in_units_of(job: Job, folder: Folder) -> Job:
    """Return the job cut like the run in the folder, if its unit size was left to us."""
    found = read_spec(folder).spec
    size = found.get("batch_size")
    return job.recut(size, found.get("unit_orders")) if isinstance(size, int) and size >= 1 else job


def stated(job: Job, folder: Folder) -> dict[str, Any]:
    """Return the job's spec as JSON, without newer fields that an older run in the folder does not state."""
    if folder.exists(SPEC):
        found = read_spec(folder)
        if parse_version(found.version) < (1, 1) and not read_extensions(folder):
            return job.spec.as_stated_by(found.spec)
    return job.spec.to_json()


def stages_in(folder: Folder) -> list[Stage]:
    """Return the run as it was started and after each extension; a run that was not decoded has none."""
    found = read_spec(folder)
    extensions = read_extensions(folder)
    if not extensions and found.spec.get("kind") not in EXTENSIBLE:
        return []
    return [
        Stage(RunSpec.from_json(found.spec)),
        *(Stage(RunSpec.from_json(item.spec), Addition.from_json(item.added)) for item in extensions),
    ]


def _extended(job: Job, folder: Folder) -> tuple[Job, Items]:
    while True:
        stages = stages_in(folder)
        if not stages:
            raise RunError(
                f"{folder.label} holds a run of kind '{read_spec(folder).spec.get('kind')}', which cannot be "
                f"extended; only {' and '.join(EXTENSIBLE)} can"
            )
        last = stages[-1].spec
        whole = grown(job, last)
        if (whole.spec.orders, whole.spec.data["digest"]) == (last.orders, last.data.get("digest")):
            return replace(whole, spec=last), staged_units(whole, stages)
        stage = Stage(whole.spec, addition_to(whole, last, _samples_in(folder)))
        items = staged_units(whole, [*stages, stage])
        if add_extension(folder, len(stages), _record(stage, items)):
            return whole, items
        # Another process extended the run meanwhile: look again.


def _record(stage: Stage, items: Items) -> Extension:
    assert stage.addition is not None
    keys = tuple(key for key, (spec, _) in items.items() if spec is stage.spec)
    return Extension(plain_spec(stage.spec.to_json()), stage.addition.to_json(), keys)


def _samples_in(folder: Folder) -> set[SampleKey]:
    """Return the samples of a complete run."""
    run = Run([folder_source(folder)])
    if not run.is_complete:
        raise RunError(
            f"{folder.label} is not complete; finish it with the command that started it, then extend it"
        )
    rows = run.outputs().to_arrow(["task", "sample_id"]).to_pylist()
    return {(row["task"], row["sample_id"]) for row in rows}


def _refuse_growth(folder: Folder, wanted: dict[str, Any]) -> None:
    """Where only orders or samples differ, say that they can be added."""
    started = read_spec(folder)
    if started.edited or parse_version(started.version) < (1, 1):
        return  # the store knows what to say
    specs = [started.spec, *(item.spec for item in read_extensions(folder))]
    found = specs[-1]
    differing = {name for name in {*found, *wanted} if found.get(name) != wanted.get(name)}
    grows = differing & {"orders", "data"} and differing <= set(GROWING)
    if wanted not in specs and wanted["kind"] in EXTENSIBLE and grows:
        listed = "; ".join(spec_diff(found, wanted)[:4])
        raise RunError(
            f"{folder.label} holds a run with another spec: {listed}; use another folder, or add what is new "
            "to this run: --extend (extend=True)"
        )
