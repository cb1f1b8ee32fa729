"""The page on coupling: its command and its code run, and its numbers are what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from orderlens.cli.main import main
from support.pages import section

PAGE = section("policies", "Cost of several tokens per pass")
COMMANDS = [line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ orderlens ")]


def test_commands_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out


def test_the_table_is_what_the_code_prints(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = dict(re.findall(r"^(forced-ar\S*) +(-\S+ +\S+)$", done.stdout, flags=re.MULTILINE))
    rows = re.findall(r"^\| `(forced-ar\S*)` \| (\S+) \| (\S+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    for name, mean, var in rows:
        assert [float(x) for x in printed[name].split()] == [float(mean.replace("−", "-")), float(var)]
