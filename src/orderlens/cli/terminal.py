"""Terminal encodings, log records, error lines, Ctrl-C and SIGTERM.

An interrupted command says what is kept and how to resume, and exits with 128 + the number of the signal.
``keeping`` surrounds work with results to keep; ``cli.main`` handles all other interrupts. Imports little, so
that ``--help`` is fast; tables and progress bars are in ``cli.console``.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from orderlens.common.plaintext import UNSAFE, escape, plain, printable
from orderlens.errors import OrderLensError, StoppedError

_ASCII = {
    "–": "-", "—": "-", "−": "-", "─": "-", "━": "-", "…": "...", "×": "x", "·": ".", "•": "*", "→": "->",
    "≤": "<=", "≥": ">=", "≈": "~", "±": "+/-", "²": "^2", "₀": "0", "σ": "sigma", "ρ": "rho", "Σ": "sum",
    "Γ": "Gamma", "γ": "gamma", "Δ": "Delta", "τ": "tau", "‘": "'", "’": "'", "“": '"', "”": '"', "│": "|",
    "╸": "-", "╺": "-", "\u00a0": " ", "\u202f": " ", "‹": "<", "›": ">", "½": "1/2", "π": "pi",
    "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "█": "#", "░": "?",
}  # fmt: skip
ENCODING_ERRORS = "orderlens-ascii"
"""Name of the codec error handler that :func:`install` registers."""
MUTED: list[str] = []
"""The name of this process, if another process prints for all."""


def mute(name: str) -> None:
    """From now on print only failures, with the name of this process; another process prints the rest."""
    MUTED.append(name)
    sys.stdout = io.StringIO()


def print_line(message: str) -> None:
    """Print a failure or a warning as one line on standard error."""
    text = printable(f"orderlens: {''.join(f'{name}: ' for name in MUTED)}{message}")
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stderr.write(f"\x1b[31m{text}\x1b[0m\n" if coloured else f"{text}\n")


def print_text(text: str) -> None:
    """Print plain text on standard output, with control characters escaped."""
    sys.stdout.write(printable(text).expandtabs() + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output (NaN and infinities become null)."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    text = json.dumps(plain(value), ensure_ascii=encoding != "utf8", indent=2, allow_nan=False)
    sys.stdout.write(printable_json(text) + "\n")


class _Lines(logging.Handler):
    """Prints log records as lines on standard error, with control characters escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        sys.stderr.write(printable(f"orderlens: {record.levelname.lower()}: {text}") + "\n")


def prepare_streams() -> None:
    """Prepare standard output and standard error for any text.

    Characters that the terminal cannot show are spelled in ASCII; warnings and log records become lines.
    """
    install()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ENCODING_ERRORS)
    root = logging.getLogger()
    if not any(isinstance(handler, _Lines) for handler in root.handlers):
        root.addHandler(_Lines(logging.WARNING))


def printable_json(text: str) -> str:
    r"""Return serialised JSON with unsafe characters as ``\uXXXX``; the data stay the same."""
    return UNSAFE.sub(_json_escape, text)


def install() -> None:
    """Register the codec error handler that spells characters in ASCII."""
    codecs.register_error(ENCODING_ERRORS, _spell)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_ASCII.get(letter) or escape(ord(letter)) for letter in lost), error.end


NOTHING = "nothing was written; run the same command again"


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C except for the exit code."""


def listen() -> None:
    """Treat SIGTERM like Ctrl-C from now on (main thread only)."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated


def interrupted(stop: BaseException, kept: str) -> StoppedError:
    """Return the error that ends the command after the interrupt ``stop``."""
    word, number = ("terminated", 15) if isinstance(stop, Terminated) else ("interrupted", 2)
    return StoppedError(f"{word}: {kept}", 128 + number)


def stopped_by(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that caused an error, e.g. an ImportError of a module that was being loaded."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, KeyboardInterrupt):
        inner = inner.__cause__ or inner.__context__
    return inner


@contextmanager
def keeping(kept: Callable[[], str]) -> Iterator[None]:
    """Turn an interrupt of the block into one line; ``kept`` says what is kept and how to resume."""
    try:
        yield
    except OrderLensError:
        raise
    except BaseException as error:
        if (stop := stopped_by(error)) is None:
            raise
        raise interrupted(stop, kept()) from error


def kept_in(out: Path | str) -> str:
    """Return a sentence about the finished units of the runs in a folder."""
    units, reveals = _committed(str(out))
    if not units:
        return f"no unit was finished, so {out} has no results yet; run the same command again"
    count = "1 finished unit" if units == 1 else f"{units} finished units"
    return f"{count} ({reveals:,} reveals) kept in {out}; the same command resumes there"


def _committed(out: str) -> tuple[int, int]:
    """Return the numbers of committed units and reveals; 0 for an unreadable folder."""
    from orderlens.store.overview import overview
    from orderlens.store.reader import find_runs

    try:
        facts = [overview(folder) for folder in find_runs(out)]
    except OrderLensError:
        return 0, 0
    return sum(item.get("units", 0) for item in facts), sum(
        item.get("rows", {}).get("reveals", 0) for item in facts
    )
