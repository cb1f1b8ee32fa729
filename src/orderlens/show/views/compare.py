"""Where two traces of one sample part ways."""

from __future__ import annotations

from dataclasses import dataclass

from orderlens.show.views.replay import canvas
from orderlens.show.views.trace import TraceView


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two traces.

    Attributes:
        forward: first pass after which other positions, or other tokens, had been committed; None where the
            two agree pass by pass.
        step: smallest reveal number of that pass, in the trace that committed by it.
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
    """Return pass → what it put where (None: taken back)."""
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
