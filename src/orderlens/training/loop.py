"""The training loop: batches in, a trained model, a metrics log and resumable checkpoints out.

Weights, gradients' sums and the optimiser live in float32; on CUDA the passes run on a bfloat16 copy under
``torch.compile`` with FlexAttention, on the CPU they run on the float32 weights with plain attention. Knows
nothing of text or tokenizers: its data are windows of token ids.
"""

from __future__ import annotations

import copy
import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from orderlens.errors import ModelOutputError, RunError
from orderlens.files import storing
from orderlens.models.small.config import TransformerConfig
from orderlens.models.small.network import Transformer
from orderlens.rng import keyed_generator
from orderlens.training.attention import Execution
from orderlens.training.checkpoint import load_checkpoint, save_checkpoint
from orderlens.training.data import BatchReader, Tokens, WindowMixture
from orderlens.training.masking import sample_masks, sample_permutations, step_generator
from orderlens.training.objective import AnyOrderLoss, CausalLoss, PermutationLoss
from orderlens.training.optimiser import Optimiser, OptimiserSettings, Schedule

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Deferred:
    """Notes SIGINT and SIGTERM instead of acting on them; a second one acts at once.

    Only where Python handles them (a default SIGTERM still ends the process), and only in the main thread.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Deferred:
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


CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"
EARLY_CHECKPOINT_S = 20.0
"""Seconds between two checkpoints in the first two minutes."""
Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How a run is carried out.

    Attributes:
        window: tokens per window.
        seed: keys the initial weights and the masks (the data have their own seed).
        device: ``cpu`` or ``cuda``.
        compiled: compile the passes (CUDA only; the first step then takes about a minute).
        attention: how stream attention is executed.
        log_every: steps between two lines of the metrics log; the host waits for the device only here.
        validate_every: steps between two validation losses (0: never).
        checkpoint_seconds: wall time between two checkpoints, less in the first minutes; one is always
            written at the end and when training is interrupted.
        refresh_every: steps between two looks for new shards (0: never).
    """

    window: int = 512
    seed: int = 0
    device: str = "cpu"
    compiled: bool = False
    attention: Execution = "dense"
    log_every: int = 50
    validate_every: int = 500
    checkpoint_seconds: float = 120.0
    refresh_every: int = 0


def initial_model(config: TransformerConfig, seed: int) -> Transformer:
    """Return a fresh float32 model: output projections start at zero, so layers start as identities."""
    model = Transformer(config)
    generator = torch.Generator().manual_seed(int(keyed_generator(seed, "weights").integers(2**62)))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.ones_(parameter)
        elif name.endswith(("out.weight", "down.weight")):
            nn.init.zeros_(parameter)
        else:
            std = 0.02 if "embedding" in name else 0.5 * config.width**-0.5
            nn.init.normal_(parameter, std=std, generator=generator)
    return model


