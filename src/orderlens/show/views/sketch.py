"""Traces of one sample drawn as lines of text, and as HTML for a notebook.

The text is made of plain characters, so that it reads without colour; unsafe ones are shown as escapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from orderlens.common.plaintext import one_line, printable
from orderlens.common.templating import fill
from orderlens.errors import counted
from orderlens.show.views.replay import Cell, canvas, first_divergence
from orderlens.show.views.trace import ShownRevision, TraceView

LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 100
"""Default width of a line in characters."""
EOS, MASK, CHANGED = "‹EOS›", "░", "*"
"""A token that ends the text, a masked position, and the mark of a changed token."""
_LONGEST = 24
_WORST = 5
_BLANKS = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})


class Drawable(Protocol):
    """The parts of a sample that are drawn besides its traces."""

    @property
    def sample_id(self) -> str:
        """The sample's id."""

    @property
    def prompt(self) -> str | None:
        """The prompt as text."""

    def piece(self, trace: TraceView, token_id: int) -> str:
        """Return the text of a token of one of the traces."""


def visible(piece: str) -> str:
    """Return a token with its blanks visible and everything unsafe as an escape, cut where it is long."""
    text = printable(piece).translate(_BLANKS) or "∅"
    return text if cell_len(text) <= _LONGEST else f"{set_cell_size(text, _LONGEST - 1)}…"


def speller(sample: Drawable, trace: TraceView) -> Callable[[int | None], str]:
    """Return the function that writes the tokens of a trace: EOS marked as such, None as a mask."""
    ends = set(trace.reveals.token_id[trace.reveals.is_eos].tolist())

    def spelled(token_id: int | None) -> str:
        if token_id is None:
            return MASK
        return EOS if token_id in ends else visible(sample.piece(trace, token_id))

    return spelled


def level(logq: float) -> str:
    """Return a bar for q = exp(log q): eight heights from 0 to 1, ``?`` where q is unknown."""
    return "?" if math.isnan(logq) else LEVELS[min(int(math.exp(min(logq, 0.0)) * 8), 7)]


def sparkline(trace: TraceView, width: int = WIDTH) -> str:
    """Return q by step; with more steps than ``width``, each bar is the lowest q of several steps."""
    values = trace.reveals.logq
    parts = np.array_split(values, min(width, len(values))) if len(values) else []
    return "".join(level(float(part.min())) for part in parts)


def summary(trace: TraceView) -> str:
    """Return a trace's numbers in a line."""
    stats, past = trace.stats, int(trace.reveals.is_overflow.sum())
    tokens = counted(len(trace.reveals) - past, "token")
    more = f" and {past} past the requested length" if past else ""
    numbers = [
        f"{tokens}{more} in {_passes(trace.n_passes)}",
        f"mean log q {stats.mean:.3f}",
        f"Var {stats.var:.3f}",
    ]
    if trace.verdict is not None and trace.verdict.correct is not None:
        numbers.append("correct" if trace.verdict.correct else "not correct")
    return f"{printable(trace.label)}: {', '.join(numbers)}"


def _passes(n: int) -> str:
    return "1 pass" if n == 1 else f"{n:,} passes"


def sketch(sample: Drawable, traces: Sequence[TraceView], width: int = WIDTH) -> str:
    """Return traces of a sample below each other, position under position.

    Args:
        sample: the sample, for the texts of tokens.
        traces: which of its traces.
        width: characters of a line.
    """
    lines = [f"sample {one_line(printable(sample.sample_id))}"]
    if sample.prompt is not None:
        lines.append(f"prompt: {_cut(' '.join(printable(sample.prompt).split()), width - 8)}")
    lines += ["", *_grid(sample, traces, width)]
    for trace in traces:
        lines += ["", summary(trace), f"q by step   {sparkline(trace, max(width - 12, 8))}"]
        lines += [*_worst(sample, trace), *_changes(sample, trace)]
    if len(traces) == 2:
        lines += ["", _difference(*traces)]
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 1))}…"


Row = dict[int, str]
"""Position → text of the cell."""


