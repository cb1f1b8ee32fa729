"""The size of the house stays what was reached: rooms, layers, and how many files a command enters."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIGHEST = {"score": 57, "generate": 65, "analyze": 47, "report": 77}
"""Files entered on 18 November 2026; lower a number when it falls."""


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "design" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


def test_rooms_and_layers(house):
    assert len(house.rooms()) <= 18
    assert len(house.layers()) <= 9
    here = {path.name for path in house.SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert here - {"testing"} == set(house.rooms())


def test_no_import_is_excepted_from_the_layers():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = content["tool"]["importlinter"]["contracts"]
    assert [item.get("ignore_imports", []) for item in contracts if item["type"] == "layers"] == [[]]


def test_the_picture_shows_the_contract(house):
    assert (ROOT / "design" / "rooms.svg").read_text(encoding="utf-8") == house.draw()


def test_the_map_names_every_room(house):
    page = (ROOT / "design" / "README.md").read_text(encoding="utf-8")
    for room in house.rooms():
        assert f"`{room}`" in page, room


def test_pages_stay_short(house):
    assert len(house.manual()) <= 24
    assert house.words(house.manual()) <= 35_000
    assert house.words([ROOT / "docs" / "results" / "index.md"]) <= 600
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_way_of_a_command_stays_short(house):
    verbs = {verb: house.VERBS[verb] for verb in HIGHEST}
    entered = {verb: len(files) for verb, files in house.ways(verbs)}
    assert {verb for verb, count in entered.items() if count > HIGHEST[verb]} == set(), entered
