"""``generate --live``: shows the texts in the terminal while they are decoded, one per order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from orderlens.cli.console import SafeConsole
from orderlens.decode.chains import LiveCanvas
from orderlens.runs.options import ProgressSink
from orderlens.show.views.sketch import visible

FRAME_S = 1 / 15
"""Minimum seconds between two frames."""
MAX_ORDERS = 4
"""Maximum number of orders that are drawn."""
MASK = "░"

Pieces = Callable[[int], str]


class LiveProgress:
    """A progress display that also draws texts; another display counts the progress."""

    def __init__(self, sink: ProgressSink, live: Live, piece: Pieces) -> None:
        self._sink, self._live, self._piece = sink, live, piece
        self._texts: dict[int, str] = {}
        self._before: dict[tuple[str, str], LiveCanvas] = {}
        self._next = 0.0

    def __call__(self, steps: int = 1) -> None:
        """Advance."""
        self._sink(steps)

    def set_total(self, total: int) -> None:
        """Set the number of steps."""
        self._sink.set_total(total)

    def show_canvas(self, canvases: Sequence[LiveCanvas]) -> None:
        """Draw the texts of one sample; frames in quick succession are skipped, except the last."""
        now, done = time.monotonic(), not any(canvas.masked.any() for canvas in canvases)
        if now < self._next and not done:
            return
        self._next = now + FRAME_S
        self._live.update(Group(*map(self._drawn, canvases[:MAX_ORDERS])), refresh=True)
        self._before = {(canvas.sample_id, canvas.order): canvas for canvas in canvases}

    def _drawn(self, canvas: LiveCanvas) -> Text:
        before = self._before.get((canvas.sample_id, canvas.order))
        text = Text(no_wrap=False, overflow="fold")  # the console itself would not wrap
        text.append(f"{canvas.sample_id}, {canvas.order}, pass {canvas.forward}\n", style="dim")
        for place, token in enumerate(canvas.tokens.tolist()):
            if canvas.masked[place]:
                text.append(MASK, style="dim")
                continue
            new = before is None or before.tokens[place] != token
            text.append(self._text(token), style="bold reverse" if new else None)
        return text.append("\n")

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = visible(self._piece(token)).replace("·", " ")
        return self._texts[token]


@contextmanager
def live_progress(sink: ProgressSink, console: SafeConsole, piece: Pieces) -> Iterator[LiveProgress]:
    """Draw texts on ``console`` while they are decoded."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield LiveProgress(sink, live, piece)
