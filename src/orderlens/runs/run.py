"""``run_job``: the door to all engines.

One process works through a job alone; several (processes of this machine, Ray actors, ranks that torchrun or
Slurm started) share it through the run folder. The rows are the same.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

from orderlens.errors import UserInputError
from orderlens.models.abilities import ReleasesMemory, device_type
from orderlens.runs import local
from orderlens.runs.crew import Crew, Supervisor
from orderlens.runs.failures import Failures
from orderlens.runs.history import Items, open_plan, stated
from orderlens.runs.job import Job
from orderlens.runs.options import Computing
from orderlens.runs.processes import Processes
from orderlens.runs.ranks import this_rank
from orderlens.runs.worker import Brief, brief_items, new_session
from orderlens.runs.worker_log import forget_workers
from orderlens.store.protocol import Folder
from orderlens.store.reader import Run, open_run
from orderlens.store.writer import DEFAULT_LEASE_S, open_writer


def run_job(job: Job, options: Computing, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming what is there), or in memory.

    Args:
        job: what to compute.
        options: where to keep it, who computes it, and who is told of progress.
        extend: add to the run in the folder what it lacks of the job's orders and samples.
    """
    _refuse_unidentified(job, options)
    rank, on_gpu = this_rank(), device_type(job.model) == "cuda"
    if rank is not None and options.engine.kind == "local" and options.engine.workers is None:
        return local.run_here(job.shared_by(rank.count), options, rank, extend=extend)
    if options.engine.kind == "local" and _seats(options, on_gpu) == 1:
        return local.run_here(job, options, extend=extend)
    return _run_crew(job, options, on_gpu=on_gpu, extend=extend)


def _refuse_unidentified(job: Job, options: Computing) -> None:
    """A folder cannot tell a model without a digest from another one, so it could be resumed with either."""
    if options.out is not None and not job.model.digest:
        raise UserInputError(
            f"model '{job.model.name}' has no digest, so the folder {options.out} could not tell it from "
            "another model; give it a digest of what determines its numbers (StubModel(…, digest='…')), "
            "or leave out the folder to keep the run in memory"
        )


def _seats(options: Computing, on_gpu: bool) -> int:
    """Return how many workers there will be: as asked, else one per GPU of this machine or of the cluster."""
    engine = options.engine
    if engine.kind == "ray":
        from orderlens.runs.ray_actors import seats

        return seats(engine, on_gpu)
    return engine.workers or (_gpus() if on_gpu and options.device in (None, "auto", "cuda") else 1)


def _run_crew(job: Job, options: Computing, *, on_gpu: bool, extend: bool) -> Run:
    out = options.out
    if out is None:
        raise UserInputError("several workers share a run through its folder: give out")
    seats = _seats(options, on_gpu)
    whole, items, writer = open_plan(job.shared_by(seats), out, extend=extend)
    _refuse_unregistered(whole)
    with writer:
        left = writer.pending(items)
        if options.progress is not None:
            options.progress.set_total(local.ahead([items[key] for key in left]))
        if not left:
            writer.finish(items)
            return open_run(out)
    folder = writer.folder
    Failures(folder, options.engine.attempts).forget()
    forget_workers(folder)
    brief = _brief(whole, items, left, options, folder)
    _release(whole)
    seats = min(seats, len(left))
    crew = _crew(brief, options, seats, on_gpu)
    Supervisor(crew, seats, brief, folder, options.engine.stall_s, options.progress).run()
    with open_writer(out, brief.stated) as writer:
        writer.finish(items)
    return open_run(out)


def _brief(job: Job, items: Items, left: list[str], options: Computing, folder: Folder) -> Brief:
    specs, units = brief_items({key: items[key] for key in left})
    return Brief(
        folder.location("").rstrip("/"),
        stated(job, folder),
        specs,
        units,
        _findable(str(job.spec.model["name"])),
        options.dtype,
        new_session(),
        options.engine.attempts,
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


def _crew(brief: Brief, options: Computing, seats: int, on_gpu: bool) -> Crew:
    engine = options.engine
    if engine.kind == "ray":
        from orderlens.runs.ray_actors import RayActors

        return RayActors(brief, engine, seats, on_gpu=on_gpu, device=options.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = engine.threads or max(1, cores // seats)
    devices = [f"cuda:{place % _gpus()}" if on_gpu else options.device for place in range(seats)]
    return Processes(brief, devices, threads)


def _gpus() -> int:
    from orderlens.models.engine.device import visible_gpus

    return max(visible_gpus(), 1)
