"""What every verb shares: output and progress bars.

The two consoles are the only way to the terminal: strings are plain text (no markup, no emoji codes), and
what could steer a terminal is shown as its escape, wherever it came from; ASCII where it shows no more.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
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

from orderlens.cli.progress import Forecast, Lines
from orderlens.common.plaintext import UNSAFE, escape, plain, printable

if TYPE_CHECKING:
    from orderlens.runs.worker_log import WorkerState


UNKNOWN_WIDTH = 80
"""Columns of a terminal that does not say how many it has."""


class SafeConsole(Console):
    """A console that shows characters which could steer the terminal as escapes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)
        if self.width < 1:  # COLUMNS=0, as some programs set it, would hide everything
            self.width = UNKNOWN_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string safe before it is measured, so that columns stay aligned."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make everything else safe; what rich itself sends to the terminal is marked as control."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


stdout = SafeConsole()
stderr = SafeConsole(stderr=True)

UNBOUND_WIDTH = 100
"""Columns of tables in files and pipes."""


def table_width() -> int:
    """Return the most columns of a table as text: the terminal's, where the output goes to one."""
    return stdout.width if stdout.is_terminal else UNBOUND_WIDTH


JsonFlag = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of text.")]


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output (NaN and infinities become null)."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    text = json.dumps(plain(value), ensure_ascii=encoding != "utf8", indent=2, allow_nan=False)
    sys.stdout.write(printable_json(text) + "\n")


def print_text(text: str) -> None:
    """Print plain text; markup in it is shown, never interpreted."""
    stdout.print(text)


_HUSHED: list[str] = []
"""The name of this process where another one speaks for all of them."""


def hush(name: str) -> None:
    """Print nothing but failures from now on, with the name of this process: another one speaks for all."""
    _HUSHED.append(name)
    sys.stdout = io.StringIO()


def print_line(message: str) -> None:
    """Print one line for people on standard error: a failure or a warning."""
    stderr.print(
        f"orderlens: {''.join(f'{name}: ' for name in _HUSHED)}{message}",
        style="red" if stderr.is_terminal else None,
    )


class _Lines(logging.Handler):
    """Log records as lines on standard error, made safe like everything else."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        stderr.print(f"orderlens: {record.levelname.lower()}: {text}")


def prepare_streams() -> None:
    """Let nothing that is printed fail or bypass the consoles.

    A terminal that cannot show a character gets an ASCII spelling; warnings and log records become lines.
    """
    install()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ENCODING_ERRORS)
    root = logging.getLogger()
    if not any(isinstance(handler, _Lines) for handler in root.handlers):
        root.addHandler(_Lines(logging.WARNING))


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
        """Say how many steps there are, once that is known."""
        self._progress.update(self._task, total=total)
        if self._forecast:
            self._forecast.set_total(total)

    def show_workers(self, states: Sequence[WorkerState]) -> None:
        """Show how many workers do what, beside the label."""
        self._progress.update(self._task, description=f"{self._label} · {crew_line(states)}")

    def finish(self) -> None:
        """Say that the steps taken were all: texts that end early need fewer than were foreseen."""
        self._progress.update(self._task, total=self._progress.tasks[self._task].completed)


def crew_line(states: Sequence[WorkerState]) -> str:
    """Return ``3 working, 1 loading``."""
    counts = Counter(state.state for state in states)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


class _Rate(ProgressColumn):
    """Steps per second, over the last half minute."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextmanager
def progress_bar(
    label: str, total: int | None, *, quiet: bool = False, shorter: str | None = None
) -> Iterator[Bar | Lines]:
    """Show a bar with elapsed and remaining time on standard error; yields the function that advances it.

    Where standard error is no terminal, a line now and then takes the bar's place.

    Args:
        label: what is counted.
        total: how much there is, where it is known already.
        quiet: show no bar.
        shorter: the options that make the job shorter; with them, a job whose first minute predicts more than
            an hour says so once.
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
    if not quiet and not _HUSHED and not stderr.is_terminal:
        lines = Lines(label, total, forecast, stderr.print)
        yield lines
        lines.finish()
        return
    with Progress(*columns, console=stderr, disable=quiet or bool(_HUSHED), transient=False) as bar:
        running = Bar(bar, bar.add_task(label, total=total), forecast)
        yield running
        running.finish()


_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "━": "-", "…": "...", "×": "x", "·": ".", "•": "*", "→": "->",
    "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-", "²": "^2", "₀": "0", "σ": "sigma", "ρ": "rho", "Σ": "sum",
    "Γ": "Gamma", "γ": "gamma", "Δ": "Delta", "τ": "tau", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|",
    "╸": "-", "╺": "-", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip
ENCODING_ERRORS = "orderlens-ascii"
"""Name of the codec error handler that :func:`install` registers."""


def printable_json(text: str) -> str:
    r"""Return serialised JSON with unsafe characters as ``\uXXXX``: the same data, harmless to look at."""
    return UNSAFE.sub(_json_escape, text)


def install() -> None:
    """Make the ASCII spelling known to the codecs, for terminals that cannot show more."""
    codecs.register_error(ENCODING_ERRORS, _spell)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter) or escape(ord(letter)) for letter in lost), error.end
