"""``run_job``: compute a job in this process, as one of several ranks, or with a pool of workers.

One process works through a job alone; several (processes of this machine, Ray actors, ranks that torchrun or
Slurm started) share it through the run folder: each claims the unit it works on. The rows are the same.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from orderlens.decode.batches import BatchLimit
from orderlens.errors import UserInputError
from orderlens.models.abilities import ReleasesMemory, device_type
from orderlens.runs.compute import Local, Tables, begin, reveals_ahead
from orderlens.runs.extend import Items, open_plan
from orderlens.runs.job import Job
from orderlens.runs.loop import WorkerRole, execute, finish_or_say
from orderlens.runs.options import Computing, ProgressSink, ShowsCanvas
from orderlens.runs.pool import ProcessPool, Supervisor, WorkerPool
from orderlens.runs.ranks import Rank, this_rank
from orderlens.runs.spec import RunSpec
from orderlens.runs.units import Unit
from orderlens.runs.worker import LoggedRole, SharedRole, WorkerTask, longest_first, new_session, plain_items
from orderlens.runs.worker_log import Failures, WorkerLog, forget_workers
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.records import COMPLETE
from orderlens.store.writer import DEFAULT_LEASE_S, RunWriter, open_writer

_CLOSING_S = 30.0
"""Seconds that ranks wait for the leading one to close a run."""


def run_job(job: Job, options: Computing, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming what is there), or in memory.

    Args:
        job: what to compute.
        options: where to keep it, who computes it, and who is told of progress.
        extend: add to the run in the folder what it lacks of the job's orders and samples.
    """
    _refuse_unidentified(job, options)
    rank, on_gpu = this_rank(), device_type(job.model) == "cuda"
    if rank is not None and options.chosen_engine.kind == "local" and options.chosen_engine.workers is None:
        return _run_here(job.shared_by(rank.count), options, rank, extend=extend)
    if options.chosen_engine.kind == "local" and _slots(options, on_gpu) == 1:
        return _run_here(job, options, extend=extend)
    return _run_pool(job, options, on_gpu=on_gpu, extend=extend)


def _refuse_unidentified(job: Job, options: Computing) -> None:
    """A folder cannot tell a model without a digest from another one, so it could be resumed with either."""
    if options.out is not None and not job.model.digest:
        raise UserInputError(
            f"model '{job.model.name}' has no digest, so the folder {options.out} could not tell it from "
            "another model; give it a digest of what determines its numbers (StubModel(…, digest='…')), "
            "or leave out the folder to keep the run in memory"
        )


def _slots(options: Computing, on_gpu: bool) -> int:
    """Return how many workers there will be: as asked, else one per GPU of this machine or of the cluster."""
    engine = options.chosen_engine
    if engine.kind == "ray":
        from orderlens.runs.ray_actors import slots

        return slots(engine, on_gpu)
    return engine.workers or (_gpus() if on_gpu and options.device in (None, "auto", "cuda") else 1)


def _run_here(job: Job, options: Computing, rank: Rank | None = None, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming what is there), or in memory.

    A rank computes its share and returns when the run is complete.
    """
    out = options.out
    if out is None and rank is None:
        return _in_memory(job, options.progress, extend)
    if out is None:
        raise UserInputError("several ranks share a run through its folder: give out")
    whole, items, writer = open_plan(job, out, extend=extend)
    folder = writer.folder
    with writer, _worker_log(folder, whole, rank) as log:
        bar = _Both(log, options.progress if rank is None or rank.leads else None)
        left = writer.pending(items, by_name=rank is not None)
        bar.set_total(ahead(items[key] for key in left))
        local = _local(whole, bar, options.progress)
        role = _role(folder, log, options, rank)
        units = items if rank is None else longest_first(items)
        execute(writer, units, lambda item: begin(*item, whole.model, local), role)
        if not role.closes:
            _await_close(writer, items)
    return open_run(out)


def _worker_log(folder: Folder, job: Job, rank: Rank | None) -> WorkerLog:
    """Return the log in which others see what this process does."""
    if rank is not None:
        return WorkerLog(folder, f"rank-{rank.index:03d}", "ranks", device_type(job.model))
    forget_workers(folder)
    # Several commands may work on one folder at once, each alone: the process tells them apart.
    alone = f"alone-{os.getpid()}"
    return WorkerLog(folder, alone, alone, device_type(job.model))


def _role(folder: Folder, log: WorkerLog, options: Computing, rank: Rank | None) -> WorkerRole:
    if rank is None:
        return LoggedRole(log)
    failures = Failures(folder, options.chosen_engine.attempts)
    if rank.leads:
        failures.forget()
    return SharedRole(log, failures, rank.index, rank.count, closes=rank.leads)


class _Both:
    """Progress for this process's notes and for the screen."""

    def __init__(self, log: WorkerLog, sink: ProgressSink | None) -> None:
        self._log, self._sink = log, sink

    def __call__(self, steps: int = 1) -> None:
        self._log.advance(steps)
        if self._sink is not None:
            self._sink(steps)

    def set_total(self, total: int) -> None:
        self._log.changes(ahead=total)
        if self._sink is not None:
            self._sink.set_total(total)


