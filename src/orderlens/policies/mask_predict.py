"""Mask-Predict: predict everything, then mask the least probable tokens and predict those again."""

from __future__ import annotations

import numpy as np

from orderlens.policies.plans import BlockView, KeepBest
from orderlens.policies.presets import Preset
from orderlens.policies.protocol import IntArray


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
        """Return the published count, which is at least 1 until the last pass."""
        last_C = view.forward_C >= self.steps_C(view) - 1
        return np.where(last_C, 0, np.maximum(super().left_C(view), 1))


PRESET = Preset(
    "max-prob+mask-predict=10",
    "Mask-Predict, arXiv 1904.09324; facebookresearch/Mask-Predict fairseq/strategies/mask_predict.py",
    "Ten passes per block; after pass t − 1 the max(1, floor(n (1 − t/10))) tokens with the smallest stored "
    "probability are masked again, n being the block's positions.",
    "Counts in integers (the public float32 product can be one too small); no length beam; per block, not "
    "per text.",
)
