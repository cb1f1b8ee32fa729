"""The head's kernels on tensors without memory, for whoever compiles them before they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orderlens.kernels.head.fused_head import Draw, reduce_fused
from orderlens.kernels.head.panels import TILINGS
from orderlens.models.protocol import HiddenRows

FEW = 64
"""Up to so many rows only those counts are prepared that do not come in sixteens: most are such."""
TEMPERATURE = 0.7
"""Any but 1, at which a draw needs one kernel less that is compiled here too."""


def rehearse_head(rows: HiddenRows, eos_ids: Sequence[int]) -> None:
    """Launch scoring, the choice of the best and drawing, each for few to many rows.

    Args:
        rows: any number of rows, on torch's device "meta".
        eos_ids: ids whose total log-probability is reported.
    """
    for limit, _ in TILINGS[:-1]:
        for count in (limit - 1,) if limit <= FEW else (limit - 1, limit, limit + 1, limit + 16):
            hidden_RD = rows.hidden_RD.new_empty(count, rows.hidden_RD.shape[1])
            targets_R = torch.empty(count, dtype=torch.int64, device=hidden_RD.device)
            draw = Draw(TEMPERATURE, torch.empty(count, dtype=torch.float64, device=hidden_RD.device))
            for wanted, drawn in ((targets_R, None), (None, None), (None, draw)):
                reduce_fused(
                    hidden_RD,
                    rows.unembed_VD,
                    excluded=rows.excluded,
                    valid_vocab=rows.valid_vocab,
                    eos_ids=eos_ids,
                    targets_R=wanted,
                    draw=drawn,
                )
