"""The base class of training runs: batches, budget, log, checkpoints, interrupts.

A subclass defines a step and the contents of a checkpoint. Does not depend on text, tokenizers or losses.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from orderlens.common.files import replacing, storing
from orderlens.errors import ModelLoadError, ModelOutputError
from orderlens.training.data import BatchReader, Tokens, WindowMixture
from orderlens.training.optimiser import LearningRateSchedule

CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"
FORMAT = 1
"""Format version of a checkpoint."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Report = Callable[[dict[str, Any]], None]
"""Receives each line of the log."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings of the steps of a run.

    Attributes:
        window: tokens per window.
        seed: seed of the initial weights and the masks (the data have another seed).
        device: ``cpu`` or ``cuda``.
        log_every: steps between two lines of the log; only then the host waits for the device.
        validate_every: steps between two held-out losses (0: never).
        refresh_every: steps between two checks for new shards (0: never).
    """

    window: int = 512
    seed: int = 0
    device: str = "cpu"
    log_every: int = 50
    validate_every: int = 500
    refresh_every: int = 0


class TrainingRun(ABC):
    """A training run in one folder: its progress, settings and data."""

    settings: StepSettings
    schedule: LearningRateSchedule
    mixture: WindowMixture
    heldout: Tokens
    folder: Path
    device: torch.device
    step: int
    elapsed_s: float
    _started: float

    @abstractmethod
    def train_step(self, windows: Tokens, factor: float) -> tuple[Tensor, Tensor]:
        """Take one optimiser step; return the loss and the gradient norm as device scalars."""

    @abstractmethod
    def heldout_loss(self) -> float:
        """Return the loss on held-out windows under fixed masks (NaN when there are none)."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Write the complete state of the run."""

    @abstractmethod
    def checkpoint_interval(self, worked_s: float) -> float:
        """Return the seconds until the next checkpoint after ``worked_s`` seconds of work."""

    def extra_log_fields(self) -> dict[str, Any]:
        """Return further fields of a log line."""
        return {}

    @property
    def n_tokens(self) -> int:
        """Number of tokens trained on so far."""
        return self.step * sum(self.mixture.rows.values()) * self.settings.window

    def on_device(self, windows: Tokens) -> Tensor:
        """Return windows as token ids [B, T] on the device."""
        host = torch.from_numpy(windows.astype("int64"))
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def heldout_batch(self, size: int) -> Tokens:
        """Return ``size`` held-out windows, repeated if there are fewer: compiled passes need one shape."""
        return self.heldout[[index % len(self.heldout) for index in range(size)]]

    def train_until_budget(self, report: Report | None, began: float | None = None) -> dict[str, Any]:
        """Train until the budget is spent, with a checkpoint at the end; return the last line of the log.

        An interrupt (SIGINT, SIGTERM) takes effect after the running step, with a checkpoint written.

        Args:
            report: receives each line of the log.
            began: start of this part of the work, by ``time.monotonic``; now by default.
        """
        self._started = (time.monotonic() if began is None else began) - self.elapsed_s
        reader = BatchReader(self.mixture, self.step, self.settings.refresh_every)
        with DeferredSignals() as stop:
            try:
                last = self._steps(reader, report, stop)
            finally:
                reader.close()
            self.checkpoint()
        stop.deliver()
        return last

    def _steps(self, reader: BatchReader, report: Report | None, stop: DeferredSignals) -> dict[str, Any]:
        begun = saved = time.monotonic()
        last: dict[str, Any] = {}
        for windows in reader:
            if stop.pending is not None:
                break
            self.elapsed_s = time.monotonic() - self._started
            if self.schedule.progress(self.step, self.elapsed_s) >= 1:
                break
            factor = self.schedule.factor(self.step, self.elapsed_s)
            loss, norm = self.train_step(windows, factor)
            self.step += 1
            if self.step % self.settings.log_every == 0 or self.step == self.schedule.steps:
                last = self._log(loss, norm, factor, report)
            now = time.monotonic()
            if now - saved > self.checkpoint_interval(now - begun):
                self.checkpoint()
                saved = time.monotonic()
        return last

    def _log(self, loss: Tensor, norm: Tensor, factor: float, report: Report | None) -> dict[str, Any]:
        value = float(loss)
        if not math.isfinite(value):
            raise ModelOutputError(
                f"the loss is {value} at step {self.step}; lower the learning rate and resume"
            )
        self.elapsed_s = time.monotonic() - self._started
        line: dict[str, Any] = {
            "step": self.step,
            "loss": round(value, 5),
            **self.extra_log_fields(),
            "grad_norm": round(float(norm), 5),
            "lr_factor": round(factor, 5),
            "progress": round(self.schedule.progress(self.step, self.elapsed_s), 5),
            "tokens": self.n_tokens,
            "elapsed_s": round(self.elapsed_s, 2),
            "phases": len(self.mixture.phases),
        }
        if self.settings.validate_every and self.step % self.settings.validate_every == 0:
            line["heldout_loss"] = round(self.heldout_loss(), 5)
        with storing(self.folder / METRICS), (self.folder / METRICS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        if report:
            report(line)
        return line


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` atomically: ``path`` is always a complete checkpoint, the old one or the new one."""
    with replacing(path) as fresh, fresh.open("wb") as stream:
        torch.save({"format": FORMAT, **state}, stream)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only plain data and tensors are accepted, never code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: no checkpoint here; start training without --resume") from error
    except Exception as error:
        raise ModelLoadError(
            f"{path}: not a training checkpoint ({type(error).__name__}); train without --resume"
        ) from error
    if state.get("format") != FORMAT:
        raise ModelLoadError(f"{path}: checkpoint format {state.get('format')}, expected {FORMAT}")
    return state


class DeferredSignals:
    """Defers SIGINT and SIGTERM; a second signal takes effect immediately.

    Applies only to signals that Python handles (a default SIGTERM still ends the process), in the main
    thread.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            self._before[number](number, frame)
        self.pending = number

    def deliver(self) -> None:
        """Deliver the deferred signal, if there is one."""
        if self.pending is not None:
            self._before[self.pending](self.pending, None)
