"""The registry's errors and plugins, and the keyed random streams."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from orderlens.errors import UnknownNameError, UserInputError
from orderlens.registry import Registry
from orderlens.rng import keyed_generator


def test_lookup_is_lazy_and_errors_suggest():
    registry: Registry[object] = Registry("thing", {"pi": "math:pi", "broken": "no.such.module:x"})
    assert registry.get("pi") == pytest.approx(3.14159265)
    with pytest.raises(
        UnknownNameError, match=r"unknown thing 'pj'; did you mean 'pi'\? \(known: pi, broken\)"
    ):
        registry.get("pj")


def test_names_can_be_added_once():
    registry: Registry[object] = Registry("thing", {"pi": "math:pi"})
    registry.add("tau", 6.28)
    assert registry.names() == ["pi", "tau"]
    with pytest.raises(UserInputError, match="already registered"):
        registry.add("pi", 3)


def test_entry_points_are_found(monkeypatch):
    point = EntryPoint("plugged", "math:e", "things")
    monkeypatch.setattr("orderlens.registry.entry_points", lambda group: [point] if group == "things" else [])
    registry: Registry[float] = Registry("thing", {}, entry_point_group="things")
    assert registry.names() == ["plugged"]
    assert registry.get("plugged") == pytest.approx(2.718281828)


def test_streams_depend_on_every_key_and_on_nothing_else():
    draw = keyed_generator(1, "a", "b", 2).random(4).tolist()
    assert draw == keyed_generator(1, "a", "b", 2).random(4).tolist()
    others = [(2, "a", "b", 2), (1, "ab", 2), (1, "a", "b", "2"), (1, "a", "b", 3), (1, "a", "b")]
    assert all(draw != keyed_generator(*keys).random(4).tolist() for keys in others)
