"""What every training run does around its steps: batches, budget, log, checkpoints, interrupts.

A subclass says what a step is and what a checkpoint holds. Knows nothing of text, tokenizers or losses.
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
"""Of a checkpoint."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Report = Callable[[dict[str, Any]], None]
"""Is given each line of the log."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How the steps of a run are carried out.

    Attributes:
        window: tokens per window.
        seed: keys the initial weights and the masks (the data have their own seed).
        device: ``cpu`` or ``cuda``.
        log_every: steps between two lines of the log; the host waits for the device only here.
        validate_every: steps between two held-out losses (0: never).
        refresh_every: steps between two looks for new shards (0: never).
    """

    window: int = 512
    seed: int = 0
    device: str = "cpu"
    log_every: int = 50
    validate_every: int = 500
    refresh_every: int = 0


class TrainingRun(ABC):
    """A run in one folder: how far it is, and what it goes on with."""

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
        """Write the run's whole state."""

    @abstractmethod
    def gap_seconds(self, worked_s: float) -> float:
        """Return the seconds between two checkpoints after so many seconds of work."""

    def remarks(self) -> dict[str, Any]:
        """Return what a line of the log says besides what all runs say."""
        return {}

    @property
    def n_tokens(self) -> int:
        """Tokens that were trained on."""
        return self.step * sum(self.mixture.rows.values()) * self.settings.window

    def on_device(self, windows: Tokens) -> Tensor:
        """Return windows as token ids [B, T] on the device."""
        host = torch.from_numpy(windows.astype("int64"))
        if self.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self.device, non_blocking=True)

    def heldout_batch(self, size: int) -> Tokens:
        """Return as many held-out windows, repeated where there are fewer: compiled passes want one shape."""
        return self.heldout[[index % len(self.heldout) for index in range(size)]]

    def spend(self, report: Report | None, began: float | None = None) -> dict[str, Any]:
        """Train until the budget is spent, with a checkpoint at the end; return the last line of the log.

        An interrupt (SIGINT, SIGTERM) takes effect after the running step, with a checkpoint written.

        Args:
            report: is given each line of the log.
            began: when this stretch of work began, by ``time.monotonic``; now by default.
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
            if now - saved > self.gap_seconds(now - begun):
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
            **self.remarks(),
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
    """Write ``state`` so that ``path`` is always a whole checkpoint, the old one or the new one."""
    with replacing(path) as fresh, fresh.open("wb") as stream:
        torch.save({"format": FORMAT, **state}, stream)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only plain data and tensors are accepted, never code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: no checkpoint here; start training without --resume") from error
    except Exception as error:
        raise ModelLoadError(f"{path}: not a training checkpoint ({type(error).__name__})") from error
    if state.get("format") != FORMAT:
        raise ModelLoadError(f"{path}: checkpoint format {state.get('format')}, expected {FORMAT}")
    return state


class DeferredSignals:
    """Notes SIGINT and SIGTERM instead of acting on them; a second one acts at once.

    Only where Python handles them (a default SIGTERM still ends the process), and only in the main thread.
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
        """Act on the signal that came, if one did."""
        if self.pending is not None:
            self._before[self.pending](self.pending, None)
