"""The page on the frontier: its command and its code run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from orderlens.claims.parallel import parallel_findings
from orderlens.cli.main import main
from support.pages import section

PAGE = section("replicate", "The frontier: quality against compute")


def test_the_command_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in PAGE.splitlines() if line.startswith("$ orderlens ")]
    assert main(shlex.split(command)[2:]) == 0, capsys.readouterr().err
    assert "Ladder: max-prob, " in capsys.readouterr().out


def test_the_code_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "frontier.md", "exec"), {})
    assert "committing several tokens per pass lowers the likelihood" in capsys.readouterr().out


def test_the_page_names_the_findings() -> None:
    source = Path(parallel_findings.__code__.co_filename).read_text(encoding="utf-8")
    named = set(re.findall(r"^\s+\"([a-z]+(?:-[a-z]+)+)\",$", source, flags=re.MULTILINE))
    assert named
    assert all(f"`{name}`" in PAGE for name in named)
