"""The engine that computes units in this process, one after the other.

Several processes may do so in one folder at once: each claims the unit it works on.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from orderlens.decode.batches import BatchLimit
from orderlens.engines.history import plan_folder, stated
from orderlens.errors import UserInputError
from orderlens.store.folder import open_folder
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.writer import execute, open_writer
from orderlens.work.execute import Local, Tables, compute, reveals_ahead
from orderlens.work.job import Job
from orderlens.work.options import PathLike, ProgressSink
from orderlens.work.spec import RunSpec
from orderlens.work.units import Unit


def run_job(
    job: Job, out: PathLike | None, progress: ProgressSink | None = None, *, extend: bool = False
) -> Run:
    """Compute all units into the folder ``out`` (resuming what is there), or in memory.

    Args:
        job: what to compute.
        out: the run folder, or None.
        progress: is told what is ahead and each advance.
        extend: add to the run in ``out`` what it lacks of the job's orders and samples.
    """
    if out is None:
        return _in_memory(job, progress, extend)
    folder = open_folder(out)
    whole, items = plan_folder(job, folder, extend=extend)
    local = _local(whole, progress)

    def work(item: tuple[RunSpec, Unit]) -> Tables:
        return compute(*item, whole.model, local)

    with open_writer(out, stated(whole, folder)) as writer:
        _announce(progress, [items[key] for key in writer.pending(items)])
        execute(writer, items, work)
    return open_run(out)


def _in_memory(job: Job, progress: ProgressSink | None, extend: bool) -> Run:
    if extend:
        raise UserInputError("extend adds to the run in a folder: give out, after run.save(out) if need be")
    local = _local(job, progress)
    _announce(progress, [(job.spec, unit) for unit in job.units])
    parts = {unit.key(): compute(job.spec, unit, job.model, local) for unit in job.units}
    return memory_run(joined(list(parts.values())), job.spec.to_json(), parts)


def _announce(progress: ProgressSink | None, items: Iterable[tuple[RunSpec, Unit]]) -> None:
    if progress is not None:
        progress.set_total(sum(reveals_ahead(spec, unit) for spec, unit in items))


def joined(parts: list[Tables]) -> Tables:
    """Return the tables of several units as one."""
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _local(job: Job, progress: ProgressSink | None) -> Local:
    by_spec = {policy.spec: policy for policy in job.orders}
    measures = job.spec.kind == "measure"  # a few short texts, whose anchor is the model's own
    limit = None if measures else BatchLimit.suggested(job.model, job.longest)
    return Local(by_spec, limit, progress)
