"""Workers as processes of this machine, one per GPU or several on the CPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from orderlens.runs.worker import Brief, Ending, Seat, work

_PATIENCE_S = 10.0
"""Seconds that workers are given to finish what cannot be interrupted."""


@dataclass(slots=True)
class _Hand:
    process: BaseProcess
    answer: Connection


class Processes:
    """A crew of spawned processes.

    Args:
        brief: what all of them are told.
        devices: device of each seat; None leaves the choice to the model.
        threads: CPU threads of each.
    """

    def __init__(self, brief: Brief, devices: Sequence[str | None], threads: int) -> None:
        self._brief, self._devices, self._threads = brief, devices, threads
        self._context = multiprocessing.get_context("spawn")  # a forked CUDA context does not work
        self._hands: dict[int, _Hand] = {}

    def start(self, place: int, name: str) -> None:
        """Start a worker."""
        ours, theirs = self._context.Pipe(duplex=False)
        seat = Seat(name, place, len(self._devices), self._devices[place])
        process = self._context.Process(target=_main, args=(self._brief, seat, theirs), name=name)
        with _environment(OMP_NUM_THREADS=str(self._threads), OMP_WAIT_POLICY="PASSIVE"):
            process.start()
        theirs.close()
        self._hands[place] = _Hand(process, ours)

    def ending(self, place: int) -> Ending | None:
        """Return how the worker ended; None while it lives."""
        hand = self._hands[place]
        if hand.process.is_alive():
            return None
        hand.process.join()
        try:
            if hand.answer.poll():
                found: Ending = hand.answer.recv()
                return found
        except (EOFError, OSError):
            pass  # it died before it could say anything
        code = hand.process.exitcode or 0
        return Ending(f"signal {-code}" if code < 0 else f"exit code {code}")

    def kill(self, place: int) -> None:
        """End a worker at once."""
        self._hands[place].process.kill()
        self._hands[place].process.join()

    def stop(self) -> None:
        """Ask all workers to end, then end them."""
        for hand in self._hands.values():
            if hand.process.is_alive():
                hand.process.terminate()
        for hand in self._hands.values():
            hand.process.join(_PATIENCE_S)
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join()
            hand.answer.close()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for processes started meanwhile: threads are counted when torch is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _main(brief: Brief, seat: Seat, answer: Connection) -> None:
    """Run in the new process. Ctrl-C reaches the whole group: only the driver decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True, name="orderlens-parent").start()
    answer.send(work(brief, seat))


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit(143)


def _end_with_parent() -> None:
    """A driver that was killed cannot stop its workers; its claims are then free at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
