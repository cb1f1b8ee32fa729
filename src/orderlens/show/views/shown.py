"""What ``sample.show()`` gives: traces to look at, as text at a prompt and as HTML in a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orderlens.common.templating import fill
from orderlens.show.views.film import film
from orderlens.show.views.replay import Cell, canvas
from orderlens.show.views.sketch import CHANGED, WIDTH, Drawable, sketch, speller, summary
from orderlens.show.views.trace import TraceView

_HEIGHT, _BAR, _DEEPEST = 60, 6, 6.0
"""Pixels of the plot and of a bar; log q below −6 nats is cut."""


def markup(sample: Drawable, traces: Sequence[TraceView]) -> str:
    """Return traces of a sample side by side: tokens with reveal numbers, log q by step, worst steps."""
    return fill(
        "sample.html.j2",
        sample_id=sample.sample_id,
        prompt=None if sample.prompt is None else sample.prompt[-400:],
        panes=[_pane(sample, trace) for trace in traces],
        height=_HEIGHT,
    )


def _pane(sample: Drawable, trace: TraceView) -> dict[str, Any]:
    spelled = speller(sample, trace)
    worst = [
        f"reveal {item.step + 1}, position {item.position}: q = {math.exp(item.logq):.3g}"
        for item in trace.bottlenecks(5)
    ]
    return {
        "summary": summary(trace),
        "tokens": [_token(trace, cell, spelled(cell.token_id)) for cell in canvas(trace, trace.n_passes)],
        "bars": _bars(trace),
        "width": max(len(trace.reveals) * _BAR, 1),
        "worst": worst,
    }


def _token(trace: TraceView, cell: Cell, text: str) -> dict[str, str]:
    """Return one token; the darker its ground, the less probable it was, and its title says it in numbers."""
    shown = trace.reveals
    row = int((shown.position == cell.position).nonzero()[0][0])
    logq = float(shown.logq[row])
    changes = sum(item.position == cell.position and item.old_token is not None for item in trace.revisions)
    told = f"position {cell.position}, pass {int(shown.forward[row]) + 1}, log q {logq:.3f}"
    told += f", changed {changes} times" if changes else ""
    ground = f"rgba(31,119,180,{0.6 * (1 - math.exp(min(logq, 0.0))):.2f})" if logq == logq else "none"
    number = f"{int(shown.step[row]) + 1}{CHANGED if changes else ''}"
    return {"text": text, "told": told, "ground": ground, "number": number}


def _bars(trace: TraceView) -> list[dict[str, Any]]:
    """Return log q by step as bars that hang from 0."""
    heights = [-logq / _DEEPEST * _HEIGHT for logq in trace.reveals.logq.tolist()]
    return [
        {"x": i * _BAR, "width": _BAR - 1, "height": f"{max(1.0, min(height, _HEIGHT)):.1f}"}
        for i, height in enumerate(heights)
        if height == height
    ]


MOST = 4
"""Traces that are drawn where nobody names some."""


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """Traces of one sample, drawn when they are displayed."""

    sample: Drawable
    traces: tuple[TraceView, ...]

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """Return the drawing in lines of ``width`` characters."""
        return sketch(self.sample, self.traces, width)

    def film(self) -> str:
        """Return an animated SVG in which the tokens appear in the order of their reveal."""
        return film(self.sample, self.traces)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return markup(self.sample, self.traces)
