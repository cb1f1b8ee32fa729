"""The training loop of an adapter: from windows to adapter files, a metrics log and resumable checkpoints.

On CUDA the passes run in bfloat16, compiled layer by layer with FlexAttention. If that does not compile or
does not fit in memory, a simpler method is selected before the first step. On the CPU they run in float32
with plain attention. Does not depend on text or tokenizers.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from adapter_files import save_adapter
from lowrank import LowRank, LowRankRates, MaskedStreams
from torch import Tensor

from orderlens.errors import RunError, one_line
from orderlens.models.small.network import Transformer
from orderlens.models.smol.adapter import AdapterSettings
from orderlens.training.data import Tokens, WindowMixture
from orderlens.training.objective import AttentionBackend, MaskPair, pair_weights, step_generator
from orderlens.training.optimiser import LearningRateSchedule
from orderlens.training.steps import (
    CHECKPOINT,
    Report,
    StepSettings,
    TrainingRun,
    load_checkpoint,
    save_checkpoint,
)

RATIO_BINS = 8
METHODS: tuple[tuple[AttentionBackend, bool], ...] = (("flex", True), ("dense", True), ("dense", False))
"""Attention backend and whether layers are compiled, best first; the CPU uses the last."""


@dataclass(frozen=True, slots=True)
class AdaptSettings(StepSettings):
    """Step settings plus the settings for an adapter.

    Attributes:
        cut_share: share of blocks that are cut in two instead of hidden at random (see ``sample_cut_masks``).
        save_seconds: wall time between two saved adapters; one is always saved at the end.
    """

    log_every: int = 20
    validate_every: int = 200
    cut_share: float = 0.3
    save_seconds: float = 60.0


def sample_cut_masks(
    batch: int, length: int, block_size: int, cut_share: float, generator: torch.Generator
) -> MaskPair:
    """Draw masks in which a share of the blocks is cut in two instead of hidden at random.

    In a cut block the first copy hides everything before the cut (a state of decoding right to left), the
    second everything after it (left to right). The token next to the cut is the one that such an order
    reveals next; it gets half of its copy's weight, and the hidden tokens share the other half. Other blocks
    are as in ``sample_masks``.
    """
    device, blocks = generator.device, length // block_size
    score = torch.rand(batch, blocks, block_size, generator=generator, device=device)
    cut = torch.rand(batch, blocks, 1, generator=generator, device=device) < cut_share
    size = torch.randint(0, block_size + 1, (batch, blocks, 1), generator=generator, device=device)
    place = torch.arange(block_size, device=device)
    first = torch.where(cut, place.expand_as(score), score.argsort(-1).argsort(-1)) < size
    even = pair_weights(first, size)
    at_cut = (
        ((place == size) | (place == size - 1)).float() * (block_size + 1) / (batch * blocks * 2 * block_size)
    )
    weight = torch.where(cut, (even + at_cut) / 2, even)
    return MaskPair(first.view(batch, length), weight.view(batch, length))


class RatioLosses:
    """Sums of token losses by the hidden share of their block, on the device."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block = block_size
        self._sums = torch.zeros(RATIO_BINS, device=device)
        self._counts = torch.zeros(RATIO_BINS, device=device)

    def add(self, losses_R: Tensor, first_BT: Tensor) -> None:
        """Add one batch of losses."""
        blocks = first_BT.view(-1, self._block)
        size = blocks.sum(1, keepdim=True)
        hidden_R = torch.where(blocks, size, self._block - size).flatten()
        place = ((hidden_R - 1) * RATIO_BINS // self._block).long()
        self._sums.index_add_(0, place, losses_R.detach().float())
        self._counts.index_add_(0, place, torch.ones_like(losses_R, dtype=torch.float32))

    def take(self) -> dict[str, float]:
        """Return the means since the last call, by upper end of the bin's hidden share."""
        means = (self._sums / self._counts).tolist()
        self._sums.zero_()
        self._counts.zero_()
        return {f"{(place + 1) / RATIO_BINS:g}": round(value, 4) for place, value in enumerate(means)}


class AdapterTrainer(TrainingRun):
    """One run in one folder; the adapter itself is saved to ``out``."""

    settings: AdaptSettings

    def __init__(
        self,
        base: Transformer,
        adapter: AdapterSettings,
        rates: LowRankRates,
        settings: AdaptSettings,
        schedule: LearningRateSchedule,
        mixture: WindowMixture,
        heldout: Tokens,
        folder: Path,
        out: Path,
    ) -> None:
        self.settings, self.schedule, self.mixture, self.heldout = settings, schedule, mixture, heldout
        self.adapter, self.folder, self.out = adapter, folder, out
        self.step, self.elapsed_s, self._started, self._pieces = 0, 0.0, 0.0, 1
        self.device = torch.device(settings.device)
        self._base, self._rates = base, rates
        folder.mkdir(parents=True, exist_ok=True)
        self.troubles: list[str] = []
        self._methods = list(METHODS if self.device.type == "cuda" else METHODS[-1:])
        self._built = False

    @property
    def way(self) -> str:
        """The method of the passes: backend, compilation, and parts per batch."""
        backend, compiled = self._methods[0]
        return f"{backend}, {'compiled' if compiled else 'plain'}, {self._pieces} piece(s) per batch"

    def _build(self) -> None:
        backend, compiled = self._methods[0]
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        working = copy.deepcopy(self._base).to(self.device, dtype)
        self._loss = MaskedStreams(working, self.settings.window, self.device, backend).to(self.device)
        if compiled:
            self._loss.compile_parts()
        self._lowrank = LowRank(self._base, self._loss, self.adapter, self._rates, self.settings.seed)
        self._lowrank.push()
        self._ratios = RatioLosses(self.adapter.block_size, self.device)
        self._built = True

    def prepare(self) -> None:
        """Run one batch forward and backward, and select a method that works, before training starts."""
        windows = self.mixture.batch(0)
        while True:
            try:
                if not self._built:
                    self._build()
                self._gradients(windows, (-2, 0))
                self._lowrank.drop_gradients()
                self._ratios.take()
                return
            except torch.cuda.OutOfMemoryError:
                if self._pieces >= len(windows):
                    raise
                self._pieces *= 2
                self._lowrank.drop_gradients()
            except Exception as error:  # the compiler raises many types; the next method may not need it
                if len(self._methods) == 1:
                    raise
                self.troubles.append(f"{self.way}: {one_line(error)[:300]}")
                del self._methods[0]
                torch._dynamo.reset()
                self._built = False
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _gradients(self, windows: Tokens, mask_key: tuple[int, int]) -> Tensor:
        """Add the gradients of one batch, in parts that fit in memory; return its loss."""
        masks = self._masks(len(windows), mask_key)
        total = torch.zeros((), device=self.device)
        size = -(-len(windows) // self._pieces)
        for low in range(0, len(windows), size):
            part = slice(low, low + size)
            losses_R = self._loss(self.on_device(windows[part]), masks.first[part])
            loss = (losses_R * masks.weight[part].flatten()).sum()
            loss.backward()
            self._ratios.add(losses_R, masks.first[part])
            total += loss.detach()
        return total

    def _masks(self, batch: int, key: tuple[int, int]) -> MaskPair:
        generator = step_generator(*key, self.device)
        block, share = self.adapter.block_size, self.settings.cut_share
        return sample_cut_masks(batch, self.settings.window, block, share, generator)

    def run(self, report: Report | None = None) -> dict[str, Any]:
        """Train until the budget is spent, from the checkpoint if there is one; return the last metrics."""
        began = time.monotonic()
        self.prepare()
        if (self.folder / CHECKPOINT).exists():
            self._resume()
        if report:
            report({"way": self.way, "troubles": self.troubles, "step": self.step, "rows": self.mixture.rows})
        return self.train_until_budget(report, began)

    def train_step(self, windows: Tokens, factor: float) -> tuple[Tensor, Tensor]:
        """Take one optimiser step; return the loss and the gradient norm as device scalars."""
        loss = self._gradients(windows, (self.settings.seed, self.step))
        return loss, self._lowrank.step(factor)

    def extra_log_fields(self) -> dict[str, Any]:
        """Return the mean losses since the last log line, by hidden share."""
        return {"by_hidden_share": self._ratios.take()}

    def checkpoint_interval(self, worked_s: float) -> float:
        """Return the seconds between two saved adapters."""
        del worked_s
        return self.settings.save_seconds

    def heldout_loss(self) -> float:
        """Return the any-order loss on held-out windows under fixed masks without cuts (NaN without windows).

        The batch has the training batch's shape (windows are repeated if needed) and gradients stay enabled,
        so that the compiled training pass is reused.
        """
        size = -(-sum(self.mixture.rows.values()) // self._pieces)
        if not len(self.heldout):
            return math.nan
        windows = self.heldout_batch(size)
        generator = step_generator(-1, 0, self.device)
        masks = sample_cut_masks(size, self.settings.window, self.adapter.block_size, 0.0, generator)
        losses_R = self._loss(self.on_device(windows), masks.first)
        return float((losses_R.detach() * masks.weight.flatten()).sum())

    def checkpoint(self) -> None:
        """Save the adapter and the complete state of the run."""
        notes = {
            "step": self.step,
            "seconds": round(self.elapsed_s, 1),
            "tokens": self.n_tokens,
            "way": self.way,
            "troubles": self.troubles,
            "settings": asdict(self.settings),
            "rates": asdict(self._rates),
            "rows": self.mixture.rows,
        }
        save_adapter(self.out, self._lowrank.state(), self.adapter, notes)
        state = {"adapter": asdict(self.adapter), "phases": self.mixture.state(), "step": self.step}
        save_checkpoint(
            self.folder / CHECKPOINT,
            {**state, "elapsed_s": self.elapsed_s, "lowrank": self._lowrank.checkpoint()},
        )

    def _resume(self) -> None:
        state = load_checkpoint(self.folder / CHECKPOINT, self.device)
        if state["adapter"] != asdict(self.adapter):
            raise RunError(
                f"{self.folder}: its checkpoint has other adapter settings; use the same or another folder"
            )
        self._lowrank.restore(state["lowrank"])
        self.mixture.restore(state["phases"])
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