def _await_close(writer: RunWriter, items: Items) -> None:
    """Wait for the rank that leads to close the run; do it ourselves where it does not."""
    for _ in range(int(_CLOSING_S / 0.1)):
        if writer.folder.exists(COMPLETE) or not writer.folder.exclusive:
            break
        time.sleep(0.1)
    finish_or_say(writer, items)


def _in_memory(job: Job, progress: ProgressSink | None, extend: bool) -> Run:
    if extend:
        raise UserInputError("extend adds to the run in a folder: give out, after run.save(out) if need be")
    local = _local(job, progress, progress)
    _announce(progress, [(job.spec, unit) for unit in job.units])
    parts = {unit.key(): begin(job.spec, unit, job.model, local)() for unit in job.units}
    return memory_run(joined(list(parts.values())), job.spec.to_json(), parts)


def _announce(progress: ProgressSink | None, items: Iterable[tuple[RunSpec, Unit]]) -> None:
    if progress is not None:
        progress.set_total(ahead(items))


def ahead(items: Iterable[tuple[RunSpec, Unit]]) -> int:
    """Return how many progress steps the units take at most."""
    return sum(reveals_ahead(spec, unit) for spec, unit in items)


def joined(parts: list[Tables]) -> Tables:
    """Return the tables of several units as one."""
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _local(job: Job, progress: ProgressSink | None, screen: ProgressSink | None) -> Local:
    """Return what only this process has; ``screen`` is where texts are shown, if it can show them."""
    by_spec = {policy.spec: policy for policy in job.orders}
    measures = job.spec.kind == "measure"  # a few short texts, whose anchor is the model's own
    limit = None if measures else BatchLimit.suggested(job.model, job.longest)
    return Local(by_spec, limit, progress, screen.show_canvas if isinstance(screen, ShowsCanvas) else None)


def _run_pool(job: Job, options: Computing, *, on_gpu: bool, extend: bool) -> Run:
    out = options.out
    if out is None:
        raise UserInputError("several workers share a run through its folder: give out")
    slots = _slots(options, on_gpu)
    whole, items, writer = open_plan(job.shared_by(slots), out, extend=extend)
    _refuse_unregistered(whole)
    with writer:
        left = writer.pending(items)
        if options.progress is not None:
            options.progress.set_total(ahead([items[key] for key in left]))
        if not left:
            writer.finish(items)
            return open_run(out)
    folder = writer.folder
    Failures(folder, options.chosen_engine.attempts).forget()
    forget_workers(folder)
    task = _task(whole, items, left, options, folder)
    _release(whole)
    slots = min(slots, len(left))
    pool = _pool(task, options, slots, on_gpu)
    Supervisor(pool, slots, task, folder, options.chosen_engine.stall_s, options.progress).run()
    with open_writer(out, task.stated) as writer:
        writer.finish(items)
    return open_run(out)


def _task(job: Job, items: Items, left: list[str], options: Computing, folder: Folder) -> WorkerTask:
    specs, units = plain_items({key: items[key] for key in left})
    return WorkerTask(
        folder.location("").rstrip("/"),
        job.spec.to_json(),
        specs,
        units,
        _findable(str(job.spec.model["name"])),
        options.dtype,
        new_session(),
        options.chosen_engine.attempts,
        DEFAULT_LEASE_S,
    )


def _findable(name: str) -> str:
    """Return a model's name as a process in another folder finds it: a path becomes absolute."""
    return str(Path(name).expanduser().absolute()) if Path(name).expanduser().is_dir() else name


def _refuse_unregistered(job: Job) -> None:
    """Other processes know a policy by its spec only."""
    from orderlens.rules import parse_policy

    for policy in job.orders:
        if type(parse_policy(policy.spec).order) is not type(policy.order):
            raise UserInputError(
                f"order '{policy.spec}' is in no registry, so workers cannot know it; offer it under the "
                "entry point orderlens.orders, or use one worker"
            )


def _release(job: Job) -> None:
    """Give back the driver's GPU memory: the workers hold models of their own."""
    if isinstance(job.model, ReleasesMemory):
        job.model.release_memory()
    gc.collect()


def _pool(task: WorkerTask, options: Computing, slots: int, on_gpu: bool) -> WorkerPool:
    engine = options.chosen_engine
    if engine.kind == "ray":
        from orderlens.runs.ray_actors import RayActors

        return RayActors(task, engine, slots, on_gpu=on_gpu, device=options.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = engine.threads or max(1, cores // slots)
    devices = [f"cuda:{place % _gpus()}" if on_gpu else options.device for place in range(slots)]
    return ProcessPool(task, devices, threads)


def _gpus() -> int:
    from orderlens.models.engine.device import visible_gpus

    return max(visible_gpus(), 1)
