"""Revise rules that keep a block's most confident tokens and mask the rest again: P2, Mask-Predict, RCR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.protocol import parse_whole
from orderlens.rules.revise import BlockView, Moves, SteppedRevise
from orderlens.rules.stats import FloatArray, IntArray

ROUNDING = 1e-9
"""Tolerance for counts that should be whole: cos(π/3) may be slightly above or below ½."""


class KeepBest(SteppedRevise):
    """Every pass proposes a token at all masked positions and keeps the most probable ones of the block.

    ``left_C`` is the number that stays masked, which decreases; ``confidence_R`` is compared.
    """

    order_id = "max-prob"

    def revise(self, view: BlockView) -> Moves:
        keep_C = view.filling_C - self.left_C(view)  # ties: the leftmost are kept
        return Moves.keeping(view, view.ranks(self.confidence_R(view)) < keep_C[view.chain_R])

    def left_C(self, view: BlockView) -> IntArray:
        """Return the number of positions that stay masked after this pass: floor(n (1 − (t + 1)/T))."""
        steps_C = self.steps_C(view)
        left_C: IntArray = view.filling_C * (steps_C - 1 - view.forward_C) // steps_C
        return left_C

    def confidence_R(self, view: BlockView) -> FloatArray:
        """Return the log-probability of each token in the pass that proposed it."""
        return np.where(view.masked_R, view.proposal_logprob_R, view.logq_R)


class PathPlanning(KeepBest):
    """After pass t of T the floor(n (1 − κ)) positions with the least probable fresh proposal are masked.

    Source: Open-dLLM ``alg="p2"`` (Apache-2.0), κ = (t + 1)/T; the idea is P2, arXiv 2502.03540. A revealed
    position is judged by the token that this pass would propose there, and keeps its token.

    Differs from the paper, where a revealed position is judged by its own token and η weighs the two kinds;
    the public code has no η. Note: its count is a float product whose floor is one too small for n = 48, T =
    12 and n = 24, T = 24; ours uses integers.

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
    ``fairseq/strategies/mask_predict.py`` (read only, CC-BY-NC). T = 10 in its README, n by default.
    A token's probability is that of the pass which predicted it, and is compared over all positions.

    Notes: the public count is a float32 product, one too small where n (1 − t/T) is a whole number that is
    not exact in float32 (ours uses integers). It is at least 1, so one token is predicted again even where
    the formula gives 0; that is kept. The public code decodes several lengths in parallel (length beam); here
    the length is the block's.

    A block of n positions takes T passes.
    """

    id = "mask-predict"
    summary = (
        "mask-predict[=T]: in T passes per block, the least probable tokens are masked and predicted again"
    )

    def left_C(self, view: BlockView) -> IntArray:
        last_C = view.forward_C >= self.steps_C(view) - 1
        return np.where(last_C, 0, np.maximum(super().left_C(view), 1))


@dataclass(eq=False)
class RunningConfidence(KeepBest):
    """Every pass fills all masks, then re-masks the planned number with the smallest stored confidence.

    Source: MDPO, arXiv 2508.13148, ``overtime_conf`` of its ``generate_dlm``, and the copy in ParallelBench.
    A confidence is the probability of a token in the pass that filled it. After pass t of T,
    floor(n (1 − (t + 1)/T)) positions stay masked, with ``cosine`` floor(n cos(π (t + 1)/2T)). The public
    defaults are 64 steps for 128 tokens in blocks of 32: T = 16 per block.

    Notes: the public code compares over the whole text, so a token of a finished block can be re-masked and
    is then filled while a later block is decoded; its counts refer to the current block only. PART does
    this inside one of our blocks: parts of PART positions are decoded one after the other, T passes each, and
    all positions up to the end of the current part are compared. With a block as long as the text
    (``--block-size``) that is the public sampler. A finished block of ours does not change. A stored
    confidence of exactly 0 counts as 1 there. Its count is a float product whose floor is one too small
    where the number is whole, such as n = 12, T = 6; ours uses integers. The ParallelBench copy does not
    count its forward passes.

    A block of n positions takes at most T passes, or T for each part; fewer if the plan leaves nothing masked
    earlier.
    """

    id = "rcr"
    summary = (
        "rcr[=T[:cosine[:PART]]]: in T passes per block, all masks are filled, the least confident re-masked"
    )

    schedule: Literal["linear", "cosine"] = "linear"
    part: int = 0

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        if len(values) < 2:
            return super().parse(values)
        if len(values) > 3 or values[1] not in ("linear", "cosine"):
            raise UserInputError(
                "'rcr' takes T, a schedule (linear or cosine) and the positions of a part, "
                "e.g. rcr=16:cosine or rcr=16:linear:32"
            )
        part = parse_whole("rcr", values[2], 1, "PART") if len(values) == 3 else 0
        schedule: Literal["linear", "cosine"] = "cosine" if values[1] == "cosine" else "linear"
        return cls(parse_whole("rcr", values[0], 1, "T"), schedule, part)

    @property
    def spec(self) -> str:
        if self.part:
            return f"{super().spec}:{self.schedule}:{self.part}"
        return super().spec + ("" if self.schedule == "linear" else ":cosine")

    def passes(self, n_positions: int) -> int:
        n_parts = -(-n_positions // self.part) if self.part else 1
        return super().passes(n_positions) * max(1, n_parts)

    def revise(self, view: BlockView) -> Moves:
        if not self.part:
            return super().revise(view)
        start_C, end_C = self._part(view)
        starts_C = np.searchsorted(view.chain_R, np.arange(len(view.filling_C)))
        reach_R = np.arange(len(view)) - starts_C[view.chain_R] < end_C[view.chain_R]
        keep_C = end_C - self._left(end_C - start_C, view.forward_C % self.steps)
        kept_R = view.ranks(self.confidence_R(view), reach_R) < keep_C[view.chain_R]
        return Moves.keeping(view, reach_R & kept_R)

    def _part(self, view: BlockView) -> tuple[IntArray, IntArray]:
        """Return first and end position of each chain's current part, counted from the block's first."""
        start_C = view.forward_C // self.steps * self.part
        return start_C, np.minimum(start_C + self.part, view.filling_C)

    def left_C(self, view: BlockView) -> IntArray:
        if self.schedule == "linear":
            return super().left_C(view)
        return self._left(view.filling_C, view.forward_C, self.steps_C(view))

    def _left(self, n_C: IntArray, pass_C: IntArray, steps_C: IntArray | None = None) -> IntArray:
        """Return how many of ``n_C`` positions stay masked after pass ``pass_C``."""
        total_C = np.full(len(n_C), self.steps) if steps_C is None else steps_C
        if self.schedule == "linear":
            return np.asarray(n_C * (total_C - 1 - pass_C) // total_C)
        share_C = np.cos(np.pi / 2 * ((pass_C + 1) / total_C))
        left_C: IntArray = np.floor(n_C * share_C + ROUNDING).astype(np.int64)
        return left_C
