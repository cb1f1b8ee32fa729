"""ReMDM's loop as it is run on LLaDA: fill most of a block, then put back and refill the least sure."""

from __future__ import annotations

import numpy as np

from orderlens.errors import UserInputError
from orderlens.policies.plans import BlockView, Plan, Planner
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import BoolArray, IntArray, whole_number

LOOPS, PUT_BACK = 32, 1


class Refine(Planner):
    """Seven eighths of a block one by one, then LOOPS passes that refill the K least sure, then the rest.

    Source: ReMDM-LLaDA as copied in ParallelBench (``generate_remdm``) and PC-Sampler; K = 1, 32 loops. The
    most probable proposal is filled first, one per pass. Before each pass of the loop the K held tokens with
    the smallest probability *in the pass that filled them* are masked; the pass fills the K most probable.

    Differs: one token per pass outside the loop (public: steps = length). Traps: the public code puts back
    whatever has the smallest stored confidence, the prompt included, where K exceeds what is filled, and
    fails its own assertion with two blocks and steps < length; PC-Sampler's copy ranks by the current
    probability and spends two passes per loop.

    A block of n positions takes n + LOOPS passes.
    """

    id = "refine"
    summary = (
        "refine[=LOOPS[:K]]: after 7/8 of a block, LOOPS (32) passes put back and refill the K (1) least sure"
    )
    order_id = "max-prob"
    ends_when_full = False

    def __init__(self, loops: int = LOOPS, put_back: int = PUT_BACK) -> None:
        self.loops, self.put_back = loops, put_back

    @classmethod
    def parse(cls, values: list[str]) -> Refine:
        """Build from ``LOOPS`` and optionally ``K``."""
        if len(values) > 2 or "" in values:
            raise UserInputError("'refine' takes up to two values, e.g. refine=32 or refine=32:1")
        names = ("LOOPS", "K")[: len(values)]
        return cls(*(whole_number("refine", text, 1, name) for name, text in zip(names, values, strict=True)))

    @property
    def spec(self) -> str:
        """``refine=LOOPS``, and ``:K`` where it is not 1."""
        return f"refine={self.loops}" + ("" if self.put_back == PUT_BACK else f":{self.put_back}")

    def passes(self, n_positions: int) -> int:
        """Return n + LOOPS."""
        return n_positions + self.loops

    def plan(self, view: BlockView) -> Plan:
        """Fill, then take back what the next pass is to refill."""
        looping_R = self._looping(view, view.forward_C)[view.chain_R]
        n_fill_R = np.where(looping_R, self.put_back, 1)
        fill_R = view.masked_R & (view.ranks(view.proposal_logprob_R, view.masked_R) < n_fill_R)
        stands_R = fill_R | ~view.masked_R
        stored_R = np.where(view.masked_R, view.proposal_logprob_R, view.logq_R)
        least_R = stands_R & (view.ranks(-stored_R, stands_R) < self.put_back)
        return Plan.keeping(
            view, stands_R & ~(least_R & self._looping(view, view.forward_C + 1)[view.chain_R])
        )

    def _looping(self, view: BlockView, pass_C: IntArray) -> BoolArray:
        """Return which chains are in the loop at their block's pass ``pass_C``."""
        first_C = np.maximum(np.minimum(view.filling_C * 7 // 8, view.filling_C - 1), 1)
        looping_C: BoolArray = (pass_C >= first_C) & (pass_C < first_C + self.loops)
        return looping_C


PRESET = Preset(
    "max-prob+refine=32",
    "ReMDM on LLaDA, arXiv 2503.00307; ParallelBench generate_remdm.py",
    "The most probable position first until 7/8 of the block is filled; then 32 passes, before each of which "
    "the token with the smallest stored probability is masked and which fill the most probable one; then the "
    "rest.",
    "Per block; never more is put back than was filled (the public code would mask the prompt). PC-Sampler's "
    "copy ranks by the current probability with two passes per loop: not this one.",
)
