"""The gallery shows every figure with a command that works, in pictures of modest size."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from orderlens.cli.main import main
from orderlens.figures import figure_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "recipes" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gallery"]


def test_every_figure_is_shown(gallery) -> None:
    shown = [item.figure for item in gallery.every()]
    assert len(shown) == len(set(shown))
    assert set(figure_names()) <= set(shown)
    assert {item.run for item in gallery.every()} - {None} == set(gallery.RUNS)


def test_the_page_is_the_recipes_and_its_pictures_are_there(gallery) -> None:
    files = {path.stem: path.name for path in gallery.PICTURES.iterdir()}
    assert set(files) == {item.figure for item in gallery.every()}
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page(files)
    assert all(path.stat().st_size <= gallery.LARGEST for path in gallery.PICTURES.iterdir())


def test_the_commands_know_their_options(gallery) -> None:
    surface = json.loads((ROOT / "tests" / "cli" / "surface.json").read_text(encoding="utf-8"))
    for command in [*gallery.RUNS.values(), *(item.command for item in gallery.every())]:
        _, *words = shlex.split(command)
        verb = " ".join(words[:2]) if " ".join(words[:2]) in surface else words[0]
        known = {name for item in surface[verb] for name in item["names"]}
        assert {word for word in words if word.startswith("--")} <= known, command


def test_the_runs_on_the_exact_control_draw_their_figures(gallery, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = (
        gallery.RUNS["sets"].replace("--limit 12", "--limit 3").replace("--couplings 4", "--couplings 1")
    )
    assert main(shlex.split(command)[1:]) == 0
    for item in gallery.every():
        if item.run == "sets":
            assert main(shlex.split(item.command)[1:]) == 0
            drawn = tmp_path / "figures" / f"{item.figure}.svg"
            by_command = drawn.read_bytes()
            drawn.unlink()
            exec(item.python, {})
            assert drawn.read_bytes() == by_command
    exec(re.findall(r"```python\n(.*?)```", gallery.OPENING, flags=re.DOTALL)[0], {})
    assert (tmp_path / "mine.pdf").stat().st_size
