"""Traces of one sample as an animated SVG: tokens appear where and when they were revealed, over and over.

One self-contained file without scripts or fonts: what moves is CSS, so that it plays inside a README too.
Readers who asked for less motion, and programs that know no animation, see the finished text with its reveal
numbers.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orderlens.views.replay import canvas
from orderlens.views.sketch import Drawable, cell_len, speller, summary
from orderlens.views.trace import TraceView

_WIDTH, _MARGIN, _LETTER = 880.0, 16.0, 7.3
"""Pixels: the picture, its margin, a letter of a token."""
_LINE, _BOX, _HEAD = 42.0, 22.0, 26.0
"""Pixels: a line of tokens with their numbers, a token's box, the line that says whose trace it is."""
_PASS, _LONGEST, _HOLD, _BEFORE = 0.32, 20.0, 3.5, 0.6
"""Seconds: a pass, all passes at most, the finished text, the empty canvas."""

_STYLE = """
.ground,.cover{fill:#fff}.track{fill:#e3e1da}.done{fill:#1f4e8c}
.head{font:600 13px system-ui,sans-serif;fill:#1d2330}.quiet{font:12px system-ui,sans-serif;fill:#5b6270}
.num{font:600 9.5px system-ui,sans-serif;fill:#5b6270}.low{fill:#a8480a}
.word{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#111;white-space:pre}
.num,.word{text-anchor:middle}
.mask{fill:#f1f0ec;stroke:#c9c6bd;stroke-dasharray:3 2}.box{fill:#f28c28;stroke:#b9b4a8;stroke-width:.6}
@media(prefers-color-scheme:dark){
.ground,.cover{fill:#14171c}.track{fill:#2a3038}.done{fill:#7fb0f0}
.head{fill:#eef0f3}.quiet,.num{fill:#a9b0bb}.low{fill:#ffb070}.word{fill:#f4f4f4}
.mask{fill:#1e232a;stroke:#454c57}.box{fill:#b3560a;stroke:#59606b}}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""


@dataclass(frozen=True, slots=True)
class Stay:
    """A token at a place from pass ``first`` up to, not including, pass ``until`` (None: to the end)."""

    position: int
    token_id: int
    step: int | None
    first: int
    until: int | None


def stays(trace: TraceView) -> list[Stay]:
    """Return what stood where and when, over all passes."""
    out: list[Stay] = []
    open_: dict[int, Stay] = {}
    events = sorted({*trace.reveals.forward.tolist(), *(item.forward for item in trace.revisions)})
    for forward in events:
        for cell in canvas(trace, forward):
            token = None if cell.state in ("masked", "taken back") else cell.token_id
            before = open_.get(cell.position)
            if before is not None and (token, cell.step) != (before.token_id, before.step):
                out.append(Stay(before.position, before.token_id, before.step, before.first, forward))
                del open_[cell.position]
            if token is not None and cell.position not in open_:
                open_[cell.position] = Stay(cell.position, token, cell.step, forward, None)
    return sorted([*out, *open_.values()], key=lambda item: (item.first, item.position))


def film(sample: Drawable, traces: Sequence[TraceView]) -> str:
    """Return an SVG in which traces of a sample fill side by side in time, below each other.

    Args:
        sample: the sample, for the texts of tokens.
        traces: which of its traces; all take one pass at a time, so that fewer passes end sooner.
    """
    passes = max((trace.n_forwards for trace in traces), default=1)
    clock = _Clock(max(passes, 1))
    parts, y = [], _MARGIN
    for trace in traces:
        drawn, height = _pane(sample, trace, clock, y)
        parts += drawn
        y += height + 10
    height = y + 22
    title = html.escape(
        f"Tokens of one text in the order of their reveal: {', '.join(t.label for t in traces)}"
    )
    size = f'width="{_WIDTH:g}" height="{height:g}"'
    view = f'viewBox="0 0 {_WIDTH:g} {height:g}" {size} role="img" aria-label="{title}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
            f"<title>{title}</title>",
            f"<style>{_STYLE}{clock.style()}</style>",
            f'<rect class="ground" {size} rx="8"/>',
            *parts,
            *_foot(y),
            "</svg>\n",
        ]
    )


class _Clock:
    """Which part of a round each pass falls on; notes the animations that are used."""

    def __init__(self, passes: int) -> None:
        playing = min(passes * _PASS, _LONGEST)
        self.passes = passes
        self.seconds = _BEFORE + playing + _HOLD
        self._start, self._each = _BEFORE / self.seconds, playing / passes / self.seconds
        self._used: dict[str, tuple[int, int | None]] = {}

    def at(self, forward: int) -> float:
        """Return when a pass shows, in per cent of a round."""
        return 100 * (self._start + self._each * forward)

    def name(self, stay: Stay) -> str:
        """Return the class of what is to be seen during a stay."""
        found = f"p{stay.first}" if stay.until is None else f"p{stay.first}-{stay.until}"
        self._used[found] = (stay.first, stay.until)
        return found

    def style(self) -> str:
        """Return the rules of all classes given out."""
        begin, end = self.at(0), self.at(self.passes)
        rules = [
            f"@keyframes go{{0%,{begin:.2f}%{{transform:scaleX(0)}}{end:.2f}%,100%{{transform:none}}}}",
            f".done{{animation:go {self.seconds:.2f}s linear infinite;transform-origin:{_MARGIN:g}px 0}}",
        ]
        for name, (first, until) in self._used.items():
            on = self.at(first)
            off = "" if until is None else f"{self.at(until):.2f}%,"
            shown = f"{on:.2f}%,{100 if until is None else self.at(until) - 0.01:.2f}%{{opacity:1}}"
            gone = f"{off}100%{{opacity:0}}" if off else ""
            rules.append(f"@keyframes {name}{{0%,{on - 0.01:.2f}%{{opacity:0}}{shown}{gone}}}")
            rest = "" if until is None else "opacity:0;"
            rules.append(f".{name}{{{rest}animation:{name} {self.seconds:.2f}s infinite}}")
        return "\n".join(rules)


def _pane(sample: Drawable, trace: TraceView, clock: _Clock, top: float) -> tuple[list[str], float]:
    """Return the elements of one trace and its height."""
    standing = stays(trace)
    spelled = speller(sample, trace)
    words = {item: spelled(item.token_id) for item in standing}
    widths: dict[int, float] = {}
    for item, word in words.items():
        widths[item.position] = max(widths.get(item.position, 0.0), _LETTER * max(cell_len(word), 2) + 8)
    places, bottom = _places(widths, top + _HEAD)
    logq = dict(zip(trace.reveals.position.tolist(), trace.reveals.logq.tolist(), strict=True))
    out = [f'<text class="head" x="{_MARGIN:g}" y="{top + 13:g}">{html.escape(summary(trace))}</text>']
    for place, (x, y) in places.items():
        out.append(
            f'<rect class="mask" x="{x:.1f}" y="{y:g}" width="{widths[place]:.1f}" height="{_BOX:g}" rx="4"/>'
        )
    for item, word in words.items():
        x, y = places[item.position]
        out += _token(item, word, (x, y, widths[item.position]), logq[item.position], clock.name(item))
    return out, bottom - top


def _places(widths: dict[int, float], top: float) -> tuple[dict[int, tuple[float, float]], float]:
    """Return where each position's box stands, in lines from left to right, and where the lines end."""
    x, y, out = _MARGIN, top + 12, {}
    for place in sorted(widths):
        if x + widths[place] > _WIDTH - _MARGIN and x > _MARGIN:
            x, y = _MARGIN, y + _LINE
        out[place] = (x, y)
        x += widths[place] + 3
    return out, y + _BOX


