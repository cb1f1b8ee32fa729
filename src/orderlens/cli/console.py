"""Consoles, progress bars and live texts of all commands.

All output goes through the two consoles. They print plain text (no markup, no emoji codes) and escape control
characters. Terminals that show only ASCII get ASCII spellings.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from orderlens.cli import terminal
from orderlens.common.plaintext import printable

if TYPE_CHECKING:
    from orderlens.decode.chains import LiveCanvas
    from orderlens.runs.options import ProgressSink
    from orderlens.runs.worker_log import WorkerState

UNKNOWN_WIDTH = 80
"""Columns of a terminal of unknown width."""


class SafeConsole(Console):
    """A console that escapes control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)
        if self.width < 1:  # COLUMNS=0, as some programs set it, would hide everything
            self.width = UNKNOWN_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string before it is measured, so that columns stay aligned."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape all other text; rich marks its own control sequences, which stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


stdout = SafeConsole()
stderr = SafeConsole(stderr=True)

UNBOUND_WIDTH = 100
"""Columns of tables in files and pipes."""


def table_width() -> int:
    """Return the maximum width of text tables: that of the terminal, or a fixed one for files and pipes."""
    return stdout.width if stdout.is_terminal else UNBOUND_WIDTH


_HEIGHTS = {"[▁▂]": "red", "[▃▄▅]": "yellow", "[▆▇█]": "green", "░|‹EOS›": "dim"}
"""Characters of a sketch → their colour: low, middling and high probability; masks and EOS."""


def print_sketch(text: str) -> None:
    """Print a drawing of traces, with bars in the colour of their height where the terminal has colours."""
    drawing = stdout.render_str(text)
    for characters, colour in _HEIGHTS.items():
        drawing.highlight_regex(characters, colour)
    stdout.print(drawing)


LOOK_AFTER_S = 60.0
TOO_LONG_S = 3600.0


class Forecast:
    """Predicts the remaining time from the first minute, which starts when the total is known."""

    def __init__(
        self, shorter: str, total: int | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._shorter, self._clock = shorter, clock or time.monotonic
        self._settled = False
        self.set_total(total)

    def set_total(self, total: int | None) -> None:
        """Set the number of steps (None: not known yet) and start the minute."""
        self._total, self._done, self._start = total, 0, self._clock()

    def advance(self, steps: int) -> str | None:
        """Count ``steps``; return a warning, once, if the job will take too long."""
        self._done += steps
        elapsed = self._clock() - self._start
        if self._settled or not self._total or not self._done or elapsed < LOOK_AFTER_S:
            return None
        self._settled = True
        left = elapsed * (self._total - self._done) / self._done
        if left <= TOO_LONG_S:
            return None
        return (
            f"this will take about {_duration(left)} more ({self._done:,} of {self._total:,} in the first "
            f"{elapsed:.0f} s; less if texts end early); Ctrl-C keeps finished work, "
            f"{self._shorter} makes it shorter"
        )


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"


EVERY_S = 10.0
"""Seconds between two progress lines."""


class Lines:
    """Prints progress as lines, at most one every ``EVERY_S`` seconds."""

    def __init__(
        self, label: str, total: int | None, forecast: Forecast | None, write: Callable[[str], None]
    ) -> None:
        self._label, self._write, self._forecast = label.strip(), write, forecast
        self._done, self._total = 0, total or 0
        self._start = self._last = time.monotonic()

    def __call__(self, steps: int = 1) -> None:
        """Advance."""
        self._done += steps
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            self.say(self._state(now - self._start))
        warning = self._forecast.advance(steps) if self._forecast else None
        if warning is not None:
            self._write(warning)

    def set_total(self, total: int) -> None:
        """Set the number of steps; 0 means that all work is already done."""
        self._total = total
        if self._forecast:
            self._forecast.set_total(total)
        self.say(f"{total:,} to do" if total else "nothing left to do")

    def finish(self) -> None:
        """Write the last line."""
        if self._done:
            self.say(f"{self._done:,} done in {time.monotonic() - self._start:.0f} s")

    def say(self, text: str) -> None:
        """Write one line."""
        self._write(f"{self._label}: {text}")

    def _state(self, seconds: float) -> str:
        if not self._total:
            return f"{self._done:,} done, {seconds:.0f} s"
        left = seconds * max(self._total - self._done, 0) / max(self._done, 1)
        percent = 100 * self._done / self._total
        return (
            f"{self._done:,} of {self._total:,} ({percent:.0f} %), {self._done / max(seconds, 1e-3):,.0f}/s, "
            f"{seconds:.0f} s, about {left:.0f} s left"
        )


class Bar:
    """A running progress bar: call it with the number of finished steps."""

    def __init__(self, progress: Progress, task: TaskID, forecast: Forecast | None = None) -> None:
        self._progress = progress
        self._task = task
        self._forecast = forecast
        self._label = str(progress.tasks[task].description)

    def __call__(self, steps: int = 1) -> None:
        """Advance the bar."""
        self._progress.advance(self._task, steps)
        warning = self._forecast.advance(steps) if self._forecast else None
        if warning is not None:
            stderr.print(warning)

    def set_total(self, total: int) -> None:
        """Set the number of steps, once it is known."""
        self._progress.update(self._task, total=total)
        if self._forecast:
            self._forecast.set_total(total)

    def show_workers(self, states: Sequence[WorkerState]) -> None:
        """Show the number of workers in each state next to the label."""
        self._progress.update(self._task, description=f"{self._label} · {states_line(states)}")

    def finish(self) -> None:
        """Set the total to the finished steps, because texts that end early need fewer."""
        self._progress.update(self._task, total=self._progress.tasks[self._task].completed)


def states_line(states: Sequence[WorkerState]) -> str:
    """Return ``3 working, 1 loading``."""
    counts = Counter(state.state for state in states)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


class _Rate(ProgressColumn):
    """Steps per second over the last 30 seconds."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextmanager
def progress_bar(
    label: str, total: int | None, *, quiet: bool = False, shorter: str | None = None
) -> Iterator[Bar | Lines]:
    """Show a progress bar on standard error; yields the function that advances it.

    If standard error is not a terminal, progress lines replace the bar.

    Args:
        label: what is counted.
        total: number of steps, if it is known.
        quiet: show nothing.
        shorter: options that make the job shorter. A warning names them if the first minute predicts more
            than an hour.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
    forecast = Forecast(shorter, total) if shorter else None
    if not quiet and not terminal.MUTED and not stderr.is_terminal:
        lines = Lines(label, total, forecast, stderr.print)
        yield lines
        lines.finish()
        return
    with Progress(*columns, console=stderr, disable=quiet or bool(terminal.MUTED), transient=False) as bar:
        running = Bar(bar, bar.add_task(label, total=total), forecast)
        yield running
        running.finish()


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
        from orderlens.show.views.sketch import visible

        if token not in self._texts:
            self._texts[token] = visible(self._piece(token)).replace("·", " ")
        return self._texts[token]


@contextmanager
def live_progress(sink: ProgressSink, console: SafeConsole, piece: Pieces) -> Iterator[LiveProgress]:
    """Draw texts on ``console`` while they are decoded."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield LiveProgress(sink, live, piece)