@dataclass
class Trainer:
    """One training run in one folder."""

    config: TransformerConfig
    settings: LoopSettings
    schedule: Schedule
    optimiser_settings: OptimiserSettings
    mixture: WindowMixture
    heldout: Tokens
    folder: Path
    step: int = 0
    elapsed_s: float = 0.0
    _started: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self.device = torch.device(self.settings.device)
        self.model = initial_model(self.config, self.settings.seed).to(self.device)
        mixed = self.device.type == "cuda"
        self._working = copy.deepcopy(self.model).bfloat16() if mixed else self.model
        self._optimiser = Optimiser(self.model, self.optimiser_settings)
        self._loss = self._build_loss()

    def _build_loss(self) -> Callable[..., Tensor]:
        settings = self.settings
        loss: nn.Module
        if self.config.attention == "causal":
            loss = CausalLoss(self._working)
        elif self.config.attention == "permutation":
            loss = PermutationLoss(self._working)
        else:
            loss = AnyOrderLoss(self._working, settings.window, self.device, settings.attention)
        return torch.compile(loss, dynamic=False) if settings.compiled else loss

    def loss(self, windows: Tokens, mask_key: tuple[int, int]) -> Tensor:
        """Return the loss of a batch of windows under the masks of ``mask_key`` = (seed, step)."""
        host = torch.from_numpy(windows.astype("int64"))
        if self.device.type == "cuda":
            host = host.pin_memory()
        tokens_BT = host.to(self.device, non_blocking=True)
        if self.config.attention == "causal":
            return self._loss(tokens_BT)
        batch, length = tokens_BT.shape
        if self.config.attention == "permutation":
            order = sample_permutations(batch, length, step_generator(*mask_key, self.device))
            return self._loss(tokens_BT, order.rank, order.weight)
        group = self.config.block_size if self.config.attention == "block-causal" else length
        masks = sample_masks(batch, length, group, step_generator(*mask_key, self.device))
        return self._loss(tokens_BT, masks.first, masks.weight)

    def train_step(self, windows: Tokens, factor: float) -> tuple[Tensor, Tensor]:
        """Take one optimiser step; return the loss and the gradient norm as device scalars."""
        loss = self.loss(windows, (self.settings.seed, self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        self._move_gradients()
        norm = self._optimiser.step(factor)
        self._refresh_working()
        return loss.detach(), norm

    def _move_gradients(self) -> None:
        for master, working in zip(self.model.parameters(), self._working.parameters(), strict=True):
            if working is not master:
                assert working.grad is not None
                master.grad = working.grad.float()

    @torch.no_grad()
    def _refresh_working(self) -> None:
        if self._working is not self.model:
            torch._foreach_copy_(list(self._working.parameters()), list(self.model.parameters()))
        self._working.zero_grad(set_to_none=True)

    def run(self, report: Report | None = None) -> dict[str, Any]:
        """Train until the budget is spent; returns the last metrics. Call again after ``resume`` to go on.

        An interrupt (SIGINT, SIGTERM) takes effect after the running step, with a checkpoint written.
        """
        self._started = time.monotonic() - self.elapsed_s
        reader = BatchReader(self.mixture, self.step, self.settings.refresh_every)
        with Deferred() as stop:
            try:
                last = self._steps(reader, report, stop)
            finally:
                reader.close()
            self.checkpoint()
        stop.deliver()
        return last

    def _steps(self, reader: BatchReader, report: Report | None, stop: Deferred) -> dict[str, Any]:
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
            if now - saved > self._checkpoint_gap(now - begun):
                self.checkpoint()
                saved = time.monotonic()
        return last

    def _checkpoint_gap(self, worked_s: float) -> float:
        """Return the seconds between two checkpoints: short while little work would be lost, then longer."""
        return min(self.settings.checkpoint_seconds, max(EARLY_CHECKPOINT_S, worked_s / 6))

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
            "grad_norm": round(float(norm), 5),
            "lr_factor": round(factor, 5),
            "progress": round(self.schedule.progress(self.step, self.elapsed_s), 5),
            "tokens": self.step * sum(self.mixture.rows.values()) * self.settings.window,
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

    def heldout_loss(self, batches: int = 2) -> float:
        """Return the loss on held-out windows under fixed masks (NaN when there are none).

        Gradients stay enabled so that the compiled training pass is used as it is.
        """
        size = sum(self.mixture.rows.values())
        usable = [self.heldout[i * size : (i + 1) * size] for i in range(batches)]
        usable = [windows for windows in usable if len(windows) == size] or (
            [self._repeated(size)] if len(self.heldout) else []
        )
        losses = [float(self.loss(windows, (-1, index)).detach()) for index, windows in enumerate(usable)]
        return sum(losses) / len(losses) if losses else math.nan

    def _repeated(self, size: int) -> Tokens:
        """Fill a batch from too few held-out windows: compiled passes want one batch shape."""
        return self.heldout[[index % len(self.heldout) for index in range(size)]]

    def checkpoint(self) -> None:
        """Write the run's whole state."""
        state = {
            "config": asdict(self.config),
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "phases": self.mixture.state(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
        }
        save_checkpoint(self.folder / CHECKPOINT, state)

    def resume(self) -> None:
        """Continue from the folder's checkpoint."""
        state = load_checkpoint(self.folder / CHECKPOINT, self.device)
        if state["config"] != asdict(self.config):
            raise RunError(f"{self.folder}: the checkpoint holds another model shape; choose another folder")
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.mixture.restore(state["phases"])
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
        self._refresh_working()
