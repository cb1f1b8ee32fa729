"""Traces of one sample as HTML for notebooks: self-contained, without scripts, every text escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from orderlens.plaintext import printable
from orderlens.views.replay import Cell, canvas
from orderlens.views.sketch import CHANGED, Drawable, speller, summary
from orderlens.views.trace import TraceView

_HEIGHT, _BAR, _DEEPEST = 60, 6, 6.0
"""Pixels of the plot and of a bar; log q below −6 nats is cut."""
_BOX = "display:inline-block;margin:1px;padding:0 3px;border:1px solid #8886;border-radius:3px"


def markup(sample: Drawable, traces: Sequence[TraceView]) -> str:
    """Return traces of a sample side by side: tokens with reveal numbers, log q by step, worst steps."""
    head = f"<b>sample {_safe(sample.sample_id)}</b>"
    if sample.prompt is not None:
        head += f"<div style='opacity:.7;white-space:pre-wrap'>{_safe(sample.prompt[-400:])}</div>"
    panes = "".join(f"<div style='flex:1 1 24em'>{_pane(sample, trace)}</div>" for trace in traces)
    return f"<div>{head}<div style='display:flex;flex-wrap:wrap;gap:1em'>{panes}</div></div>"


def _safe(text: str) -> str:
    return html.escape(printable(text))


def _pane(sample: Drawable, trace: TraceView) -> str:
    spelled = speller(sample, trace)
    tokens = "".join(
        _token(trace, cell, html.escape(spelled(cell.token_id))) for cell in canvas(trace, trace.n_forwards)
    )
    worst = "".join(
        f"<li>reveal {item.step + 1}, position {item.position}: q = {math.exp(item.logq):.3g}</li>"
        for item in trace.bottlenecks(5)
    )
    return f"<div>{html.escape(summary(trace))}</div><div>{tokens}</div>{_plot(trace)}<ol>{worst}</ol>"


def _token(trace: TraceView, cell: Cell, text: str) -> str:
    """Return one token; the darker its ground, the less probable it was, and its title says it in numbers."""
    shown = trace.reveals
    row = int((shown.position == cell.position).nonzero()[0][0])
    logq = float(shown.logq[row])
    changes = sum(item.position == cell.position and item.old_token is not None for item in trace.revisions)
    told = f"position {cell.position}, pass {int(shown.forward[row]) + 1}, log q {logq:.3f}"
    told += f", changed {changes} times" if changes else ""
    ground = f"rgba(31,119,180,{0.6 * (1 - math.exp(min(logq, 0.0))):.2f})" if logq == logq else "none"
    number = f"<sub>{int(shown.step[row]) + 1}{CHANGED if changes else ''}</sub>"
    return f"<span title='{told}' style='{_BOX};background:{ground}'>{text}{number}</span>"


def _plot(trace: TraceView) -> str:
    """Return log q by step as bars that hang from 0."""
    bars = []
    for i, logq in enumerate(trace.reveals.logq.tolist()):
        if logq == logq:
            height = max(1.0, min(-logq, _DEEPEST) / _DEEPEST * _HEIGHT)
            bars.append(f"<rect x='{i * _BAR}' width='{_BAR - 1}' height='{height:.1f}' fill='#1f77b4'/>")
    width = max(len(trace.reveals) * _BAR, 1)
    return (
        f"<svg role='img' aria-label='log q by step' viewBox='0 0 {width} {_HEIGHT}' "
        f"style='max-width:100%;height:{_HEIGHT}px' preserveAspectRatio='none'>{''.join(bars)}</svg>"
    )
