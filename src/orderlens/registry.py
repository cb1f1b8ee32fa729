"""One registry for every kind of named thing (models, orders, tasks, tables).

Built-in entries are ``"module:attribute"`` strings, imported on first use; third parties add theirs through
entry points. An unknown name is answered with the nearest known ones.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from orderlens.errors import UnknownNameError, UserInputError

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


class Registry(Generic[T]):
    """Names to lazily imported objects of one kind."""

    def __init__(self, kind: str, builtin: Mapping[str, str], entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._targets: dict[str, str] = dict(builtin)
        self._objects: dict[str, T] = {}
        self._group = entry_point_group
        self._plugins: dict[str, EntryPoint] | None = None

    def names(self) -> list[str]:
        """Return all known names: built-in ones in their declared order, then plugins sorted."""
        known = [*self._targets, *(name for name in self._objects if name not in self._targets)]
        return known + sorted(name for name in self._discovered() if name not in known)

    def add(self, name: str, value: T) -> None:
        """Register ``value`` in this process; a name can be taken only once."""
        if name in self.names():
            raise UserInputError(f"{self.kind} '{name}' is already registered; choose another name")
        self._objects[name] = value

    def get(self, name: str) -> T:
        """Return the object called ``name``, importing it if needed."""
        if name in self._objects:
            return self._objects[name]
        if name in self._targets:
            module, _, attribute = self._targets[name].partition(":")
            self._objects[name] = cast(T, getattr(importlib.import_module(module), attribute))
        elif name in self._discovered():
            self._objects[name] = cast(T, self._discovered()[name].load())
        else:
            known = self.names()
            raise UnknownNameError(
                f"unknown {self.kind} '{name}'{suggest(name, known)} (known: {', '.join(known)})"
            )
        return self._objects[name]

    def _discovered(self) -> dict[str, EntryPoint]:
        if self._plugins is None:
            found = entry_points(group=self._group) if self._group else ()
            self._plugins = {point.name: point for point in found}
        return self._plugins
