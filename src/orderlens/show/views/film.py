"""Traces of one sample as an animated SVG: tokens appear at their positions in the order of their reveal.

One self-contained file without scripts or fonts. The animation is CSS, so it also plays inside a README.
Readers who prefer reduced motion, and programs without animation, see the finished text with reveal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from orderlens.common.plaintext import printable
from orderlens.common.templating import fill
from orderlens.show.views.replay import canvas
from orderlens.show.views.sketch import Drawable, cell_len, speller, summary
from orderlens.show.views.trace import TraceView

_WIDTH, _MARGIN, _LETTER = 880.0, 16.0, 7.3
"""Pixels: the picture, its margin, a letter of a token."""
_LINE, _BOX, _HEAD = 42.0, 22.0, 26.0
"""Pixels: a line of tokens with their numbers, a token's box, the heading of a trace."""
_QUIET, _PROMPT_LINES, _PROMPT_LETTERS = 17.0, 2, 118
"""Pixels of a line of the prompt, how many lines of it are shown, and their letters."""
_PASS, _LONGEST, _HOLD, _BEFORE = 0.32, 20.0, 3.5, 0.6
"""Seconds: a pass, all passes at most, the finished text, the empty canvas."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A token at a place from pass ``first`` up to, not including, pass ``until`` (None: to the end)."""

    position: int
    token_id: int
    step: int | None
    first: int
    until: int | None


def stays(trace: TraceView) -> list[Stay]:
    """Return the tokens of all positions over all passes, with the passes between which each was there."""
    out: list[Stay] = []
    open_: dict[int, Stay] = {}
    events = sorted({*trace.reveals.forward.tolist(), *(item.forward for item in trace.revisions)})
    for forward in events:
        for cell in canvas(trace, forward):
            token = None if cell.state in ("masked", "remasked") else cell.token_id
            before = open_.get(cell.position)
            if before is not None and (token, cell.step) != (before.token_id, before.step):
                out.append(Stay(before.position, before.token_id, before.step, before.first, forward))
                del open_[cell.position]
            if token is not None and cell.position not in open_:
                open_[cell.position] = Stay(cell.position, token, cell.step, forward, None)
    return sorted([*out, *open_.values()], key=lambda item: (item.first, item.position))


def film(sample: Drawable, traces: Sequence[TraceView]) -> str:
    """Return an SVG in which traces of a sample are decoded at the same time, below each other.

    Args:
        sample: the sample, for the texts of tokens.
        traces: which of its traces; each pass takes the same time in all of them.
    """
    clock = _Clock(max((trace.n_passes for trace in traces), default=1))
    given = _given(sample.prompt or "")
    panes, y = [], _MARGIN + _QUIET * len(given) + (8 if given else 0)
    for trace in traces:
        pane, height = _pane(sample, trace, clock, y)
        panes.append(pane)
        y += height + 10
    labels = ", ".join(trace.label for trace in traces)
    return fill(
        "film.svg.j2",
        title=f"Tokens of one text in the order of their reveal: {labels}",
        clock=clock,
        panes=panes,
        given=[(f"{_MARGIN + _QUIET * (place + 0.75):g}", line) for place, line in enumerate(given)],
        width=f"{_WIDTH:g}",
        height=f"{y + 22:g}",
        margin=f"{_MARGIN:g}",
        span=f"{_WIDTH - 2 * _MARGIN:g}",
        foot=f"{y:g}",
        foot_text=f"{y + 16:g}",
    )


def _given(prompt: str) -> list[str]:
    """Return the end of the prompt in at most ``_PROMPT_LINES`` lines."""
    words = " ".join(printable(prompt).split())
    lines = wrap(words, _PROMPT_LETTERS)
    kept = lines[-_PROMPT_LINES:]
    return [f"… {kept[0]}", *kept[1:]] if len(lines) > _PROMPT_LINES else kept


class _Clock:
    """Times of the animation: when each pass shows, as a share of one round."""

    def __init__(self, passes: int) -> None:
        self.passes = max(passes, 1)
        playing = min(self.passes * _PASS, _LONGEST)
        seconds = _BEFORE + playing + _HOLD
        self.round_s = f"{seconds:.2f}"
        self._start, self._each = _BEFORE / seconds, playing / self.passes / seconds
        self._used: dict[str, Stay] = {}

    def at(self, forward: int, shift: float = 0.0) -> str:
        """Return when a pass shows, in per cent of a round."""
        return f"{100 * (self._start + self._each * forward) + shift:.2f}"

    def name(self, stay: Stay) -> str:
        """Return the CSS class of a token that is visible during a stay."""
        found = f"p{stay.first}" if stay.until is None else f"p{stay.first}-{stay.until}"
        self._used[found] = stay
        return found

    def shows(self) -> list[tuple[str, int, int | None]]:
        """Return all CSS classes with the pass that shows them and the pass that hides them."""
        return [(name, stay.first, stay.until) for name, stay in self._used.items()]


def _pane(sample: Drawable, trace: TraceView, clock: _Clock, top: float) -> tuple[dict[str, Any], float]:
    """Return the drawing of one trace, and its height."""
    standing = stays(trace)
    spelled = speller(sample, trace)
    words = {item: spelled(item.token_id) for item in standing}
    widths: dict[int, float] = {}
    for item, word in words.items():
        widths[item.position] = max(widths.get(item.position, 0.0), _LETTER * max(cell_len(word), 2) + 8)
    places, bottom = _places(widths, top + _HEAD)
    frames = {
        place: {"x": f"{x:.1f}", "y": f"{y:g}", "width": f"{widths[place]:.1f}", "height": f"{_BOX:g}"}
        for place, (x, y) in places.items()
    }
    logq = dict(zip(trace.reveals.position.tolist(), trace.reveals.logq.tolist(), strict=True))
    tokens = []
    for item, word in words.items():
        x, y = places[item.position]
        drawn = _token(item, logq[item.position], x + widths[item.position] / 2, y)
        tokens.append(drawn | {"word": word, "frame": frames[item.position], "name": clock.name(item)})
    pane = {"head": summary(trace), "head_y": f"{top + 13:g}", "masks": list(frames.values())}
    return pane | {"tokens": tokens}, bottom - top


def _places(widths: dict[int, float], top: float) -> tuple[dict[int, tuple[float, float]], float]:
    """Return the corner of each position's box, in lines from left to right, and the lower end of all."""
    x, y, out = _MARGIN, top + 12, {}
    for place in sorted(widths):
        if x + widths[place] > _WIDTH - _MARGIN and x > _MARGIN:
            x, y = _MARGIN, y + _LINE
        out[place] = (x, y)
        x += widths[place] + 3
    return out, y + _BOX


def _token(item: Stay, logq: float, middle: float, y: float) -> dict[str, Any]:
    """Return a revealed token; a stronger background means less probable."""
    doubt = 0.0 if math.isnan(logq) else 1 - math.exp(min(logq, 0.0))
    final = item.until is None
    return {
        "doubt": f"{doubt if final else 0:.2f}",
        "low": final and doubt > 0.5,
        "number": item.step + 1 if final and item.step is not None else None,
        "middle": f"{middle:.1f}",
        "word_y": f"{y + 15:g}",
        "number_y": f"{y - 3:g}",
    }
