"""The device's side of ``guess``: from statistics to a guess, and the forward and head that follow from it.

Nothing here waits for the device: everything is queued behind the pass whose statistics it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.decode.head_torch import OnDevice, ask
from orderlens.decode.next_rows import NextRows
from orderlens.decode.passes import Queued
from orderlens.models.protocol import Foresees, IntArray, OneMore
from orderlens.models.torch.transfer import arriving, to_device
from orderlens.orders.protocol import Reading
from orderlens.stats import Answer, Heat


def queue(session: Foresees, answer: Answer, following: NextRows, eos_ids: Iterable[int]) -> Queued | None:
    """Queue the guess and the pass that follows from it; None where the session cannot."""
    if not isinstance(answer, OnDevice):
        return None
    device = answer.found[0].device
    first_C, place_A, base_r, chain_r, kind_R, table_CM = _sent(following, device)
    score_R = _scores(answer.found, following.readings, kind_R)
    row_C = first_C + _best(score_R, table_CM, len(first_C))
    token_C = answer.found[2 if len(answer.found) > 2 else 0][row_C]
    offset_C = place_A[row_C] % following.width
    guess = arriving(torch.stack((offset_C, token_C)))
    next_r = base_r + (base_r >= row_C[chain_r])
    rows = session.foresee(OneMore(offset_C, token_C, place_A[next_r]))
    if rows is None:
        return None
    heat = None
    if following.uniforms_A is not None:
        heat = Heat(following.temperature, to_device(following.uniforms_A, device)[next_r])

    def guessed() -> tuple[IntArray, IntArray]:
        ((offset, token),) = guess()
        return offset, token

    return Queued(guessed, rows, ask(rows, eos_ids, heat=heat))


def _sent(
    following: NextRows, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Bring it to the device in one copy; the last tensor places the rows of uneven chains."""
    parts = [following.first_C, following.place_A, following.base_r, following.chain_r]
    parts.append(np.empty(0, np.int64) if following.kind_R is None else following.kind_R)
    most = int(following.n_C.max())
    even = bool((following.n_C == most).all())
    if not even:
        inside_CM = np.arange(most) < following.n_C[:, None]
        table_CM = np.where(inside_CM, following.first_C[:, None] + np.arange(most), following.n_C.sum())
        parts.append(table_CM.ravel())
    first, place, base, chain, kind, *table = torch.split(
        to_device(np.concatenate(parts), device), [len(part) for part in parts]
    )
    return first, place, base, chain, kind, table[0].view(-1, most) if table else None


def _best(score_R: Tensor, table_CM: Tensor | None, count: int) -> Tensor:
    """Return the place of each chain's largest score among its rows, the first among equals."""
    if table_CM is None:
        return score_R.view(count, -1).argmax(dim=1)
    return torch.cat((score_R, score_R.new_full((1,), -torch.inf)))[table_CM].argmax(dim=1)


def _scores(found: Sequence[Tensor], readings: Sequence[Reading], kind_R: Tensor) -> Tensor:
    """Return what is compared at each row [R]."""
    columns = [_read(found, reading) for reading in readings]
    if len(columns) == 1:
        return columns[0]
    return torch.stack([column.double() for column in columns]).gather(0, kind_R[None])[0]


def _read(found: Sequence[Tensor], reading: Reading) -> Tensor:
    """Return one number per row, as exact as the host has it."""
    if reading == "drawn":
        return found[3][:, 0]
    if reading == "certainty":
        return -found[1][:, 3]
    top_R, second_R = found[1][:, 1], found[1][:, 2]
    return top_R if reading == "top" else top_R.double().exp() - second_R.double().exp()
