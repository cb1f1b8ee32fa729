"""Nothing that steers a terminal, and no markup, gets through: in text, tables, JSON, errors and progress."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata

import pytest
from rich.table import Table

from orderlens.cli import console, terminal
from orderlens.cli.main import main
from orderlens.cli.terminal import ENCODING_ERRORS, install, printable_json
from orderlens.common.plaintext import printable

HOSTILE = {
    "ESC": "\x1b[31mred",
    "OSC 8 link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "title": "\x1b]0;owned\x07",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;owned\x9c",
    "override": "abc\u202egpj.exe\u202c",
    "isolate": "\u2066x\u2069",
    "marks": "a\u200eb\u200fc\u061cd",
    "NUL": "a\x00b",
    "CR": "good\rbad",
    "backspace": "ab\x08\x08",
    "DEL": "a\x7fb",
    "separator": "a\u2028b",
    "tag": "a\U000e0041b",
    "surrogate": "a\udc80b",
}
MARKUP = "[bold red]x[/] :smile: [link=http://evil.example]y[/link]"
FINE = "Füchse 狐 सुन्दर עברית 👩‍👩‍👧 \tσ₀ ≤ 1"


def is_unsafe(letter):
    return letter not in "\n\t" and (
        unicodedata.category(letter) in ("Cc", "Cs") or letter in "\u2028\u2029\u061c\u200e\u200f"
        or "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069" or letter >= "\U000e0000"
    )  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_unsafe_characters_become_escapes(text):
    shown = printable(text)
    assert not any(map(is_unsafe, shown))
    assert printable(shown) == shown
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text
    assert not any(map(is_unsafe, printable_json(json.dumps(text, ensure_ascii=False))))


def test_letters_of_every_script_pass():
    assert printable(FINE) == FINE


@pytest.mark.parametrize("text", [*HOSTILE.values(), MARKUP], ids=[*HOSTILE, "markup"])
def test_every_way_to_the_terminal_is_guarded(text, monkeypatch):
    for name, stream in (("stdout", console.stdout), ("stderr", console.stderr)):
        written = io.StringIO()
        monkeypatch.setattr(sys, name, written)
        table = Table("head", text)
        table.add_row(text, "x")
        stream.print(text)
        stream.print(table)
        if name == "stdout":
            terminal.print_text(text)
            terminal.print_json({text: [text]})
        else:
            terminal.print_line(text)
            with console.progress_bar(text, 2) as bar:
                bar(1)
        shown = written.getvalue()
        assert not any(map(is_unsafe, shown)), repr(shown)
        if text == MARKUP:
            assert shown.count("[bold red]x[/] :smile:") >= 4


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("NUL", "surrogate")])
def test_errors_show_hostile_names_as_escapes(name, capsys, tmp_path):
    text = HOSTILE[name]
    assert main(["score", "--model", "hmm", "--data", f"{text}.jsonl", "--out", str(tmp_path / "r")]) == 2
    assert main(["score", "--model", text, "--out", str(tmp_path / "r")]) == 2
    assert main(["runs", "show", str(tmp_path / text)]) == 2
    assert main(["score", f"--{text}"]) == 2
    told = capsys.readouterr().err
    assert not any(map(is_unsafe, told))
    assert len(told.splitlines()) == 4


def test_hostile_ids_of_a_file_are_shown_as_escapes(capsys, tmp_path):
    ids = [text for text in HOSTILE.values() if "\udc80" not in text]
    rows = [json.dumps({"id": text, "logq": [-0.5, -1.0]}) for text in ids]
    (tmp_path / "traces.jsonl").write_text("\n".join(rows).replace('"id"', '"sample_id"'), encoding="utf-8")
    code = main(["theory", "profile", str(tmp_path / "traces.jsonl"), "--limit", "100"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "\\x1b[31mred" in told.out
    assert not any(map(is_unsafe, told.out))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_terminals_without_utf8_get_ascii(encoding):
    install()
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors=ENCODING_ERRORS)
    stream.write("σ₀ ≤ 1 … – 狐 \udc80")
    stream.flush()
    told = raw.getvalue().decode(encoding)
    if encoding == "ascii":
        assert told == "sigma0 <= 1 ... - \\u72d0 \\udc80"
    assert "\\udc80" in told


def test_a_whole_command_works_on_an_ascii_terminal(tmp_path):
    command = [sys.executable, "-m", "orderlens", "theory", "--help"]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done.stdout.decode("ascii")
