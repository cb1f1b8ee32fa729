"""The registry class for models, orders, tasks, tables and other named objects.

Built-in entries are ``"module:attribute"`` strings, imported on first use. Plug-ins add entries through entry
points. An unknown name raises an error that suggests the closest known name. A broken plug-in raises an error
only when its entry is used, and a plug-in cannot replace a built-in entry.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from orderlens.errors import OrderLensError, PluginError, UnknownNameError, UserInputError, one_line

T = TypeVar("T")
_log = logging.getLogger(__name__)


def suggest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ``"; did you mean 'x'?"``; empty where no name has a similarity of ``cutoff`` (0 to 1)."""
    lower = {item.lower(): item for item in known}
    close = difflib.get_close_matches(str(name).lower(), list(lower), n=1, cutoff=cutoff)
    return f"; did you mean '{lower[close[0]]}'?" if close else ""


def refuse_unknown(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse an unknown name and suggest the closest known one.

    Raises:
        UnknownNameError: always, unless ``name`` is known.
    """
    names = list(known)
    if name not in names:
        raise UnknownNameError(f"unknown {kind} '{name}'{suggest(name, names)} (known: {', '.join(names)})")


def must_be(base: type) -> Callable[[object], str | None]:
    """Return a check of plug-ins: a complete subclass of ``base`` with ``id`` and ``summary``."""

    def check(found: object) -> str | None:
        if not (isinstance(found, type) and issubclass(found, base)):
            return f"it is not a subclass of {base.__name__}"
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        missing += [name for name in ("id", "summary") if not isinstance(getattr(found, name, None), str)]
        return f"its class {found.__name__} must define {' and '.join(missing)}" if missing else None

    return check


class Registry(Generic[T]):
    """Names to lazily imported objects of one kind.

    Args:
        kind: noun for the entries in messages.
        builtin: name → ``"module:attribute"``, or the object itself.
        entry_point_group: group of the entry points of plug-ins.
        check: returns what is wrong with a plug-in's object, or None.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str | T],
        entry_point_group: str | None = None,
        check: Callable[[object], str | None] | None = None,
    ) -> None:
        self.kind = kind
        self._targets: dict[str, str | T] = dict(builtin)
        self._objects: dict[str, T] = {}
        self._group = entry_point_group
        self._check = check
        self._plugins: dict[str, list[EntryPoint]] | None = None
        self._warned: set[str] = set()

    def names(self) -> list[str]:
        """Return all known names: built-in names in declared order, then plug-ins sorted by name."""
        known = [*self._targets, *(name for name in self._objects if name not in self._targets)]
        return known + sorted(name for name in self._discovered() if name not in known)

    def only_here(self) -> list[str]:
        """Return the names that ``add`` registered: other processes do not have them."""
        return [
            name for name in self._objects if name not in self._targets and name not in self._discovered()
        ]

    def add(self, name: str, value: T) -> None:
        """Register ``value`` in this process; each name can be used once."""
        if name in self.names():
            raise UserInputError(f"{self.kind} '{name}' is already registered; choose another name")
        self._objects[name] = value

    def get(self, name: str) -> T:
        """Return the object called ``name``, importing it if needed.

        Raises:
            UnknownNameError: there is no entry with this name.
            PluginError: the plug-in with this name cannot be used.
        """
        self._warn_of_shadow(name)
        if name in self._objects:
            return self._objects[name]
        if name in self._targets:
            target = self._targets[name]
            if isinstance(target, str):
                module, _, attribute = target.partition(":")
                target = cast(T, getattr(importlib.import_module(module), attribute))
            self._objects[name] = target
        elif name in self._discovered():
            self._objects[name] = self._load(name)
        else:
            refuse_unknown(self.kind, name, self.names())
        return self._objects[name]

    def entries(self) -> Iterator[tuple[str, T | PluginError]]:
        """Yield every name with its object, or with the error of a broken plug-in; for listings."""
        self._warned.update(self._targets)  # a listing prints refused() instead
        for name in self.names():
            try:
                yield name, self.get(name)
            except PluginError as error:
                yield name, error

    def refused(self) -> list[str]:
        """Return one line for every plug-in that has the name of a built-in entry."""
        return [self._shadow(name) for name in self._discovered() if name in self._targets]

    def _shadow(self, name: str) -> str:
        packages = " and ".join(_package(point) for point in self._discovered()[name])
        return f"{self.kind} '{name}' is built in; the one of {packages} is ignored and needs another name"

    def _warn_of_shadow(self, name: str) -> None:
        if name in self._targets and name in self._discovered() and name not in self._warned:
            self._warned.add(name)
            _log.warning("%s", self._shadow(name))

    def _load(self, name: str) -> T:
        points = self._discovered()[name]
        label = f"{self.kind} '{name}' of {' and '.join(map(_package, points))}"
        if len(points) > 1:
            raise PluginError(f"{label}: several packages define this name; uninstall all but one")
        try:
            found = points[0].load()
        except (Exception, SystemExit) as error:
            if isinstance(error, OrderLensError):
                raise PluginError(f"{label}: {one_line(error)}") from error
            why = f"{type(error).__name__}: {one_line(error)}"
            raise PluginError(f"{label} cannot be loaded ({why}); fix or uninstall it") from error
        wrong = self._check(found) if self._check else None
        if wrong is not None:
            raise PluginError(f"{label} cannot be used: {wrong}")
        return cast(T, found)

    def _discovered(self) -> dict[str, list[EntryPoint]]:
        if self._plugins is None:
            self._plugins = {}
            for point in entry_points(group=self._group) if self._group else ():
                same_name = self._plugins.setdefault(point.name, [])
                if all(
                    (other.value, _package(other)) != (point.value, _package(point)) for other in same_name
                ):
                    same_name.append(point)
        return self._plugins


def _package(point: EntryPoint) -> str:
    """Return ``package NAME VERSION``, or the module when the package is unknown."""
    if point.dist is None:
        return f"module {point.module}"
    return f"package {point.dist.name} {point.dist.version}"
