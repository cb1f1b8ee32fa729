"""``run_job``: compute a job in this process, as one of several ranks, or with a pool of workers.

Several processes (of this machine, Ray actors, ranks of torchrun or Slurm) share a job through the run
folder: each claims the units that it computes. The rows do not depend on the number of processes.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from orderlens.common.machine import Rank, this_rank
from orderlens.errors import UserInputError
from orderlens.models.abilities import ReleasesMemory, device_type
from orderlens.models.loading import is_loadable
from orderlens.runs.compute import ComputeContext, Tables, batch_limit, decode_unit, planned_reveals
from orderlens.runs.extend import Items, plan_and_open
from orderlens.runs.job import Job
from orderlens.runs.loop import LoggedRole, SharedRole, WorkerRole, execute, finish_or_report
from orderlens.runs.options import Computing, ProgressSink, ShowsCanvas
from orderlens.runs.pool import ProcessPool, Supervisor, WorkerPool
from orderlens.runs.spec import RunSpec, Unit
from orderlens.runs.worker import WorkerTask, longest_first, new_session, plain_items
from orderlens.runs.worker_log import Failures, WorkerLog, remove_ended_workers
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run, memory_run, open_run
from orderlens.store.records import COMPLETE
from orderlens.store.writer import DEFAULT_LEASE_S, RunWriter, open_writer

_CLOSING_S = 30.0
"""Seconds that ranks wait for the leading rank to close a run."""


def run_job(job: Job, options: Computing, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming a run in it), or in memory.

    Args:
        job: the job.
        options: run folder, engine and progress display.
        extend: add the job's new orders and samples to the run in the folder.
    """
    _refuse_unidentified(job, options)
    rank, on_gpu = this_rank(), device_type(job.model) == "cuda"
    if rank is not None and options.chosen_engine.kind == "local" and options.chosen_engine.workers is None:
        return _run_here(job.shared_by(rank.count), options, rank, extend=extend)
    shared = options.out is not None and is_loadable(job.model.name)
    if options.chosen_engine.kind == "local" and _slots(options, on_gpu and shared) == 1:
        return _run_here(job, options, extend=extend)
    return _run_pool(job, options, on_gpu=on_gpu, extend=extend)


def _refuse_unidentified(job: Job, options: Computing) -> None:
    """Refuse a folder for a model without a digest: a resume could not detect another model."""
    if options.out is not None and not job.model.digest:
        raise UserInputError(
            f"model '{job.model.name}' has no digest, so a resume of {options.out} could not detect another "
            "model; give the model a digest (StubModel(…, digest='…')), or leave out the folder to keep the "
            "run in memory"
        )


def _slots(options: Computing, on_gpu: bool) -> int:
    """Return the number of workers: as requested, else one per GPU of this machine or of the cluster."""
    engine = options.chosen_engine
    if engine.kind == "ray":
        from orderlens.runs.ray_actors import slots

        return slots(engine, on_gpu)
    return engine.workers or (_gpus() if on_gpu and options.device in (None, "auto", "cuda") else 1)


def _run_here(job: Job, options: Computing, rank: Rank | None = None, *, extend: bool = False) -> Run:
    """Compute all units in this process; a rank computes its share and returns when the run is complete."""
    out = options.out
    if out is None and rank is None:
        return run_in_memory(job, options.progress, extend=extend)
    if out is None:
        raise UserInputError("several ranks need a run folder to share the work; name one with out")
    full, items, writer = plan_and_open(job, out, extend=extend)
    folder = writer.folder
    with writer, _worker_log(folder, full, rank) as log:
        bar = _Both(log, options.progress if rank is None or rank.leads else None)
        left = writer.pending(items, by_name=rank is not None)
        bar.set_total(planned_steps(items[key] for key in left))
        context = _context(full, bar, options.progress)
        role = _role(folder, log, options, rank)
        units = items if rank is None else longest_first(items)
        execute(writer, units, lambda item: decode_unit(*item, full.model, context), role)
        if not role.closes:
            _await_close(writer, items)
    return open_run(out)


def _worker_log(folder: Folder, job: Job, rank: Rank | None) -> WorkerLog:
    """Return the log of this process, which other processes can read."""
    if rank is not None:
        return WorkerLog(folder, f"rank-{rank.index:03d}", "ranks", device_type(job.model))
    remove_ended_workers(folder)
    # Several commands may work on one folder at the same time; the process id distinguishes them.
    alone = f"alone-{os.getpid()}"
    return WorkerLog(folder, alone, alone, device_type(job.model))