def _grid(sample: Drawable, traces: Sequence[TraceView], width: int) -> Iterator[str]:
    """Yield lines of tokens with, under each, per trace its reveal number and its confidence."""
    rows = list(_rows(sample, traces))
    gutter = min(max((cell_len(name) for name, _ in rows), default=0), width // 3)
    places = sorted({place for _, row in rows for place in row})
    widths = {place: max(cell_len(row.get(place, "")) for _, row in rows) for place in places}
    for first, line in enumerate(_wrapped(places, widths, width - gutter)):
        if first:
            yield ""
        for name, row in rows:
            cells = (_right(row.get(place, ""), widths[place]) for place in line)
            yield f"{set_cell_size(name, gutter)} {' '.join(cells)}".rstrip()


def _rows(sample: Drawable, traces: Sequence[TraceView]) -> Iterator[tuple[str, Row]]:
    """Yield named rows; tokens are repeated only where they differ from those of the trace above."""
    before: Row = {}
    for trace in traces:
        shown, spelled = trace.reveals, speller(sample, trace)
        finished = {cell.position: cell for cell in canvas(trace, trace.n_passes)}
        tokens = {place: spelled(cell.token_id) for place, cell in finished.items()}
        if tokens != before:
            yield "", tokens
        before = tokens
        changed = {item.position for item in trace.revisions if item.old_token is not None}
        steps = zip(shown.position.tolist(), shown.step.tolist(), strict=True)
        numbers = {place: f"{step + 1}{CHANGED if place in changed else ''}" for place, step in steps}
        yield printable(trace.label), numbers
        yield "", {int(place): level(logq) for place, logq in zip(shown.position, shown.logq, strict=True)}


def _wrapped(places: Sequence[int], widths: dict[int, int], room: int) -> Iterator[list[int]]:
    line: list[int] = []
    used = 0
    for place in places:
        if line and used + widths[place] + 1 > room:
            yield line
            line, used = [], 0
        line.append(place)
        used += widths[place] + 1
    if line:
        yield line


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _worst(sample: Drawable, trace: TraceView) -> Iterator[str]:
    """Yield the steps with q < 1/2, least probable first."""
    found = trace.bottlenecks(_WORST)
    if not found:
        yield "no step with q < 1/2"
        return
    tokens = dict(zip(trace.reveals.step.tolist(), trace.reveals.token_id.tolist(), strict=True))
    spelled = speller(sample, trace)
    for item in found:
        token = spelled(tokens[item.step])
        share = "" if math.isnan(item.share) else f", {item.share:.0%} of −Σ log q"
        q = math.exp(item.logq)
        yield f"  reveal {item.step + 1}: {token} at position {item.position}, q = {q:.3g}{share}"


def _changes(sample: Drawable, trace: TraceView) -> Iterator[str]:
    """Yield the first few changes: tokens replaced or remasked."""
    found = [item for item in trace.revisions if item.old_token is not None]
    if not found:
        return
    spelled, places = speller(sample, trace), {item.position for item in found}
    yield f"{counted(len(found), 'change')} at {counted(len(places), 'position')} ({CHANGED})"
    for item in found[:_WORST]:
        yield f"  pass {item.forward + 1}: {_change(item, spelled)} at position {item.position}"
    if len(found) > _WORST:
        yield f"  and {len(found) - _WORST} more"


def _change(item: ShownRevision, spelled: Callable[[int | None], str]) -> str:
    if item.new_token is None:
        return f"{spelled(item.old_token)} remasked"
    return f"{spelled(item.old_token)} became {spelled(item.new_token)}"


def _difference(a: TraceView, b: TraceView) -> str:
    found = first_divergence(a, b)
    when = (
        "they commit the same tokens in every pass"
        if found.forward is None
        else f"they first differ in pass {found.forward + 1}"
    )
    if found.position is None:
        return f"{when}; the texts are equal"
    return f"{when}; the texts first differ at position {found.position}"


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
        "tokens": [
            _marked_token(trace, cell, spelled(cell.token_id)) for cell in canvas(trace, trace.n_passes)
        ],
        "bars": _bars(trace),
        "width": max(len(trace.reveals) * _BAR, 1),
        "worst": worst,
    }


def _marked_token(trace: TraceView, cell: Cell, text: str) -> dict[str, str]:
    """Return one token; a darker background means less probable, and the title has the numbers."""
    shown = trace.reveals
    row = int((shown.position == cell.position).nonzero()[0][0])
    logq = float(shown.logq[row])
    changes = sum(item.position == cell.position and item.old_token is not None for item in trace.revisions)
    title = f"position {cell.position}, pass {int(shown.forward[row]) + 1}, log q {logq:.3f}"
    title += f", changed {changes} times" if changes else ""
    ground = f"rgba(31,119,180,{0.6 * (1 - math.exp(min(logq, 0.0))):.2f})" if logq == logq else "none"
    number = f"{int(shown.step[row]) + 1}{CHANGED if changes else ''}"
    return {"text": text, "title": title, "ground": ground, "number": number}


def _bars(trace: TraceView) -> list[dict[str, Any]]:
    """Return log q by step as bars that hang from 0."""
    heights = [-logq / _DEEPEST * _HEIGHT for logq in trace.reveals.logq.tolist()]
    return [
        {"x": i * _BAR, "width": _BAR - 1, "height": f"{max(1.0, min(height, _HEIGHT)):.1f}"}
        for i, height in enumerate(heights)
        if height == height
    ]


def cell_len(text: str) -> int:
    """Return the columns that ``text`` takes; rich is imported late because decoding does not need it."""
    from rich.cells import cell_len as columns

    return columns(text)


def set_cell_size(text: str, size: int) -> str:
    """Return ``text`` cut or padded to ``size`` columns."""
    from rich.cells import set_cell_size as cut

    return cut(text, size)
