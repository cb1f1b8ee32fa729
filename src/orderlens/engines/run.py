"""``run_job``: the door to all engines.

One process works through a job alone; several (processes of this machine, Ray actors, ranks that torchrun or
Slurm started) share it through the run folder. The rows are the same.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

from orderlens.engines import local
from orderlens.engines.crew import Crew, Supervisor
from orderlens.engines.history import Items, plan_folder, stated
from orderlens.engines.processes import Processes
from orderlens.engines.ranks import this_rank
from orderlens.engines.worker import Brief, brief_items, new_session
from orderlens.errors import UserInputError
from orderlens.models.abilities import ReleasesMemory, device_type
from orderlens.store.failures import Failures
from orderlens.store.folder import open_folder
from orderlens.store.reader import Run, open_run
from orderlens.store.workers import forget_workers
from orderlens.store.writer import DEFAULT_LEASE_S, open_writer
from orderlens.work.job import Job
from orderlens.work.options import Computing


def run_job(job: Job, options: Computing, *, extend: bool = False) -> Run:
    """Compute all units into the folder ``options.out`` (resuming what is there), or in memory.

    Args:
        job: what to compute.
        options: where to keep it, who computes it, and who is told of progress.
        extend: add to the run in the folder what it lacks of the job's orders and samples.
    """
    engine, on_gpu = options.engine, device_type(job.model) == "cuda"
    rank = this_rank()
    if rank is not None and engine.kind == "local" and engine.workers is None:
        return local.run_here(job, options, rank, extend=extend)
    seats = engine.workers or (_gpus() if on_gpu and options.device in (None, "auto", "cuda") else 1)
    if engine.kind == "local" and seats == 1:
        return local.run_here(job, options, extend=extend)
    return _run_crew(job, options, seats, on_gpu=on_gpu, extend=extend)


def _run_crew(job: Job, options: Computing, seats: int, *, on_gpu: bool, extend: bool) -> Run:
    out = options.out
    if out is None:
        raise UserInputError("several workers share a run through its folder: give out")
    if options.engine.kind == "ray":
        from orderlens.engines.ray_actors import check_cluster

        check_cluster(options.engine)
    folder = open_folder(out)
    whole, items = plan_folder(job, folder, extend=extend)
    _refuse_unregistered(whole)
    with open_writer(out, stated(whole, folder)) as writer:
        left = writer.pending(items)
        if options.progress is not None:
            options.progress.set_total(local.ahead([items[key] for key in left]))
        if not left:
            writer.finish(items)
            return open_run(out)
    Failures(folder, options.engine.attempts).forget()
    forget_workers(folder)
    brief = _brief(whole, items, left, options, folder.location(""))
    _release(whole)
    crew, seats = _crew(brief, options, min(seats, len(left)), on_gpu)
    Supervisor(crew, seats, brief, folder, options.engine.stall_s, options.progress).run()
    with open_writer(out, brief.stated) as writer:
        writer.finish(items)
    return open_run(out)


def _brief(job: Job, items: Items, left: list[str], options: Computing, out: str) -> Brief:
    specs, units = brief_items({key: items[key] for key in left})
    return Brief(
        out.rstrip("/"),
        stated(job, open_folder(out)),
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
    from orderlens.policies import parse_policy

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


def _crew(brief: Brief, options: Computing, seats: int, on_gpu: bool) -> tuple[Crew, int]:
    engine = options.engine
    if engine.kind == "ray":
        from orderlens.engines.ray_actors import RayActors

        actors = RayActors(brief, engine, on_gpu=on_gpu, device=options.device)
        return actors, min(actors.seats, len(brief.units))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = engine.threads or max(1, cores // seats)
    devices = [f"cuda:{place % _gpus()}" if on_gpu else options.device for place in range(seats)]
    return Processes(brief, devices, threads), seats


def _gpus() -> int:
    from orderlens.models.torch.device import visible_gpus

    return max(visible_gpus(), 1)
