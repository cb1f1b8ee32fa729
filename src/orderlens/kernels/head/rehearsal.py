"""The head's kernels on tensors without memory, for whoever compiles them before they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orderlens.kernels.head.fused_head import Draw, reduce_fused
from orderlens.kernels.head.panels import TILINGS

FEW = 64
"""Up to so many rows only those counts are prepared that do not come in sixteens: most are such."""
TEMPERATURE = 0.7
"""Any but 1, at which a draw needs one kernel less that is compiled here too."""


def rehearse_head(
    unembed_VD: Tensor, excluded: Sequence[int], valid_vocab: int, eos_ids: Sequence[int]
) -> None:
    """Launch scoring, the choice of the best and drawing, each for few to many rows.

    Args:
        unembed_VD: output matrix, on torch's device "meta".
        excluded: ids outside the softmax.
        valid_vocab: ids from here on are padding.
        eos_ids: ids whose total log-probability is reported.
    """
    for limit, _ in TILINGS[:-1]:
        for count in (limit - 1,) if limit <= FEW else (limit - 1, limit, limit + 1, limit + 16):
            hidden_RD = unembed_VD.new_empty(count, unembed_VD.shape[1])
            targets_R = torch.empty(count, dtype=torch.int64, device=hidden_RD.device)
            draw = Draw(TEMPERATURE, torch.empty(count, dtype=torch.float64, device=hidden_RD.device))
            for wanted, drawn in ((targets_R, None), (None, None), (None, draw)):
                reduce_fused(
                    hidden_RD,
                    unembed_VD,
                    excluded=excluded,
                    valid_vocab=valid_vocab,
                    eos_ids=eos_ids,
                    targets_R=wanted,
                    draw=drawn,
                )
