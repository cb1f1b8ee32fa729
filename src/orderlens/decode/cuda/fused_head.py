"""Position statistics and draws straight from hidden states on CUDA, without a [rows × vocabulary] tensor.

The counterpart of the chunked torch head; same numbers, same conventions: operands in the model's dtype,
products accumulated in float32, excluded and padded ids outside the softmax, the lowest id among equals.

Shape letters: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from orderlens.decode.cuda.panel_draw import choose_inside, choose_panel
from orderlens.models.protocol import FloatArray, HiddenRows
from orderlens.models.torch.device import triton_installed
from orderlens.stats import DrawStats, PositionStats

ROWS_AT_ONCE = 16384
"""Rows per launch: bounds the per-panel numbers that wait to be merged (about 25 kB per row)."""
DRAWN_AT_ONCE = 2048
"""Rows per launch when drawing: their panels' weights are added up in float64 (about 30 kB per row)."""


def can_fuse(hidden_RD: Tensor, unembed_VD: Tensor) -> bool:
    """Return whether the kernels apply to these tensors."""
    kinds = (torch.bfloat16, torch.float16)
    return (
        hidden_RD.is_cuda
        and hidden_RD.dtype in kinds
        and unembed_VD.dtype == hidden_RD.dtype
        and hidden_RD.shape[1] % 32 == 0
        and hidden_RD.is_contiguous()
        and unembed_VD.is_contiguous()
        and triton_installed()
    )


@lru_cache(maxsize=32)
def _ids(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return token ids on the device; kept, because every step asks for the same ones."""
    return torch.tensor(tokens, dtype=torch.int32, device=device)


def position_stats_fused(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    *,
    excluded: Sequence[int] = (),
    valid_vocab: int | None = None,
    eos_ids: Sequence[int] = (),
    targets_R: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each row's top token and its statistics, on the device.

    Args:
        hidden_RD: final hidden states, contiguous.
        unembed_VD: output matrix, contiguous.
        excluded: ids outside the softmax.
        valid_vocab: ids from here on are padding; all are valid by default.
        eos_ids: ids whose total log-probability is reported.
        targets_R: one token per row whose log-probability is reported.

    Returns:
        token_R (int64) and columns [R, 5 or 6] (float32): log-sum-exp of the logits, then log-probabilities
        of the top and the second token, entropy in nats, log-probability of EOS and, with targets, theirs.
    """
    from orderlens.decode.cuda.panels import choose_tiling, merge_panels, reduce_panels

    device, valid = hidden_RD.device, valid_vocab or len(unembed_VD)
    dead = _ids(tuple(sorted(token for token in set(excluded) if token < valid)), device)
    eos = _ids(tuple(sorted(set(eos_ids))), device)
    wanted = None if targets_R is None else targets_R.to(device, torch.int32)
    tokens, columns = [], []
    for low in range(0, len(hidden_RD), ROWS_AT_ONCE):
        part_RD = hidden_RD[low : low + ROWS_AT_ONCE]
        part = None if wanted is None else wanted[low : low + ROWS_AT_ONCE]
        tiling = choose_tiling(len(part_RD))
        panels = reduce_panels(part_RD, unembed_VD, valid, dead, eos, part, tiling)
        token_R, columns_RC = merge_panels(panels, len(eos), part is not None)
        tokens.append(token_R)
        columns.append(columns_RC)
    if not tokens:
        empty = torch.empty(0, 5 if targets_R is None else 6, device=device)
        return torch.empty(0, dtype=torch.int64, device=device), empty
    return torch.cat(tokens), torch.cat(columns)


def draw_fused(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    *,
    excluded: Sequence[int],
    valid_vocab: int,
    temperature: float,
    uniforms_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw one token per row from the softmax at ``temperature``; see ``panel_draw`` for the convention.

    Args:
        hidden_RD: final hidden states, contiguous.
        unembed_VD: output matrix, contiguous.
        excluded: ids outside the softmax.
        valid_vocab: ids from here on are padding.
        temperature: positive.
        uniforms_R: one number in [0, 1) per row, float64, on the device.

    Returns:
        token_R (int64) and columns [R, 2] (float64): how far the drawn logit lies below the largest one, and
        the draw's log-probability at the temperature.
    """
    from orderlens.decode.cuda.panels import choose_tiling, panel_logits, reduce_panels

    device = hidden_RD.device
    dead = _ids(tuple(sorted(token for token in set(excluded) if token < valid_vocab)), device)
    tokens = [torch.empty(0, dtype=torch.int64, device=device)]
    columns = [torch.empty(0, 2, dtype=torch.float64, device=device)]
    for low in range(0, len(hidden_RD), DRAWN_AT_ONCE):
        part_RD, uniform_R = hidden_RD[low : low + DRAWN_AT_ONCE], uniforms_R[low : low + DRAWN_AT_ONCE]
        tiling = choose_tiling(len(part_RD))
        panels = reduce_panels(
            part_RD, unembed_VD, valid_vocab, dead, _ids((), device), None, tiling, temperature
        )
        choice = choose_panel(panels.top, panels.mass, temperature, uniform_R)
        logits_RK = panel_logits(part_RD, unembed_VD, valid_vocab, dead, choice.panel, tiling.block_n)
        offset_R, below_R, tempered_R = choose_inside(logits_RK, choice, temperature)
        tokens.append(choice.panel * tiling.block_n + offset_R)
        columns.append(torch.stack((below_R, tempered_R), dim=1))
    return torch.cat(tokens), torch.cat(columns)


class FusedHead:
    """The Head protocol on these kernels."""

    def reduce(
        self, rows: HiddenRows, eos_ids: Sequence[int], targets_R: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each row's top token and its statistics."""
        return position_stats_fused(
            rows.hidden_RD,
            rows.unembed_VD,
            excluded=rows.excluded,
            valid_vocab=rows.valid_vocab,
            eos_ids=eos_ids,
            targets_R=targets_R,
        )

    def draw(
        self, rows: HiddenRows, stats: PositionStats, temperature: float, uniforms_R: FloatArray
    ) -> DrawStats:
        """Draw one token per row; log q is measured from the statistics' largest log-probability."""
        tokens, columns = draw_fused(
            rows.hidden_RD,
            rows.unembed_VD,
            excluded=rows.excluded,
            valid_vocab=rows.valid_vocab,
            temperature=temperature,
            uniforms_R=torch.as_tensor(uniforms_R, dtype=torch.float64, device=rows.hidden_RD.device),
        )
        token_R, value_RC = tokens.cpu().numpy().astype(np.int64), columns.cpu().numpy()
        return DrawStats(stats, token_R, stats.top_logprob + value_RC[:, 0], value_RC[:, 1])
