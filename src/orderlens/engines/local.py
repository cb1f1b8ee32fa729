"""The engine that computes units in this process, one after the other.

Several processes may do so in one folder at once: each claims the unit it works on.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from orderlens.decode.batches import BatchLimit
from orderlens.store.folder import open_folder
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.records import SPEC
from orderlens.store.schema import parse_version
from orderlens.store.specfile import read_spec
from orderlens.store.writer import execute, open_writer
from orderlens.work.execute import Local, Tables, compute, reveals_ahead
from orderlens.work.job import Job
from orderlens.work.options import PathLike, ProgressSink
from orderlens.work.units import Unit


def run_job(job: Job, out: PathLike | None, progress: ProgressSink | None = None) -> Run:
    """Compute all units into the folder ``out`` (resuming what is there), or in memory."""
    local = _local(job, progress)

    def work(unit: Unit) -> Tables:
        return compute(job.spec, unit, job.model, local)

    def announce(units: list[Unit]) -> None:
        if progress is not None:
            progress.set_total(sum(reveals_ahead(job.spec, unit) for unit in units))

    if out is None:
        announce(list(job.units))
        parts = {unit.key(): work(unit) for unit in job.units}
        return memory_run(joined(list(parts.values())), job.spec.to_json(), parts)
    by_key = {unit.key(): unit for unit in job.units}
    with open_writer(out, _spec_for(out, job)) as writer:
        announce([by_key[key] for key in writer.pending(by_key)])
        execute(writer, by_key, work)
    return open_run(out)


def joined(parts: list[Tables]) -> Tables:
    """Return the tables of several units as one."""
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _local(job: Job, progress: ProgressSink | None) -> Local:
    by_spec = {policy.spec: policy for policy in job.orders}
    measures = job.spec.kind == "measure"  # a few short texts, whose anchor is the model's own
    limit = None if measures else BatchLimit.suggested(job.model, job.longest)
    return Local(by_spec, limit, progress)


def _spec_for(out: PathLike, job: Job) -> dict[str, Any]:
    """Return the spec as JSON, without the newer fields that the older run in ``out`` does not state."""
    folder = open_folder(out)
    if folder.exists(SPEC):
        found = read_spec(folder)
        if parse_version(found.version) < (1, 1):
            return job.spec.as_stated_by(found.spec)
    return job.spec.to_json()
