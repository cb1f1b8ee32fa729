"""WINO: draft widely, and take back what does not stand up to a look at everything but itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from orderlens.rules.protocol import BoolArray, IntArray, real
from orderlens.rules.revise.planners import BlockView, Moves, Planner
from orderlens.rules.stats import comparable

FIRST_ACCEPTED = 30
"""What the cap on taking back holds for accepted before a block's first pass."""


@dataclass(eq=False)
class Wino(Planner):
    """Fills all with p > DRAFT, and takes back held tokens with p < VERIFY when hidden from themselves.

    Source: WINO-DLLM ``decoding_wino`` (DRAFT 0.6, VERIFY 0.9; task files 0.5 to 0.8). A pass fills every
    masked position with p > DRAFT, at most min(max(floor(0.7 |M|), 5), 20) of them, the most probable, and at
    least the best one. If it fills more than one, every token that stood before the pass is judged by its
    probability where it alone is hidden; those below VERIFY are masked, at most one fewer than the pass
    before filled (the least probable; 30 counts as filled before a block's first pass).

    Differs: there a doubled block with an attention mask of its own judges all tokens in the same forward,
    and the hidden copies see each other besides the text. A model behind the plain interface cannot do that,
    so every judged token is a state of its own, hidden alone, counted in ``n_lookahead``. At temperature > 0
    proposals are drawn; there nothing is. |M| is the block's.

    Fillings outweigh what is taken back, so a block of n positions takes at most n passes.
    """

    id = "wino"
    summary = "wino[=DRAFT:VERIFY]: fills p > DRAFT (0.6), masks tokens with p < VERIFY (0.9) if hidden alone"
    order_id = "max-prob"
    judges_apart = True
    draft: float = real(0.0, 1.0, "DRAFT", 0.6)
    verify: float = real(0.0, 1.0, "VERIFY", 0.9)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        """Build from nothing, or ``DRAFT`` and ``VERIFY``."""
        return super().parse(values or ["0.6", "0.9"])

    def passes(self, n_positions: int) -> int:
        """Return n."""
        return max(1, n_positions)

    def plan(self, view: BlockView) -> Moves:
        """Draft, then judge what stood before."""
        count_C = len(view.filling_C)
        sure_R = view.masked_R & (comparable(np.exp(view.proposal_logprob_R)) > comparable(self.draft))
        left_C = np.bincount(view.chain_R[view.masked_R], minlength=count_C)
        most_C = np.minimum(np.maximum(left_C * 7 // 10, 5), 20)
        fill_C = np.clip(np.bincount(view.chain_R[sure_R], minlength=count_C), 1, most_C)
        commit_R = view.masked_R & (view.ranks(view.proposal_logprob_R, view.masked_R) < fill_C[view.chain_R])
        remask_R = self._taken_back(view, fill_C)
        view.memory.keep_chains("filled", fill_C)
        return Moves(commit_R, remask_R)

    def _taken_back(self, view: BlockView, fill_C: IntArray) -> BoolArray:
        judged_R = ~view.masked_R & (fill_C > 1)[view.chain_R]
        apart_R = view.apart(judged_R)
        doubted_R = judged_R & (
            comparable(np.exp(np.where(judged_R, apart_R, 0.0))) < comparable(self.verify)
        )
        most_C = view.memory.chains("filled", FIRST_ACCEPTED) - 1
        return doubted_R & (view.ranks(-apart_R, doubted_R) < most_C[view.chain_R])
