"""Compiling kernels before they are needed, in threads, while the weights are read.

A launch on tensors without memory (torch's device "meta") binds the same types, constants and alignments as
one on a GPU, so the code that launches kernels is rehearsed as it stands and nobody keeps a second list of
what it launches with. Nothing runs on the GPU. Whatever goes wrong here, or takes too long, is left to the
first real launch. Several models may be loaded at once. Knows no kernel.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock, Thread, local
from typing import Any

import torch

from orderlens.kernels.gpu import runs_kernels

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


class Lasting:
    """A change to the whole process that lasts while anybody needs it: the last one undoes it.

    If each undid its own, whoever ends last would bring back what whoever began first had changed.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        """Take what makes the change and returns what undoes it."""
        self._change, self._lock, self._users = change, Lock(), 0
        self._undo: Callable[[], None] = lambda: None

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Have it while the body runs."""
        with self._lock:
            if not self._users:
                self._undo = self._change()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._undo()


def _switch_often() -> Callable[[], None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    return lambda: sys.setswitchinterval(usual)


def _launch_nothing_here() -> Callable[[], None]:
    """Let launches of threads that rehearse compile and do nothing more; those of others go on as ever."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def run(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, warmup=warmup or getattr(_here, "rehearses", False), **options)

    def undo() -> None:
        JITFunction.run = launch

    JITFunction.run = run
    return undo


_here = local()
_often, _quiet = Lasting(_switch_often), Lasting(_launch_nothing_here)


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
    pool = LoadingPool(initializer=torch.cuda.set_device, initargs=(device,))
    thread = Thread(target=_compile, args=(rehearse, device, pool), daemon=True)
    with _often.needed():
        try:
            thread.start()
            yield
            thread.join(PATIENCE_S)
        finally:
            pool.close()


def _compile(rehearse: Callable[[], None], device: torch.device, pool: Executor) -> None:
    try:
        with torch.cuda.device(device):
            compile_launched(rehearse, pool)
    except Exception:  # noqa: BLE001  whatever it is, the first launch meets it again
        _log.debug("kernels are compiled when they are first launched", exc_info=True)


def compile_launched(rehearse: Callable[[], None], pool: Executor) -> None:
    """Compile in the pool's threads what ``rehearse`` launches in this one; nothing is run."""
    from triton import AsyncCompileMode

    class Mode(AsyncCompileMode):  # type: ignore[misc]
        def submit(self, *arguments: Any) -> None:
            """Compile; launches find the kernel once it is there, and until then none.

            Newer versions of Triton would let them find, for good, one that failed or never comes.
            """
            super().submit(*arguments)

    with Mode(pool, ignore_errors=True), rehearsing():
        rehearse()


@contextmanager
def rehearsing() -> Iterator[None]:
    """Let launches of this thread compile and do nothing more."""
    with _quiet.needed():
        _here.rehearses = True
        try:
            yield
        finally:
            _here.rehearses = False


class LoadingPool(ThreadPoolExecutor):
    """Threads that also load what they have compiled: the first launch need not build its caller."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min(THREADS, os.cpu_count() or 1), "orderlens-compiling", **options)
        self._closed = Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Compile a kernel and load it."""
        return super().submit(self._loaded, fn, *args, **options)

    def close(self) -> None:
        """Begin nothing more, and wait for nothing; what waits in line fails, so nobody waits for it."""
        self._closed.set()  # futures that are cancelled instead tell nobody who waits for several
        self.shutdown(wait=False)

    def _loaded(self, compile_kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._closed.is_set():
            raise RuntimeError("kernels are no longer compiled ahead")
        kernel = compile_kernel(*args, **options)
        try:
            with _loading:
                kernel.run  # noqa: B018  a property that loads the kernel and makes what calls it
        except Exception:  # noqa: BLE001  as above
            _log.debug("a kernel is loaded when it is first launched", exc_info=True)
        return kernel