def _role(folder: Folder, log: WorkerLog, options: Computing, rank: Rank | None) -> WorkerRole:
    if rank is None:
        return LoggedRole(log)
    failures = Failures(folder, options.chosen_engine.attempts)
    if rank.leads:
        failures.clear()
    return SharedRole(log, failures, rank.index, rank.count, closes=rank.leads)


class _Both:
    """Passes progress on to the worker log and to the display."""

    def __init__(self, log: WorkerLog, sink: ProgressSink | None) -> None:
        self._log, self._sink = log, sink

    def __call__(self, steps: int = 1) -> None:
        self._log.advance(steps)
        if self._sink is not None:
            self._sink(steps)

    def set_total(self, total: int) -> None:
        self._log.update(planned=total)
        if self._sink is not None:
            self._sink.set_total(total)


def _await_close(writer: RunWriter, items: Items) -> None:
    """Wait until the leading rank closes the run; close it here if that takes too long."""
    for _ in range(int(_CLOSING_S / 0.1)):
        if writer.folder.exists(COMPLETE) or not writer.folder.exclusive:
            break
        time.sleep(0.1)
    finish_or_report(writer, items)


def run_in_memory(job: Job, progress: ProgressSink | None = None, *, extend: bool = False) -> Run:
    """Compute all units in this process, also as one of several ranks, and keep the run in memory."""
    if extend:
        raise UserInputError("extend adds to the run in a folder; name the folder with out")
    context = _context(job, progress, progress)
    _announce(progress, [(job.spec, unit) for unit in job.units])
    parts = {unit.key(): decode_unit(job.spec, unit, job.model, context)() for unit in job.units}
    return memory_run(joined(list(parts.values())), job.spec.to_json(), parts)


def _announce(progress: ProgressSink | None, items: Iterable[tuple[RunSpec, Unit]]) -> None:
    if progress is not None:
        progress.set_total(planned_steps(items))


def planned_steps(items: Iterable[tuple[RunSpec, Unit]]) -> int:
    """Return the maximum number of progress steps of the units."""
    return sum(planned_reveals(spec, unit) for spec, unit in items)


def joined(parts: list[Tables]) -> Tables:
    """Concatenate the tables of several units."""
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _context(job: Job, progress: ProgressSink | None, screen: ProgressSink | None) -> ComputeContext:
    """Return the context of this process; ``screen`` shows texts during decoding if it can."""
    by_spec = {policy.spec: policy for policy in job.orders}
    limit = batch_limit(job.spec.kind, job.model, job.longest)
    return ComputeContext(
        by_spec, limit, progress, screen.show_canvas if isinstance(screen, ShowsCanvas) else None
    )


def _run_pool(job: Job, options: Computing, *, on_gpu: bool, extend: bool) -> Run:
    out = options.out
    if out is None:
        raise UserInputError("several workers need a run folder to share the work; name one with out")
    if not is_loadable(job.model.name):
        raise UserInputError(
            f"model '{job.model.name}' is in this process only, so workers cannot load it; leave out "
            "workers, or write a loader (CONTRIBUTING.md, A model family)"
        )
    _refuse_unregistered(job)
    slots = _slots(options, on_gpu)
    full, items, writer = plan_and_open(job.shared_by(slots), out, extend=extend)
    with writer:
        left = writer.pending(items)
        if options.progress is not None:
            options.progress.set_total(planned_steps([items[key] for key in left]))
        if not left:
            writer.finish(items)
            return open_run(out)
    folder = writer.folder
    Failures(folder, options.chosen_engine.attempts).clear()
    remove_ended_workers(folder)
    task = _task(full, items, left, options, folder)
    _release(full)
    slots = min(slots, len(left))
    pool = _pool(task, options, slots, on_gpu)
    Supervisor(pool, slots, task, folder, options.chosen_engine.stall_s, options.progress).run()
    with open_writer(out, task.stored_spec) as writer:
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
    """Return a model's name for processes in other folders: a path becomes absolute."""
    return str(Path(name).expanduser().absolute()) if Path(name).expanduser().is_dir() else name


def _refuse_unregistered(job: Job) -> None:
    """Refuse rules that other processes cannot build from their spec."""
    from orderlens.rules import parse_policy
    from orderlens.rules.catalogue import ORDERS, RULES

    only_here = {own.get(name) for own in (ORDERS, *RULES.values()) for name in own.only_here()}
    for policy in job.orders:
        rules = {type(rule) for rule in (policy.order, policy.commit, policy.revise, policy.search)}
        if rules & only_here or type(parse_policy(policy.spec).order) is not type(policy.order):
            raise UserInputError(
                f"order '{policy.spec}' is not registered for other processes, so workers cannot load it; "
                "register it under an entry point (orderlens.orders, …), or use one worker"
            )


def _release(job: Job) -> None:
    """Free the driver's GPU memory; each worker loads its own model."""
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
