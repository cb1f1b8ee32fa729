"""What every verb shares: output, progress bars, and the one place where errors become exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of text.")]


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output (NaN and infinities become null)."""
    sys.stdout.write(json.dumps(_plain(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def print_text(text: str) -> None:
    """Print plain text; markup in it is shown, never interpreted."""
    stdout.print(text, markup=False)


class Bar:
    """A running progress bar: call it with the number of finished steps."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, steps: int = 1) -> None:
        """Advance the bar."""
        self._progress.advance(self._task, steps)

    def set_total(self, total: int) -> None:
        """Say how many steps there are, once that is known."""
        self._progress.update(self._task, total=total)

    def finish(self) -> None:
        """Say that the steps taken were all: texts that end early need fewer than were foreseen."""
        self._progress.update(self._task, total=self._progress.tasks[self._task].completed)


@contextmanager
def progress_bar(label: str, total: int | None, *, quiet: bool = False) -> Iterator[Bar]:
    """Show a bar with elapsed and remaining time on standard error; yields the function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, disable=quiet, transient=False) as bar:
        running = Bar(bar, bar.add_task(label, total=total))
        yield running
        running.finish()
