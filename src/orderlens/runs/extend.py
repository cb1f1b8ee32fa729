"""Determines the units that a job still has to compute in a run folder, also when it extends a run.

A run is a grid of samples × orders (× temperatures). An extension adds old samples under the new orders, and
new samples under all orders. Every unit keeps its key and its orders, so that nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orderlens.errors import RunError
from orderlens.rules import parse_policies
from orderlens.runs.job import Job, files_of, likelihoods
from orderlens.runs.options import PathLike
from orderlens.runs.spec import (
    RunSpec,
    Unit,
    cut_units,
    order_groups,
    refuse_changed_files,
    samples_digest,
)
from orderlens.store.folder import open_folder
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run
from orderlens.store.records import SPEC
from orderlens.store.sources import folder_source
from orderlens.store.specfile import (
    Extension,
    add_extension,
    plain_spec,
    read_extensions,
    read_spec,
    told_differences,
)
from orderlens.store.writer import RunWriter, open_writer
from orderlens.texts.samples import EncodedSample

Items: TypeAlias = dict[str, tuple[RunSpec, Unit]]
"""Units by key, each with its spec."""
SampleKey: TypeAlias = tuple[str | None, str]
"""Task and id of a sample."""
EXTENSIBLE = ("score", "generate")
GROWING = ("orders", "data", "likelihood", "batch_size", "unit_orders", "files")
"""Fields of a spec that an extension may change; units keep their size."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The initial run, or one extension of it.

    Attributes:
        spec: spec of the run after this stage.
        orders: specs of the orders that the extension added; None for the initial run.
        samples: task and id of the samples that the extension added.
    """

    spec: RunSpec
    orders: tuple[str, ...] | None = None
    samples: frozenset[SampleKey] = frozenset()

    def units(self, job: Job, here: Sequence[EncodedSample]) -> list[Unit]:
        """Return the units of this stage; ``here`` are the samples of the run after it."""
        spec = self.spec
        if self.orders is None:
            return replace(job, spec=spec, samples=here).units
        old = [sample for sample in here if _key(sample) not in self.samples]
        new = [sample for sample in here if _key(sample) in self.samples]
        units: list[Unit] = []
        for value in spec.temperatures or (None,):
            for samples, orders in ((old, self.orders), (new, spec.orders)):
                for group in order_groups(orders, spec.unit_orders) if orders else ():
                    units += cut_units(samples, spec.batch_size, value, group or orders)
        return units


def plan_and_open(job: Job, out: PathLike, *, extend: bool) -> tuple[Job, Items, RunWriter]:
    """Plan the units of a job, and create or resume the run in ``out``.

    Processes that start at the same time may plan different units, because each counts the GPUs of its
    machine. The units of the first process then apply to all.

    Args:
        job: the requested job.
        out: a new folder, or the folder of a run to resume.
        extend: add new orders and samples to the run in ``out`` instead of refusing them.

    Returns:
        The job with the spec of the run, all its units, and a writer.
    """
    folder = open_folder(out)
    new = not folder.exists(SPEC)
    try:
        full, items = _plan(job, folder, extend)
        return full, items, open_writer(out, full.spec.to_json())
    except RunError:
        if not (new and job.free_size and folder.exists(SPEC)):
            raise
        full, items = _plan(job, folder, extend)
        return full, items, open_writer(out, full.spec.to_json())


def _plan(job: Job, folder: Folder, extend: bool) -> tuple[Job, Items]:
    if folder.exists(SPEC):
        job = _in_units_of(job, folder)
        if extend:
            return _extended(job, folder)
        refuse_changed_files(read_spec(folder).spec.get("files"), job.spec.files)
        stages, wanted = read_stages(folder), plain_spec(job.spec.to_json())
        for number, stage in enumerate(stages[1:], start=2):
            if plain_spec(stage.spec.to_json()) == wanted:
                return job, staged_units(job, stages[:number])
        _refuse_growth(folder, wanted)
    return job, {unit.key(): (job.spec, unit) for unit in job.units}


def _in_units_of(job: Job, folder: Folder) -> Job:
    """Return the job with the unit size of the run in the folder, if its own is free."""
    found = read_spec(folder).spec
    size = found.get("batch_size")
    return job.recut(size, found.get("unit_orders")) if isinstance(size, int) and size >= 1 else job


def read_stages(folder: Folder) -> list[Stage]:
    """Return the initial run and its extensions; empty for runs that were not decoded."""
    found, extensions = read_spec(folder).spec, read_extensions(folder)
    if not extensions and found.get("kind") not in EXTENSIBLE:
        return []
    later = [Stage(RunSpec.from_json(item.spec), item.orders, frozenset(item.samples)) for item in extensions]
    return [Stage(RunSpec.from_json(found)), *later]


def staged_units(job: Job, stages: Sequence[Stage]) -> Items:
    """Return all units of a run by key, each with its spec.

    Args:
        job: the run after its last stage.
        stages: the initial run and its extensions.

    Raises:
        RunError: the samples of some stage are not those of the job.
    """
    found: Items = {}
    here = list(job.samples)
    for stage in reversed(stages):
        _check_samples(here, stage.spec)
        found = {unit.key(): (stage.spec, unit) for unit in stage.units(job, here)} | found
        here = [sample for sample in here if _key(sample) not in stage.samples]
    return found


def _extended(job: Job, folder: Folder) -> tuple[Job, Items]:
    """Return the job with all orders and samples of the run, after recording the extension."""
    while True:
        stages = read_stages(folder)
        if not stages:
            raise RunError(
                f"{folder.label} is a run of kind '{read_spec(folder).spec.get('kind')}', which cannot be "
                f"extended; only {' and '.join(EXTENSIBLE)} runs can"
            )
        last = stages[-1].spec
        full = _grown(job, last)
        if (full.spec.orders, full.spec.data["digest"]) == (last.orders, last.data.get("digest")):
            return replace(full, spec=last), staged_units(full, stages)
        stages.append(_addition(full, last, folder))
        items = staged_units(full, stages)
        if add_extension(folder, len(stages) - 1, _record(stages[-1], items)):
            return full, items
        # Another process extended the run in the meantime: try again.


def _grown(job: Job, run: RunSpec) -> Job:
    """Return the job with the orders of the run followed by its own, and with the run's unit size.

    Raises:
        RunError: the job differs from the run in more than orders and samples.
    """
    if job.spec.kind != run.kind:
        raise RunError(
            f"a run of kind '{run.kind}' cannot be extended by '{job.spec.kind}'; use the command that "
            f"started it ({' or '.join(EXTENSIBLE)})"
        )
    old, new = (
        {name: value for name, value in spec.to_json().items() if name not in GROWING}
        for spec in (run, job.spec)
    )
    if differing := told_differences(old, new):
        raise RunError(f"only orders and samples can be added to a run; {'; '.join(differing)}")
    own = {order.spec: order for order in job.orders}
    orders = parse_policies([own.get(name, name) for name in dict.fromkeys((*run.orders, *own))])
    files = files_of(orders)
    refuse_changed_files(run.files, files)
    spec = replace(
        job.spec,
        orders=tuple(order.spec for order in orders),
        batch_size=run.batch_size,
        unit_orders=run.unit_orders,
        likelihood=likelihoods(orders),
        files=files,
    )
    return replace(job, spec=spec, orders=orders)


def _addition(job: Job, run: RunSpec, folder: Folder) -> Stage:
    """Return the extension that ``job`` adds to the run in the folder.

    Raises:
        RunError: the run is not complete, or the job lacks or changes some of its samples.
    """
    known = _samples_in(folder)
    _check_samples([sample for sample in job.samples if _key(sample) in known], run)
    orders = tuple(name for name in job.spec.orders if name not in run.orders)
    return Stage(job.spec, orders, frozenset(map(_key, job.samples)) - known)


def _record(stage: Stage, items: Items) -> Extension:
    keys = tuple(key for key, (spec, _) in items.items() if spec is stage.spec)
    samples = tuple(sorted(stage.samples, key=str))
    return Extension(plain_spec(stage.spec.to_json()), stage.orders or (), samples, keys)


def _samples_in(folder: Folder) -> set[SampleKey]:
    """Return the samples of a complete run."""
    run = Run([folder_source(folder)])
    if not run.is_complete:
        raise RunError(
            f"{folder.label} is not complete; finish it with the command that started it, then extend it"
        )
    rows = run.outputs().to_arrow(["task", "sample_id"]).to_pylist()
    return {(row["task"], row["sample_id"]) for row in rows}


def _check_samples(samples: Sequence[EncodedSample], run: RunSpec) -> None:
    if samples_digest(samples) != run.data.get("digest"):
        raise RunError(
            f"to extend a run, give all its {run.data.get('n_samples')} samples again, unchanged and in the "
            f"same order, and the new ones; only {len(samples)} of them were found, or some have changed"
        )


def _refuse_growth(folder: Folder, wanted: dict[str, Any]) -> None:
    """Refuse a job that differs only in orders or samples, and point to ``extend``."""
    started = read_spec(folder)
    if started.edited:
        return  # the store raises the error
    specs = [started.spec, *(item.spec for item in read_extensions(folder))]
    found = specs[-1]
    differing = {name for name in {*found, *wanted} if found.get(name) != wanted.get(name)}
    grows = differing & {"orders", "data"} and differing <= set(GROWING)
    if wanted not in specs and wanted["kind"] in EXTENSIBLE and grows:
        listed = "; ".join(told_differences(found, wanted)[:4])
        raise RunError(
            f"{folder.label} is a run with another spec: {listed}; use another folder, or add the new orders "
            "and samples to this run with --extend (extend=True)"
        )


def _key(sample: EncodedSample) -> SampleKey:
    return sample.task, sample.id
