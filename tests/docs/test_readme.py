"""The README's commands and example run as printed, and the example's output is what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orderlens.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def shell_commands() -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ orderlens ")]


def test_make_targets_exist():
    targets = set(re.findall(r"`make (\w+)`|^\$ make (\w+)", README, flags=re.MULTILINE))
    names = {name for pair in targets for name in pair if name}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= names
    assert all(re.search(rf"^{name}:", makefile, flags=re.MULTILINE) for name in names)


def test_commands_run_in_the_order_printed(tmp_path, monkeypatch, capfd, quick_figures):
    """In one folder, since later ones read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    commands = shell_commands()
    assert commands
    for command in commands:
        # In full it takes minutes.
        arguments = command.split("#")[0].replace("--limit 12", "--limit 2").split()[1:]
        with quick_figures():
            assert main(arguments) == 0, f"{command}: {capfd.readouterr().err}"


def test_example_prints_what_the_readme_shows(capsys):
    code, _ = blocks("python")
    (shown,) = blocks("text")
    exec(code, {})
    printed, expected = capsys.readouterr().out.split(), shown.split()
    assert len(printed) == len(expected)
    for found, wanted in zip(printed, expected, strict=True):
        try:
            assert float(found) == pytest.approx(float(wanted), abs=2e-3)
        except ValueError:
            assert found == wanted


def test_example_with_an_own_network_gives_a_run_of_both_orders():
    _, code = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    assert list(names["run"].samples().to_pandas()["order"]) == ["forced-ar", "max-prob"]
