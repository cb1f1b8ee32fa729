"""P2 (path planning): every pass compares all positions anew and masks the least confident."""

from __future__ import annotations

import numpy as np

from orderlens.policies.plans import BlockView, KeepBest
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import FloatArray


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
        """Return the log-probability of what this pass proposes, at held positions, too."""
        return np.asarray(view.proposal_logprob_R)


PRESET = Preset(
    "max-prob+p2",
    "P2, arXiv 2502.03540; Open-dLLM generation_utils.py, alg=p2",
    "One pass per position (steps = length): after pass t the floor(n (1 − (t + 1)/T)) positions of the "
    "block whose fresh proposal is least probable are masked; masked positions not among them are filled.",
    "Counts in integers (the public float floor can be one too small). As in the public code, and unlike the "
    "paper, held positions are judged by the fresh proposal and there is no η.",
)
