"""The device side of ``speculate``: predict the choice from statistics, and queue the next forward and head.

Nothing here waits for the device: all work is queued after the pass whose statistics it reads. On CUDA the
prediction is one kernel (``kernels.head.choice``), because every launch costs host time.

Shape letters: C chains, R rows of the pass, r rows of the next one, A places it may request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.decode.head_torch import PendingDeviceStats, start_reduction
from orderlens.decode.passes import NextRows, SpeculativePass
from orderlens.kernels.gpu import runs_kernels
from orderlens.models.engine.transfer import start_copy_to_host, to_device
from orderlens.models.protocol import IntArray, NextTokens, Speculates
from orderlens.rules.orders import READINGS, Reading
from orderlens.rules.stats import DrawInputs, PendingStats


def queue(
    session: Speculates,
    pending: PendingStats,
    following: NextRows,
    reading_C: IntArray,
    eos_ids: Iterable[int],
) -> SpeculativePass | None:
    """Queue the prediction and the pass that follows from it; None if the session cannot.

    Args:
        session: evaluates the next pass.
        pending: the statistics of this pass.
        following: the known part of the next pass.
        reading_C: the statistic that each chain's order maximises, as an index into ``READINGS``.
        eos_ids: ids whose total probability is computed.
    """
    if not isinstance(pending, PendingDeviceStats):
        return None
    choose = choose_by_kernel if runs_kernels(pending.found[0].device) else choose_in_torch
    predicted_2C, token_C, row_r, uniforms_r = choose(pending.found, following, reading_C)
    arrive = start_copy_to_host(predicted_2C)
    rows = session.speculate(NextTokens(predicted_2C[0], token_C, row_r))
    if rows is None:
        return None
    draw_inputs = None if uniforms_r is None else DrawInputs(following.temperature, uniforms_r)

    def predicted() -> tuple[IntArray, IntArray]:
        ((offset_C, token_C),) = arrive()
        return offset_C, token_C

    return SpeculativePass(predicted, rows, start_reduction(rows, eos_ids, draw_inputs=draw_inputs))


def choose_by_kernel(
    found: Sequence[Tensor], following: NextRows, reading_C: IntArray
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return what ``choose_in_torch`` returns, from one kernel."""
    from orderlens.kernels.head.choice import NextPass, choose_next

    left_C, uniforms_A = following.left_C, following.uniforms_A
    after_C = np.cumsum(left_C)
    known = [
        following.first_C,
        following.n_C,
        reading_C,
        following.fixed_C,
        after_C - left_C,
        following.place_A,
    ]
    if uniforms_A is not None:
        known.append(uniforms_A.view(np.int64))  # all inputs of the kernel in one copy
    next_pass = NextPass(
        known=to_device(np.concatenate(known), found[0].device),
        chains=len(reading_C),
        places=len(following.place_A),
        rows=int(after_C[-1]),
        most_rows=int(following.n_C.max()),
        width=following.width,
        heated=uniforms_A is not None,
    )
    return choose_next(found, next_pass)


def choose_in_torch(
    found: Sequence[Tensor], following: NextRows, reading_C: IntArray
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Predict the choice in torch, on any device.

    Returns:
        Offset in the window and token of each chain [2, C]; the tokens again [C] in int32; the places [r]
        that the next pass requests; the uniform numbers [r] of their draws.
    """
    device, left_C, count = found[0].device, following.left_C, len(reading_C)
    chain_r = np.repeat(np.arange(count), left_C)
    place_r = np.arange(len(chain_r)) - (np.cumsum(left_C) - left_C)[chain_r]
    # Places after the chosen row move up by one, including the fixed places at the end.
    base_r = np.where(following.fixed_C < 0, following.first_C, following.fixed_C - 1)[chain_r] + place_r
    inside_CM = np.arange(following.n_C.max()) < following.n_C[:, None]
    table_CM = np.where(inside_CM, following.first_C[:, None] + np.arange(inside_CM.shape[1]), -1)
    base, chain, table, first, reading, place = (
        to_device(part, device)
        for part in (base_r, chain_r, table_CM, following.first_C, reading_C, following.place_A)
    )
    by_reading_KR = torch.stack([_read(found, name) for name in READINGS])
    score_CM = by_reading_KR[reading[:, None], table].masked_fill(table < 0, -torch.inf)
    row_C = first + score_CM.argmax(dim=1)
    token_C = found[2 if len(found) > 2 else 0][row_C]
    next_r = base + (base >= row_C[chain])
    uniforms = None
    if following.uniforms_A is not None:
        uniforms = to_device(following.uniforms_A, device)[next_r]
    predicted_2C = torch.stack((place[row_C] % following.width, token_C))
    return predicted_2C, token_C.int(), place[next_r], uniforms


def _read(found: Sequence[Tensor], reading: Reading) -> Tensor:
    """Return one number per row, in the precision that the host uses."""
    top_R, second_R, entropy_R = (found[1][:, column].double() for column in (1, 2, 3))
    if reading == "drawn":
        return found[3][:, 0] if len(found) > 2 else top_R
    if reading == "certainty":
        return -entropy_R
    return top_R if reading == "top" else top_R.exp() - second_R.exp()
