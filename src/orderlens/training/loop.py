"""The training loop: from batches to a trained model, a metrics log and resumable checkpoints.

Weights, gradients and the optimiser are float32. On CUDA the passes run on a bfloat16 copy under
``torch.compile`` with FlexAttention. On the CPU they run on the float32 weights with plain attention, or on a
bfloat16 copy on request. Does not depend on text or tokenizers: its data are windows of token ids.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orderlens.common.rng import keyed_generator
from orderlens.errors import RunError
from orderlens.models.small.network import Transformer, TransformerConfig
from orderlens.training.data import Tokens, WindowMixture
from orderlens.training.objective import (
    AnyOrderLoss,
    AttentionBackend,
    CausalLoss,
    PermutationLoss,
    sample_masks,
    sample_permutations,
    step_generator,
)
from orderlens.training.optimiser import LearningRateSchedule, Optimiser, OptimiserSettings
from orderlens.training.steps import (
    CHECKPOINT,
    Report,
    StepSettings,
    TrainingRun,
    load_checkpoint,
    save_checkpoint,
)

EARLY_CHECKPOINT_S = 20.0
"""Seconds between two checkpoints in the first two minutes."""


@dataclass(frozen=True, slots=True)
class LoopSettings(StepSettings):
    """Step settings plus the settings for a whole network.

    Attributes:
        compiled: compile the passes (the first step then takes about a minute).
        bfloat16: run the passes on a bfloat16 copy of the weights; by default on CUDA only.
        attention: backend of stream attention.
        checkpoint_seconds: wall time between two checkpoints, less in the first minutes; one is always
            written at the end and on an interrupt.
    """

    compiled: bool = False
    bfloat16: bool | None = None
    attention: AttentionBackend = "dense"
    checkpoint_seconds: float = 120.0


def initial_model(config: TransformerConfig, seed: int) -> Transformer:
    """Return a new float32 model; output projections start at zero, so layers start as identities."""
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
class Trainer(TrainingRun):
    """One training run in one folder."""

    config: TransformerConfig
    settings: LoopSettings
    schedule: LearningRateSchedule
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
        wanted = self.settings.bfloat16
        mixed = self.device.type == "cuda" if wanted is None else wanted
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
        tokens_BT = self.on_device(windows)
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
        """Train until the budget is spent; return the last metrics. Call again after ``resume`` to continue.

        See ``TrainingRun.train_until_budget`` about interrupts.
        """
        return self.train_until_budget(report)

    def checkpoint_interval(self, worked_s: float) -> float:
        """Return the seconds until the next checkpoint: short at first, then longer."""
        return min(self.settings.checkpoint_seconds, max(EARLY_CHECKPOINT_S, worked_s / 6))

    def heldout_loss(self, batches: int = 2) -> float:
        """Return the loss on held-out windows under fixed masks (NaN when there are none).

        Gradients stay enabled so that the compiled training pass is reused.
        """
        size = sum(self.mixture.rows.values())
        usable = [self.heldout[i * size : (i + 1) * size] for i in range(batches)]
        usable = [windows for windows in usable if len(windows) == size] or (
            [self.heldout_batch(size)] if len(self.heldout) else []
        )
        losses = [float(self.loss(windows, (-1, index)).detach()) for index, windows in enumerate(usable)]
        return sum(losses) / len(losses) if losses else math.nan

    def checkpoint(self) -> None:
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
            raise RunError(
                f"{self.folder}: its checkpoint has another model shape; "
                "use the same options or another folder"
            )
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.mixture.restore(state["phases"])
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
        self._refresh_working()
