"""What reaches a terminal: JSON that is JSON, bars and lines that count, ASCII where it shows no more."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.progress import Progress

from orderlens.cli import console, terminal
from orderlens.cli.console import Bar, progress_bar, states_line
from orderlens.cli.terminal import print_json, print_line, printable_json
from orderlens.common.plaintext import printable
from orderlens.runs.worker_log import WorkerState


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": float("nan"), "b": float("-inf")}, {"a": None, "b": None}),
        ({"a": np.float64("nan"), "b": np.int64(3)}, {"a": None, "b": 3}),
        ({"a": np.array([1.0, np.inf])}, {"a": [1.0, None]}),
        ({1: (1, 2), None: frozenset({7})}, {"1": [1, 2], "None": [7]}),
        ([True, None, "x", 0.1], [True, None, "x", 0.1]),
        ({"deep": [{"a": [float("nan")]}]}, {"deep": [{"a": [None]}]}),
    ],
)
def test_json_of_anything(value, plain, capsys) -> None:
    print_json(value)
    assert json.loads(capsys.readouterr().out) == plain


@pytest.mark.parametrize("text", ["\x1b[31m", "\u202e", "\U000e0041", "é海👩", 'quote " and \\', "\ud800"])
def test_json_is_harmless_to_look_at_and_the_same_data(text: str) -> None:
    written = printable_json(json.dumps({"a": text}, ensure_ascii=False))
    assert printable(written) == written
    assert json.loads(written) == {"a": text}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("0.5 ± 0.1", "0.5 +/- 0.1"),
        ("a → b …", "a -> b ..."),
        ("σ₀ ≤ 2·3²", "sigma0 <= 2.3^2"),
        ("海", "\\u6d77"),
        ("👩", "\\U0001f469"),
        ("é", "\\xe9"),
        ("▁▂▃▄▅▆▇█ ‹EOS›", "_.:-=+*# <EOS>"),
    ],
)
def test_a_terminal_that_knows_ascii_alone(text: str, spelled: str) -> None:
    terminal.install()
    assert text.encode("ascii", terminal.ENCODING_ERRORS).decode() == spelled


def test_json_on_an_ascii_terminal_is_escaped(monkeypatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"a": "é→"})
    stream.flush()
    written = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert json.loads(written) == {"a": "é→"}
    assert "\\u2192" in written


def states(*names: str) -> list[WorkerState]:
    made = []
    for name in names:
        state = object.__new__(WorkerState)
        object.__setattr__(state, "state", name)
        made.append(state)
    return made


def test_workers_are_counted_most_first() -> None:
    assert states_line(states("loading", "working", "working")) == "2 working, 1 loading"
    assert states_line([]) == ""


def test_a_bar_counts_and_ends_where_the_work_ended() -> None:
    with Progress(disable=True) as progress:
        task = progress.add_task("tokens", total=None)
        bar = Bar(progress, task)
        bar.set_total(10)
        bar(3)
        bar()
        bar.show_workers(states("working"))
        assert progress.tasks[task].description == "tokens · 1 working"
        bar.show_workers(states("working", "working"))
        assert progress.tasks[task].description == "tokens · 2 working"
        assert (progress.tasks[task].completed, progress.tasks[task].total) == (4, 10)
        bar.finish()
        assert progress.tasks[task].total == 4


def test_a_terminal_of_no_columns_still_shows_something(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    console.SafeConsole().print("a line")
    assert capsys.readouterr().out == "a line\n"


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_terminal_lines_take_the_place_of_a_bar(quiet: bool, capsys) -> None:
    with progress_bar("tokens", 4, quiet=quiet) as advance:
        advance(1)
        advance(3)
    said = capsys.readouterr().err
    assert ("tokens" in said) is not quiet
    if not quiet:
        assert "4" in said.splitlines()[-1]


def test_a_process_that_does_not_lead_prints_failures_with_its_name(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # comes back afterwards
    monkeypatch.setattr(terminal, "MUTED", [])
    terminal.mute("rank 3")
    terminal.print_text("hidden")
    sys.stdout.write("hidden")
    with progress_bar("tokens", 4) as advance:
        advance(4)
    print_line("it failed")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "orderlens: rank 3: it failed\n"


def test_log_records_are_lines_of_their_own_and_safe(capsys) -> None:
    handler = terminal._Lines(logging.WARNING)
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, "two\nlines \x1b[2J%s", ("!",), None))
    assert capsys.readouterr().err == "orderlens: warning: two lines \\x1b[2J!\n"


@pytest.mark.parametrize(("terminal", "columns"), [(True, 72), (False, 100)])
def test_tables_are_as_wide_as_the_terminal(monkeypatch, terminal, columns) -> None:
    monkeypatch.setattr(console, "stdout", SimpleNamespace(width=72, is_terminal=terminal))
    assert console.table_width() == columns


def test_numpy_warnings_are_not_printed() -> None:
    code = (
        "import numpy as np, sys\n"
        "from orderlens.cli import main\n"
        "main.dispatch = lambda words: int(np.isfinite(np.float64(1e308) * np.float64(10)))\n"
        "main.entry_point()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