def _token(item: Stay, word: str, box: tuple[float, float, float], logq: float, name: str) -> Iterator[str]:
    """Yield a revealed token over its mask: the stronger its ground, the less probable it was."""
    x, y, width = box
    doubt = 0.0 if math.isnan(logq) else 1 - math.exp(min(logq, 0.0))
    final = item.until is None
    low = " low" if final and doubt > 0.5 else ""
    middle = x + width / 2
    frame = f'x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{_BOX:g}" rx="4"'
    yield f'<g class="{name}"><rect class="cover" {frame}/>'
    yield f'<rect class="box" {frame} fill-opacity="{doubt if final else 0:.2f}"/>'
    yield f'<text class="word" x="{middle:.1f}" y="{y + 15:g}">{html.escape(word)}</text>'
    if final and item.step is not None:
        yield f'<text class="num{low}" x="{middle:.1f}" y="{y - 3:g}">{item.step + 1}</text>'
    yield "</g>"


def _foot(y: float) -> Iterator[str]:
    width = _WIDTH - 2 * _MARGIN
    yield f'<rect class="track" x="{_MARGIN:g}" y="{y:g}" width="{width:g}" height="3" rx="1.5"/>'
    yield f'<rect class="done" x="{_MARGIN:g}" y="{y:g}" width="{width:g}" height="3" rx="1.5"/>'
    told = "Numbers: when a token was revealed. The stronger its colour, the less probable it was."
    yield f'<text class="quiet" x="{_MARGIN:g}" y="{y + 16:g}">{told}</text>'
