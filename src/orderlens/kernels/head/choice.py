# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Speculates on the next reveal in one kernel: best row and token of every chain, rows of the next pass.

Computes the same as ``speculate_torch.choose_in_torch``, with the same tie-break (the leftmost position).

Shape letters: C chains, R rows of the pass, r rows of the next pass, A places that the next pass may request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

FIELDS = 5
"""Integers per chain before the places: first row, rows, reading, fixed place, first row of the next pass."""
LEAST_BLOCK = 32
"""Minimum block size of the kernel, so that one compiled kernel serves all passes of such a block."""
MARGIN, CERTAINTY, DRAWN = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Indices into ``rules.orders.READINGS``; reading 0 is log p(v1)."""


@dataclass(frozen=True, slots=True)
class NextPass:
    """The host's data about the next pass.

    Attributes:
        known: int64 on the device: FIELDS × C integers, the places [A], then if ``heated`` the bits of the
            uniform numbers for draws [A].
        chains: C.
        places: A.
        rows: r.
        most_rows: maximum rows of a chain in this pass.
        width: width of a window; a place is chain × width + offset.
        heated: whether tokens are drawn at a temperature above 0.
    """

    known: Tensor
    chains: int
    places: int
    rows: int
    most_rows: int
    width: int
    heated: bool


@triton.jit(do_not_specialize=["chains", "width", "n_places"])
def _choice_kernel(
    token,
    columns,
    drawn,
    chance,
    known,
    guess_out,
    token_out,
    row_out,
    uniform_out,
    chains,
    width,
    n_places,
    COLUMNS: tl.constexpr,
    HEATED: tl.constexpr,
    KNOWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Choose for one chain; grid (C,).

    Reads token [R] and columns [R, COLUMNS]; if HEATED also drawn [R] and chance [R, 2]. Reads known [KNOWN,
    C], followed by the places [A] and, if HEATED, the bits of the uniform numbers for draws [A]. Writes guess
    [2, C], token [C], row [r] and uniform [r]. A chain has at most BLOCK rows.
    """
    chain = tl.program_id(0)
    first = tl.load(known + chain)
    count = tl.load(known + chains + chain)
    kind = tl.load(known + 2 * chains + chain)
    fixed = tl.load(known + 3 * chains + chain)
    out = tl.load(known + 4 * chains + chain)
    places = known + KNOWN * chains
    m = tl.arange(0, BLOCK)
    row, inside = first + m, m < count
    at = columns + row * COLUMNS
    top = tl.load(at + 1, mask=inside, other=0.0).to(tl.float64)
    second = tl.load(at + 2, mask=inside, other=0.0).to(tl.float64)
    entropy = tl.load(at + 3, mask=inside, other=0.0).to(tl.float64)
    score = tl.where(kind == MARGIN, tl.exp(top) - tl.exp(second), top)
    score = tl.where(kind == CERTAINTY, -entropy, score)
    if HEATED:
        picked = tl.load(chance + row * 2, mask=inside, other=0.0)
        score = tl.where(kind == DRAWN, picked, score)
    score = tl.where(inside, score, float("-inf"))
    largest = tl.max(score, axis=0)
    best = tl.minimum(tl.min(tl.where(score == largest, m, BLOCK), axis=0), count - 1)
    chosen = tl.load((drawn if HEATED else token) + first + best)
    tl.store(guess_out + chain, tl.load(places + first + best) - chain * width)
    tl.store(guess_out + chains + chain, chosen)
    tl.store(token_out + chain, chosen.to(tl.int32))
    moved = tl.where(fixed < 0, row + (m >= best).to(tl.int64), fixed + m)
    needed = tl.where(fixed < 0, m < count - 1, m < 1)
    tl.store(row_out + out + m, tl.load(places + moved, mask=needed, other=0), mask=needed)
    if HEATED:
        number = tl.load(places + n_places + moved, mask=needed, other=0).to(tl.float64, bitcast=True)
        tl.store(uniform_out + out + m, number, mask=needed)


def choose_next(found: Sequence[Tensor], following: NextPass) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the same as ``choose_in_torch``."""
    device, count, heated = found[0].device, following.chains, following.heated
    integers = torch.empty(2 * count + following.rows, dtype=torch.int64, device=device)
    guess_2C, row_r = integers[: 2 * count].view(2, count), integers[2 * count :]
    token_C = torch.empty(count, dtype=torch.int32, device=device)
    uniforms_r = torch.empty_like(row_r, dtype=torch.float64) if heated else None
    _choice_kernel[(count,)](
        found[0],
        found[1],
        found[2 if heated else 0],
        found[3 if heated else 1],
        following.known,
        guess_2C,
        token_C,
        row_r,
        uniforms_r if heated else found[1],
        count,
        following.width,
        following.places,
        COLUMNS=found[1].shape[1],
        HEATED=heated,
        KNOWN=FIELDS,
        BLOCK=max(LEAST_BLOCK, triton.next_power_of_2(following.most_rows)),
        num_warps=1,
    )
    return guess_2C, token_C, row_r, uniforms_r
