"""Revise rules that keep a block's most confident tokens and mask the rest again: P2, Mask-Predict, RCR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.protocol import parse_whole
from orderlens.rules.revise.protocol import BlockView, Moves, SteppedRevise
from orderlens.rules.stats import FloatArray, IntArray

ROUNDING = 1e-9
"""cos(π/3) is a hair above or below ½ by the precision: a count that should be whole is taken as whole."""


class KeepBest(SteppedRevise):
    """Every pass proposes a token at all masked positions and keeps the most probable ones of the block.

    How many stay masked falls from pass to pass (``left_C``); ``confidence_R`` says what is compared.
    """

    order_id = "max-prob"

    def revise(self, view: BlockView) -> Moves:
        keep_C = view.filling_C - self.left_C(view)  # among equals the leftmost are kept
        return Moves.keeping(view, view.ranks(self.confidence_R(view)) < keep_C[view.chain_R])

    def left_C(self, view: BlockView) -> IntArray:
        """Return how many positions stay masked after this pass: floor(n (1 − (t + 1)/T)), in integers."""
        steps_C = self.steps_C(view)
        left_C: IntArray = view.filling_C * (steps_C - 1 - view.forward_C) // steps_C
        return left_C

    def confidence_R(self, view: BlockView) -> FloatArray:
        """Return the log-probability of each token in the pass that proposed it."""
        return np.where(view.masked_R, view.proposal_logprob_R, view.logq_R)


class PathPlanning(KeepBest):
    """After pass t of T the floor(n (1 − κ)) positions with the least probable fresh proposal are masked.

    Source: Open-dLLM ``alg="p2"`` (Apache-2.0), κ = (t + 1)/T; the idea is P2, arXiv 2502.03540. A held
    position is judged by the token that this pass would propose there, and keeps the token it has.

    Differs from the paper, where a held position is judged by the token it holds and η weighs the two kinds;
    the public code has no η. Traps: its count is a float product whose floor is one too small for n = 48,
    T = 12 and n = 24, T = 24; ours is formed in integers.

    A block of n positions takes at most T passes; it ends as soon as nothing is masked.
    """

    id = "p2"
    summary = (
        "p2[=T]: in T passes per block, the positions with the least probable proposal are masked (again)"
    )

    def confidence_R(self, view: BlockView) -> FloatArray:
        return np.asarray(view.proposal_logprob_R)


class MaskPredict(KeepBest):
    """Pass 0 predicts all n positions; pass t re-predicts the max(1, floor(n (1 − t/T))) least probable.

    Source: Ghazvininejad et al., arXiv 1904.09324; facebookresearch/Mask-Predict
    ``fairseq/strategies/mask_predict.py`` (read only, CC-BY-NC). T = 10 in its README, n where none is given.
    A token's probability is that of the pass which predicted it, and is compared over all positions.

    Traps: the public count is a float32 product, one too small where n (1 − t/T) is a whole number that is
    not exact in float32 (ours is formed in integers); it never goes below 1, so one token is predicted anew
    even where the formula says 0 (kept). The public code decodes several lengths side by side (length beam);
    here the length is the block's.

    A block of n positions takes T passes.
    """

    id = "mask-predict"
    summary = (
        "mask-predict[=T]: in T passes per block, the least probable tokens are masked and predicted anew"
    )

    def left_C(self, view: BlockView) -> IntArray:
        last_C = view.forward_C >= self.steps_C(view) - 1
        return np.where(last_C, 0, np.maximum(super().left_C(view), 1))


@dataclass(eq=False)
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

    schedule: Literal["linear", "cosine"] = "linear"

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        if len(values) < 2:
            return super().parse(values)
        if len(values) > 2 or values[1] not in ("linear", "cosine"):
            raise UserInputError("'rcr' takes T and a schedule, linear or cosine, e.g. rcr=16:cosine")
        return cls(parse_whole("rcr", values[0], 1, "T"), "cosine" if values[1] == "cosine" else "linear")

    @property
    def spec(self) -> str:
        return super().spec + ("" if self.schedule == "linear" else ":cosine")

    def left_C(self, view: BlockView) -> IntArray:
        if self.schedule == "linear":
            return super().left_C(view)
        done_C = (view.forward_C + 1) / self.steps_C(view)
        left_C: IntArray = np.floor(view.filling_C * np.cos(np.pi / 2 * done_C) + ROUNDING).astype(np.int64)
        return left_C
