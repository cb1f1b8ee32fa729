"""The canvas after a number of forward passes: what stood at each position, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orderlens.show.views.trace import Revision, TraceView

State = Literal["masked", "new", "earlier", "edited", "taken back"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of the canvas.

    Attributes:
        position: in the sequence.
        state: masked; new (revealed by this pass); earlier; edited or taken back (by this pass).
        token_id: the token that stands there, or that was just taken back; None while masked.
        step: its reveal number, counted from 0; None before its last reveal.
        edited: whether another token was revealed there first.
    """

    position: int
    state: State
    token_id: int | None = None
    step: int | None = None
    edited: bool = False


def canvas(trace: TraceView, forward: int) -> tuple[Cell, ...]:
    """Return the positions of a trace from left to right, as they stand after pass ``forward`` (from 0).

    −1 gives the empty canvas.
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
        return _cell_before(place, changes[-1], forward) if changes else Cell(place, "masked")
    edits = [item for item in changes if item.forward >= since and item.new_token is not None]
    if edits:
        now: State = "edited" if edits[-1].forward == forward else "earlier"
        return Cell(place, now, edits[-1].new_token, step, edited=True)
    return Cell(place, "new" if since == forward else "earlier", int(shown.token_id[row]), step)


def _cell_before(place: int, last: Revision, forward: int) -> Cell:
    """Return a position before its last reveal, as the last thing that happened to it left it."""
    now = last.forward == forward
    if last.new_token is None:
        return Cell(place, "taken back", last.old_token) if now else Cell(place, "masked")
    if last.event == "edit":
        return Cell(place, "edited" if now else "earlier", last.new_token, edited=True)
    return Cell(place, "new" if now else "earlier", last.new_token)
