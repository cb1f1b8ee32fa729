"""The commit rule of ancestral sampling, in which chance alone says how many positions a pass reveals."""

from __future__ import annotations

import numpy as np

from orderlens.orders.view import StepView
from orderlens.policies.protocol import BoolArray, Commit, FloatArray, one_value, whole_number
from orderlens.stats import DrawStats, PositionStats


class Ancestral(Commit):
    """Every masked position is revealed with probability (t − s)/t in each of N steps from t = 1 to 0.

    MDLM's ancestral sampler (kuleshov-group/mdlm ``diffusion.py``; 128 steps) and Dream's alg ``origin``.
    With even steps that is one step per position, drawn evenly and independently when the block begins; steps
    that reveal nothing are left out, as in MDLM's ``ddpm_cache``. The order says only what comes first in a
    set. The numbers are those of the order's seed, so ``random:3+ancestral=128`` is seed 3. N counts the
    steps of a block. The public final step takes the most probable tokens; here it draws like every other.
    """

    id = "ancestral"
    summary = "ancestral=N: every position at one of N steps, drawn evenly and independently (MDLM)"
    randomised = True

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def parse(cls, values: list[str]) -> Ancestral:
        """Build from ``N``."""
        return cls(whole_number("ancestral", one_value("ancestral", values, "ancestral=128"), 1))

    @property
    def spec(self) -> str:
        """``ancestral=N``."""
        return f"ancestral={self.n}"

    def select(self, view: StepView[PositionStats | DrawStats], scores_R: FloatArray) -> BoolArray:
        """Return the positions of each chain's next step; steps are drawn in the block's first pass."""
        step_R = view.memory.rows("step", -1)
        if (step_R < 0).any():
            step_R = np.where(step_R < 0, (view.uniforms_R * self.n).astype(np.int64), step_R)
        view.memory.keep_rows("step", step_R)
        chosen: BoolArray = step_R == view.least_C(step_R)[view.chain_R]
        return chosen
