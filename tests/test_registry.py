"""The registry's errors and plugins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint

import pytest

from orderlens.errors import PluginError, UnknownNameError, UserInputError
from orderlens.registry import Registry, must_be, suggest


def test_lookup_is_lazy_and_errors_suggest():
    registry: Registry[object] = Registry("thing", {"pi": "math:pi", "broken": "no.such.module:x"})
    assert registry.get("pi") == pytest.approx(3.14159265)
    with pytest.raises(
        UnknownNameError, match=r"unknown thing 'pj'; did you mean 'pi'\? \(known: pi, broken\)"
    ):
        registry.get("pj")


def test_suggestions_ignore_case():
    assert suggest("MAX-PROB", ["forced-ar", "max-prob", "Dream"]) == "; did you mean 'max-prob'?"
    assert suggest("dream", ["forced-ar", "Dream"]) == "; did you mean 'Dream'?"


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


class _Package:
    name, version = "plugged", "0.1"


def _registry(monkeypatch, points, check=None):
    found = [EntryPoint(name, value, "things") for name, value in points]
    for point in found:
        vars(point)["dist"] = _Package()
    monkeypatch.setattr("orderlens.registry.entry_points", lambda group: found)
    return Registry("thing", {"pi": "math:pi"}, entry_point_group="things", check=check)


def test_a_broken_plugin_is_named_and_the_rest_works(monkeypatch):
    points = [("gone", "no.such.module:x"), ("lost", "math:nothing"), ("fine", "math:e")]
    registry = _registry(monkeypatch, points)
    with pytest.raises(
        PluginError, match=r"thing 'gone' of package plugged 0\.1 cannot be loaded \(ModuleNotFoundError"
    ):
        registry.get("gone")
    listed = dict(registry.entries())
    assert list(listed) == ["pi", "fine", "gone", "lost"]
    assert listed["fine"] == pytest.approx(2.718281828)
    assert isinstance(listed["lost"], PluginError)


def test_a_plugin_cannot_take_a_built_in_name(monkeypatch, caplog):
    registry = _registry(monkeypatch, [("pi", "math:e")])
    assert registry.get("pi") == pytest.approx(3.14159265)
    assert registry.get("pi") == pytest.approx(3.14159265)
    line = "thing 'pi' is built in; the one of package plugged 0.1 is ignored and needs another name"
    assert caplog.messages == [line]
    assert registry.refused() == [line]
    assert registry.names() == ["pi"]


def test_two_plugins_with_one_name_and_a_wrong_kind_are_refused(monkeypatch):
    registry = _registry(monkeypatch, [("x", "math:e"), ("x", "math:tau"), ("y", "math:e"), ("y", "math:e")])
    with pytest.raises(PluginError, match="several packages define this name"):
        registry.get("x")
    assert registry.get("y") == pytest.approx(2.718281828)  # the same entry, found twice on the path
    picky = _registry(monkeypatch, [("x", "math:e")], check=lambda value: "it is no thing")
    with pytest.raises(PluginError, match=r"of package plugged 0\.1 cannot be used: it is no thing"):
        picky.get("x")


def test_a_class_that_lacks_something_is_refused_by_name():
    class Base(ABC):
        @abstractmethod
        def path(self): ...

    class Half(Base):
        id = "half"

    class Whole(Half):
        summary = "all of it"

        def path(self):
            return 1

    check = must_be(Base)
    assert check(Whole) is None
    assert check(Half) == "its class Half must define path and summary"
    assert check(Whole()) == check(int) == "it is not a subclass of Base"
