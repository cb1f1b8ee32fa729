"""Workers as Ray actors, on this machine or on a cluster; they share units through the store."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from typing import Any

from orderlens.errors import (
    MissingPackageError,
    OrderLensError,
    UserInputError,
    WorkersLostError,
    one_line,
)
from orderlens.runs.options import Engine
from orderlens.runs.worker import WorkerResult, WorkerSlot, WorkerTask, work

_ANSWER_S = 10.0
"""Seconds to wait for an answer of the cluster."""
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


class RayActors:
    """A pool of Ray actors, each with one GPU or its share of CPUs.

    Args:
        task: the task of all workers.
        engine: address and threads.
        slots: number of workers.
        on_gpu: whether each worker needs a GPU.
        device: requested device; None leaves the choice to the model.
    """

    def __init__(
        self, task: WorkerTask, engine: Engine, slots: int, *, on_gpu: bool, device: str | None
    ) -> None:
        self._ray, self._ours = _connect(engine, slots)
        self._device = "cuda" if on_gpu else device
        self._threads = engine.threads or 1
        self._options: dict[str, Any] = {"num_gpus": 1} if on_gpu else {"num_cpus": self._threads}
        self._slots = slots
        self._running: dict[int, Any] = {}
        self._actors: dict[int, Any] = {}
        self._refuse_too_many(on_gpu)
        self._task = self._ray.put(task)

    def start(self, place: int, name: str) -> None:
        variables = {"OMP_NUM_THREADS": str(self._threads), "OMP_WAIT_POLICY": "PASSIVE"}
        maker = self._ray.remote(max_restarts=0, **self._options)(_Actor)
        actor = maker.options(runtime_env={"env_vars": variables}).remote()
        self._actors[place] = actor
        slot = WorkerSlot(name, place, self._slots, self._device)
        self._running[place] = actor.run.remote(self._task, slot)

    def result(self, place: int) -> WorkerResult | None:
        done, _ = self._ray.wait([self._running[place]], timeout=0)
        if not done:
            return None
        try:
            found: WorkerResult = self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            return WorkerResult(f"{type(error).__name__}: {one_line(error)[:300]}")
        return found

    def kill(self, place: int) -> None:
        self._ray.kill(self._actors[place])

    def stop(self) -> None:
        """Kill all actors, and disconnect from the cluster unless the caller had connected before."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def _refuse_too_many(self, on_gpu: bool) -> None:
        room = _room(self._ray, on_gpu, self._threads)
        if self._slots > room:
            what = "GPUs" if on_gpu else f"times {self._threads} CPUs"
            self.stop()
            raise UserInputError(
                f"{self._slots} workers need {self._slots} {what}, but the Ray cluster has {room}; "
                f"use --workers {max(room, 1)}"
            )


class _Actor:
    """The Ray actor in whose process a worker runs."""

    def run(self, task: WorkerTask, slot: WorkerSlot) -> WorkerResult:
        """Compute units until none is left."""
        return work(task, slot)


def slots(engine: Engine, on_gpu: bool) -> int:
    """Return the number of actors: as requested, else what the cluster has room for.

    Checks the address first, because Ray would try it for minutes.

    Raises:
        MissingPackageError: Ray is not installed.
        UserInputError: no cluster answers.
    """
    ray, threads = _import_ray(), engine.threads or 1
    _check_address(engine)
    if engine.workers is not None:
        return engine.workers
    if engine.address is None and not ray.is_initialized():  # Ray will be started on this machine
        return max(1, _gpus_here() if on_gpu else (os.cpu_count() or 1) // threads)
    _, ours = _connect(engine, 1)
    try:
        return max(1, _room(ray, on_gpu, threads))
    finally:
        if ours:
            ray.shutdown()


def _gpus_here() -> int:
    from orderlens.models.engine.device import visible_gpus

    return visible_gpus()


def _check_address(engine: Engine) -> None:
    host, _, port = (engine.address or "").rpartition(":")
    if host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise _no_cluster(engine, error) from error


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingPackageError(
            "engine ray needs Ray; install it with: pip install 'orderlens[ray]'"
        ) from error


def _no_cluster(engine: Engine, error: Exception) -> OrderLensError:
    if engine.address is None:
        return WorkersLostError(
            f"Ray did not start on this machine ({one_line(error)[:200]}); run the same command again, or "
            "use --engine local"
        )
    return UserInputError(
        f"no Ray cluster answers at '{engine.address}' ({one_line(error)[:200]}); start one with "
        "'ray start --head', or leave out --address"
    )


def _connect(engine: Engine, slots: int) -> tuple[Any, bool]:
    """Connect to the cluster; return Ray and whether the connection was opened here."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import_ray()
    if ray.is_initialized():
        return ray, False
    try:
        if engine.address is not None:
            ray.init(address=engine.address, **_QUIET)
        else:
            wanted = slots * (engine.threads or 1)
            ray.init(num_cpus=max(wanted, os.cpu_count() or 1), include_dashboard=False, **_QUIET)
    except Exception as error:  # Ray also raises plain exceptions if a node starts too slowly
        raise _no_cluster(engine, error) from error
    return ray, True


def _room(ray: Any, on_gpu: bool, threads: int) -> int:
    """Return the number of actors that the cluster has room for."""
    found = ray.cluster_resources()
    return int(found.get("GPU", 0) if on_gpu else found.get("CPU", 0) // threads)
