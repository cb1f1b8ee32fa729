"""The canvas after a number of forward passes, and where the canvases of two traces first differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orderlens.show.views.trace import ShownRevision, TraceView

State = Literal["masked", "new", "earlier", "edited", "remasked"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of the canvas.

    Attributes:
        position: in the sequence.
        state: masked; new (revealed by this pass); earlier; edited or remasked (by this pass).
        token_id: the token at this position, or the one just remasked; None while masked.
        step: its reveal number, counted from 0; None before its last reveal.
        edited: whether another token was revealed there first.
    """

    position: int
    state: State
    token_id: int | None = None
    step: int | None = None
    edited: bool = False


def canvas(trace: TraceView, forward: int) -> tuple[Cell, ...]:
    """Return the positions of a trace from left to right, in their state after pass ``forward`` (from 0).

    −1 gives the empty canvas.
    """
    changes: dict[int, list[ShownRevision]] = {}
    for item in trace.revisions:
        if item.forward <= forward:
            changes.setdefault(item.position, []).append(item)
    shown = trace.reveals
    rows = {int(place): row for row, place in enumerate(shown.position)}
    return tuple(_cell(trace, rows[place], changes.get(place, []), forward) for place in sorted(rows))


def _cell(trace: TraceView, row: int, changes: list[ShownRevision], forward: int) -> Cell:
    shown = trace.reveals
    place, step, since = int(shown.position[row]), int(shown.step[row]), int(shown.forward[row])
    if since > forward:
        return _cell_before(place, changes[-1], forward) if changes else Cell(place, "masked")
    edits = [item for item in changes if item.forward >= since and item.new_token is not None]
    if edits:
        now: State = "edited" if edits[-1].forward == forward else "earlier"
        return Cell(place, now, edits[-1].new_token, step, edited=True)
    return Cell(place, "new" if since == forward else "earlier", int(shown.token_id[row]), step)


def _cell_before(place: int, last: ShownRevision, forward: int) -> Cell:
    """Return the cell of a position before its last reveal, from its latest change."""
    now = last.forward == forward
    if last.new_token is None:
        return Cell(place, "remasked", last.old_token) if now else Cell(place, "masked")
    if last.event == "edit":
        return Cell(place, "edited" if now else "earlier", last.new_token, edited=True)
    return Cell(place, "new" if now else "earlier", last.new_token)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two traces.

    Attributes:
        forward: first pass that committed other positions or other tokens; None where all passes agree.
        step: smallest reveal number of that pass.
        position: leftmost position at which the finished texts differ; None where they are equal.
    """

    forward: int | None
    step: int | None
    position: int | None


def first_divergence(a: TraceView, b: TraceView) -> Divergence:
    """Return where two traces first differ, in time and in the finished text."""
    forward = _first_pass(a, b)
    return Divergence(forward, None if forward is None else _step(a, b, forward), _first_place(a, b))


def _first_pass(a: TraceView, b: TraceView) -> int | None:
    left, right = _events(a), _events(b)
    differing = {forward for forward in left.keys() | right.keys() if left.get(forward) != right.get(forward)}
    return min(differing, default=None)


def _events(trace: TraceView) -> dict[int, set[tuple[int, int | None]]]:
    """Return pass → (position, token) pairs that it committed (token None: remasked)."""
    shown = trace.reveals
    out: dict[int, set[tuple[int, int | None]]] = {}
    for forward, place, token in zip(shown.forward, shown.position, shown.token_id, strict=True):
        out.setdefault(int(forward), set()).add((int(place), int(token)))
    for item in trace.revisions:
        out.setdefault(item.forward, set()).add((item.position, item.new_token))
    return out


def _step(a: TraceView, b: TraceView, forward: int) -> int | None:
    for trace in (a, b):
        steps = trace.reveals.step[trace.reveals.forward == forward]
        if len(steps):
            return int(steps.min())
    return None


def _first_place(a: TraceView, b: TraceView) -> int | None:
    left, right = ({cell.position: cell.token_id for cell in canvas(t, t.n_passes)} for t in (a, b))
    differing = [place for place in left.keys() | right.keys() if left.get(place, -1) != right.get(place, -1)]
    return min(differing, default=None)
