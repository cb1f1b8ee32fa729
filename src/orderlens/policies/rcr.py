"""RCR (running confidence remasking): tokens stay as long as their stored confidence is among the best."""

from __future__ import annotations

from typing import Literal

import numpy as np

from orderlens.errors import UserInputError
from orderlens.policies.plans import BlockView, KeepBest
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import IntArray, whole_number

ROUNDING = 1e-9
"""cos(π/3) is a hair above or below ½ by the precision: a count that should be whole is taken as whole."""


class RunningConfidence(KeepBest):
    """Every pass fills all masks; the planned number with the smallest stored confidence is put back.

    Source: MDPO, arXiv 2508.13148, ``overtime_conf`` of its ``generate_dlm``, and the copy in ParallelBench.
    A confidence is the probability of a token in the pass that filled it. After pass t of T,
    floor(n (1 − (t + 1)/T)) positions stay masked, with ``cosine`` floor(n cos(π (t + 1)/2T)). The public
    defaults are 64 steps for 128 tokens in blocks of 32: T = 16 per block.

    Traps: the public code compares over the whole text, so a token of a finished block can be put back and
    is then filled while a later block is decoded; its counts speak of the current block only. Here a finished
    block stays as it is. A stored confidence of exactly 0 counts as 1 there. The ParallelBench copy never
    counts its forward passes.

    A block of n positions takes at most T passes; fewer where the plan leaves nothing masked earlier.
    """

    id = "rcr"
    summary = "rcr[=T[:cosine]]: in T passes per block, all masks are filled and the least confident put back"

    def __init__(self, steps: int = 0, schedule: Literal["linear", "cosine"] = "linear") -> None:
        super().__init__(steps)
        self.schedule = schedule

    @classmethod
    def parse(cls, values: list[str]) -> RunningConfidence:
        """Build from ``T`` and optionally the schedule."""
        if len(values) < 2:
            return cls(super().parse(values).steps)
        if len(values) > 2 or values[1] not in ("linear", "cosine"):
            raise UserInputError("'rcr' takes T and a schedule, linear or cosine, e.g. rcr=16:cosine")
        return cls(whole_number("rcr", values[0], 1, "T"), "cosine" if values[1] == "cosine" else "linear")

    @property
    def spec(self) -> str:
        """``rcr=T``, and ``:cosine`` where that is the schedule."""
        return super().spec + ("" if self.schedule == "linear" else ":cosine")

    def left_C(self, view: BlockView) -> IntArray:
        """Return how many positions stay masked after this pass."""
        if self.schedule == "linear":
            return super().left_C(view)
        done_C = (view.forward_C + 1) / self.steps_C(view)
        left_C: IntArray = np.floor(view.filling_C * np.cos(np.pi / 2 * done_C) + ROUNDING).astype(np.int64)
        return left_C


PRESET = Preset(
    "max-prob+rcr=16",
    "RCR, MDPO, arXiv 2508.13148; generate_dlm with overtime_conf",
    "16 passes per block (64 steps for 128 tokens in blocks of 32), linear schedule: every pass fills all "
    "masks of the block and puts back the planned number with the smallest stored confidence.",
    "Only the current block is compared: the public code may put back tokens of finished blocks, which a "
    "cached model no longer computes.",
)
