"""Compiling kernels before they are needed, in threads, while the weights are read.

A launch on tensors without memory (torch's device "meta") binds the same types, constants and alignments as
one on a GPU, so the code that launches kernels is rehearsed as it stands and nobody keeps a second list of
what it launches with. Nothing runs on the GPU. Whatever goes wrong here is left to the first real launch.
Knows no kernel.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, Thread, get_ident
from typing import Any

import torch

from orderlens.models.torch.gpu import runs_kernels

THREADS = 16
"""Kernels that are compiled at once, at most: a part of each compilation holds Python's lock."""
SWITCH_S = 1e-4
"""Seconds after which a thread gives up that lock. Weights are copied piece by piece, and after each of them
the copying thread needs the lock again."""
PATIENCE_S = 60.0
"""Longest wait for kernels once the weights are there."""
_log = logging.getLogger(__name__)
_loading = Lock()
"""What calls a kernel is a module of its own, and all have one name: imported at once they got mixed up."""


@contextmanager
def compiling_meanwhile(rehearse: Callable[[], None], device: torch.device) -> Iterator[None]:
    """Compile what ``rehearse`` launches while the body runs; after it, wait for what is not ready yet.

    Args:
        rehearse: launches kernels on tensors without memory.
        device: where they will run; without our kernels there nothing is done.
    """
    if not runs_kernels(device) or os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    usual = sys.getswitchinterval()
    pool = LoadingPool(initializer=torch.cuda.set_device, initargs=(device,))
    thread = Thread(target=_compile, args=(rehearse, device, pool), daemon=True)
    sys.setswitchinterval(SWITCH_S)
    try:
        thread.start()
        yield
        thread.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(usual)
        pool.shutdown(wait=False, cancel_futures=True)


def _compile(rehearse: Callable[[], None], device: torch.device, pool: Executor) -> None:
    try:
        with torch.cuda.device(device):
            compile_launched(rehearse, pool)
    except Exception:  # noqa: BLE001  whatever it is, the first launch meets it again
        _log.debug("kernels are compiled when they are first launched", exc_info=True)


def compile_launched(rehearse: Callable[[], None], pool: Executor) -> None:
    """Compile in the pool's threads what ``rehearse`` launches in this one; nothing is run."""
    from triton import AsyncCompileMode

    with AsyncCompileMode(pool, ignore_errors=True), _launching_nothing():
        rehearse()


class LoadingPool(ThreadPoolExecutor):
    """Threads that also load what they have compiled: the first launch need not build its caller."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min(THREADS, os.cpu_count() or 1), "orderlens-compiling", **options)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Compile a kernel and load it."""
        return super().submit(_loaded, fn, *args, **options)


def _loaded(compile_kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    kernel = compile_kernel(*args, **options)
    try:
        with _loading:
            kernel.run  # noqa: B018  a property that loads the kernel and makes what calls it
    except Exception:  # noqa: BLE001  as above
        _log.debug("a kernel is loaded when it is first launched", exc_info=True)
    return kernel


@contextmanager
def _launching_nothing() -> Iterator[None]:
    """Let launches of this thread compile and do nothing more; those of others go on as ever."""
    from triton.runtime.jit import JITFunction

    here, launch = get_ident(), JITFunction.run

    def run(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, warmup=warmup or get_ident() == here, **options)

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = launch
