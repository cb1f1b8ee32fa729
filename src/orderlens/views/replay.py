"""The canvas after a number of forward passes: what stood at each position, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orderlens.views.trace import Revision, TraceView

State = Literal["masked", "new", "earlier", "edited", "taken back"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of the canvas.

    Attributes:
        position: in the sequence.
        state: masked; new (revealed by this pass); earlier; edited or taken back (by this pass).
        token_id: the token that stands there, or that was just taken back; None while masked.
        step: its reveal number, counted from 0; None before it is revealed.
        edited: whether another token was revealed there first.
    """

    position: int
    state: State
    token_id: int | None = None
    step: int | None = None
    edited: bool = False


def canvas(trace: TraceView, forward: int) -> tuple[Cell, ...]:
    """Return the positions of a trace from left to right, as they stand after pass ``forward`` (from 0).

    −1 gives the empty canvas. A run keeps the last reveal of a position only, so one that was taken back and
    filled again is masked here until the pass that took it back, which shows the lost token.
    """
    changes: dict[int, list[Revision]] = {}
    for item in trace.revisions:
        if item.forward <= forward:
            changes.setdefault(item.position, []).append(item)
    shown = trace.reveals
    rows = {int(place): row for row, place in enumerate(shown.position)}
    return tuple(_cell(trace, rows[place], changes.get(place, []), forward) for place in sorted(rows))


def _cell(trace: TraceView, row: int, changes: list[Revision], forward: int) -> Cell:
    shown = trace.reveals
    place, step, since = int(shown.position[row]), int(shown.step[row]), int(shown.forward[row])
    if since > forward:
        lost = next((item for item in changes if item.forward == forward and item.new_token is None), None)
        return Cell(place, "masked") if lost is None else Cell(place, "taken back", lost.old_token)
    edits = [item for item in changes if item.forward >= since and item.new_token is not None]
    if edits:
        now: State = "edited" if edits[-1].forward == forward else "earlier"
        return Cell(place, now, edits[-1].new_token, step, edited=True)
    return Cell(place, "new" if since == forward else "earlier", int(shown.token_id[row]), step)
