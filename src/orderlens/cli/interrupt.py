"""Ctrl-C and SIGTERM: say what is kept and how to go on, then leave with 128 + the signal's number.

``keeping`` surrounds work that leaves something behind; ``cli.main`` catches everything else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from orderlens.errors import OrderLensError, StoppedError

NOTHING = "nothing was written; run the same command again"


class Terminated(KeyboardInterrupt):
    """SIGTERM came; treated like Ctrl-C, but for the exit code."""


def listen() -> None:
    """Treat SIGTERM like Ctrl-C from now on (main thread only)."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated


def interrupted(stop: BaseException, kept: str) -> StoppedError:
    """Return the error that ends the command after ``stop``."""
    word, number = ("terminated", 15) if isinstance(stop, Terminated) else ("interrupted", 2)
    return StoppedError(f"{word}: {kept}", 128 + number)


def stopped_by(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt behind an error: one that meets a loading extension becomes an ImportError."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, KeyboardInterrupt):
        inner = inner.__cause__ or inner.__context__
    return inner


@contextmanager
def keeping(kept: Callable[[], str]) -> Iterator[None]:
    """Turn an interrupt of the block into one line; ``kept`` says what is there and how to go on."""
    try:
        yield
    except OrderLensError:
        raise
    except BaseException as error:
        if (stop := stopped_by(error)) is None:
            raise
        raise interrupted(stop, kept()) from error


def kept_in(out: Path | str) -> str:
    """Say how much of the run in a folder, or of the runs below it, is kept."""
    units, reveals = _committed(str(out))
    if not units:
        return f"no unit was finished, so {out} holds no results yet; the same command starts again"
    count = "1 finished unit" if units == 1 else f"{units} finished units"
    return f"{count} ({reveals:,} reveals) kept in {out}; the same command goes on there"


def _committed(out: str) -> tuple[int, int]:
    """Return the committed units and their reveals; a folder that cannot be read counts as empty."""
    from orderlens.store.overview import overview
    from orderlens.store.reader import find_runs

    try:
        facts = [overview(folder) for folder in find_runs(out)]
    except OrderLensError:
        return 0, 0
    return sum(item.get("units", 0) for item in facts), sum(
        item.get("rows", {}).get("reveals", 0) for item in facts
    )
