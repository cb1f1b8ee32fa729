"""Position statistics and draws directly from hidden states on CUDA, without a [rows × vocabulary] tensor.

Computes the same as the chunked torch head, with the same conventions: operands in the model's dtype,
products accumulated in float32, excluded and padded ids outside the softmax, ties to the lowest id.

Shape letters: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from orderlens.kernels.gpu import gpu_of, runs_kernels

ROWS_AT_ONCE = 16384
"""Rows per launch: limits the memory of the per-panel numbers before the merge (about 25 kB per row)."""


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
        and runs_kernels(hidden_RD.device)
    )


@lru_cache(maxsize=32)
def _ids(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return token ids on the device; cached, because every step uses the same ones."""
    return torch.tensor(tokens, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class Draw:
    """A positive temperature and one float64 in [0, 1) per row, on the device.

    The temperature may also be one float32 per row [R], which the kernels do not support.
    """

    temperature: float | Tensor
    uniforms_R: Tensor


def reduce_fused(
    hidden_RD: Tensor,
    unembed_VD: Tensor,
    *,
    excluded: Sequence[int] = (),
    valid_vocab: int | None = None,
    eos_ids: Sequence[int] = (),
    targets_R: Tensor | None = None,
    draw: Draw | None = None,
) -> tuple[Tensor, ...]:
    """Return each row's top token and its statistics, on the device, and with ``draw`` a drawn token.

    Args:
        hidden_RD: final hidden states, contiguous.
        unembed_VD: output matrix, contiguous.
        excluded: ids outside the softmax.
        valid_vocab: ids from this one on are padding; by default all ids are valid.
        eos_ids: ids whose total log-probability is returned.
        targets_R: one token per row whose log-probability is returned.
        draw: draw one token per row in the same pass over the output matrix.

    Returns:
        token_R (int64) and columns [R, 5 or 6] (float32): log-sum-exp of the logits, then log-probabilities
        of the top and the second token, entropy in nats, log-probability of EOS and, with targets, the
        target's. With ``draw`` also the drawn tokens (int64) and their log-probabilities [R, 2] (float64) at
        temperature 1 and at the draw's temperature.
    """
    from orderlens.kernels.head.panel_draw import choose_parts, draw_from_panels
    from orderlens.kernels.head.panels import choose_tiling, merge_panels, reduce_panels

    device, valid = hidden_RD.device, valid_vocab or len(unembed_VD)
    dead = _ids(tuple(sorted(token for token in set(excluded) if token < valid)), device)
    eos = _ids(tuple(sorted(token for token in set(eos_ids) if token < valid)), device)
    wanted = None if targets_R is None else targets_R.to(device, torch.int32)
    temperature, n_columns = 1.0 if draw is None else draw.temperature, 5 if targets_R is None else 6
    assert not isinstance(temperature, Tensor), "one temperature for all rows"
    parts = []
    for low in range(0, len(hidden_RD), ROWS_AT_ONCE):
        here = slice(low, low + ROWS_AT_ONCE)
        part_RD, part = hidden_RD[here], None if wanted is None else wanted[here]
        rows, tiling, shared = len(part_RD), choose_tiling(len(part_RD), gpu_of(device)), None
        if draw is not None and choose_parts(rows, hidden_RD.shape[1], tiling.block_n) > 1:
            shared = torch.empty(rows * (tiling.block_n + 1), dtype=torch.int32, device=device)
        panels = reduce_panels(part_RD, unembed_VD, valid, dead, eos, part, tiling, temperature)
        found = blank_answer(rows, n_columns, draw is not None, device)
        merge_panels(panels, len(eos), found[0], found[1], shared)
        if draw is not None:
            draw_from_panels(
                part_RD, unembed_VD, valid, dead, panels, tiling.block_n, temperature, draw.uniforms_R[here],
                found[1], found[2], found[3], shared,
            )  # fmt: skip
        parts.append(found)
    if len(parts) == 1:
        return parts[0]
    if parts:
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return blank_answer(0, n_columns, draw is not None, device)


def blank_answer(rows: int, n_columns: int, drawn: bool, device: torch.device) -> tuple[Tensor, ...]:
    """Return uninitialised tensors for the results of ``reduce_fused`` in one storage (one host copy).

    Each begins at a multiple of 16 bytes, so that kernels are compiled once for all numbers of rows.
    """
    even = rows + rows % 2
    before = 2 * even + 2 * rows if drawn else even
    whole = torch.empty(before + -(-rows * n_columns // 2), dtype=torch.int64, device=device)
    token_R = whole.as_strided((rows,), (1,))
    columns_RC = whole.view(torch.float32).as_strided((rows, n_columns), (n_columns, 1), 2 * before)
    if not drawn:
        return token_R, columns_RC
    drawn_R = whole.as_strided((rows,), (1,), even)
    return token_R, columns_RC, drawn_R, whole.view(torch.float64).as_strided((rows, 2), (2, 1), 2 * even)
