"""Position statistics straight from hidden states on CUDA, without a [rows × vocabulary] tensor.

The counterpart of the chunked torch head; same numbers, same conventions: operands in the model's dtype,
products accumulated in float32, excluded and padded ids outside the softmax, the lowest id among equals.

Shape letters: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from orderlens.models.llada2.kernels import available

ROWS_AT_ONCE = 16384
"""Rows per launch: bounds the per-panel numbers that wait to be merged (about 25 kB per row)."""


def can_fuse(hidden_RD: Tensor, unembed_VD: Tensor) -> bool:
    """Return whether ``position_stats_fused`` applies to these tensors."""
    kinds = (torch.bfloat16, torch.float16)
    return (
        hidden_RD.is_cuda
        and hidden_RD.dtype in kinds
        and unembed_VD.dtype == hidden_RD.dtype
        and hidden_RD.shape[1] % 32 == 0
        and available()
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
    from orderlens.models.llada2.kernels.head import choose_tiling, merge_panels, reduce_panels

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
