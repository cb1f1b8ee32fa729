"""Requests: frozen dataclasses that define command line, Python signature and reference page of a verb.

The ``Opt`` of a field holds its help, limits and command-line default. One function checks all values; texts
of the command line are parsed first. Does not depend on verbs or on a command-line library.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from orderlens.errors import OrderLensError, UserInputError

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
NEEDED: Any = MISSING
"""``Opt.given`` of an option that is required on the command line."""
INT_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Opt:
    """The properties of an option that the type of its field does not define.

    Attributes:
        help: one sentence.
        short: short form, e.g. ``-m``.
        name: name of the option, if it is not the name of the field.
        shown: the default in words, e.g. "the model's own".
        given: default on the command line, if it differs from Python's; ``NEEDED`` makes it required.
        least: smallest allowed number.
        most: largest allowed number.
        choices: allowed words, for fields that also accept objects in Python.
        metavar: placeholder of the value in ``--help``.
        read: converts the text of the command line into the value.
        panel: heading in ``--help``; options without one are listed first.
        place: a positional argument (``RUN…``) instead of an option.
        repeat: may be given several times, with one value each; commas are part of the value.
        negative: ``--no-NAME`` exists as well.
        stored: it determines the rows of a run, so the run's spec contains it under the field's name.
    """

    help: str
    short: str = ""
    name: str = ""
    shown: str = ""
    given: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    panel: str = ""
    place: bool = False
    repeat: bool = False
    negative: bool = False
    stored: bool = False


class BadValueError(UserInputError):
    """A value that is not valid for an option.

    Attributes:
        option: name of the field.
        value: the value.
        why: the rest of the sentence: what is wrong and what is allowed.
    """

    def __init__(self, option: str, value: object, why: str) -> None:
        super().__init__(f"{option}={value!r} {why}")
        self.option, self.value, self.why = option, value, why

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, so that other processes can raise it again."""
        return type(self), (self.option, self.value, self.why)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a request: the field's name, its type without ``Annotated``, and its ``Opt``."""

    name: str
    kind: Any
    opt: Opt
    default: Any

    @property
    def flag(self) -> str:
        """Its name on the command line: ``--block-size``, or ``RUN`` for an argument."""
        if self.opt.place:
            return self.opt.metavar or self.name.upper()
        return f"--{self.opt.name or self.name.replace('_', '-')}"

    @property
    def on_command_line(self) -> Any:
        """The default on the command line; ``NEEDED`` if it is required."""
        return self.default if self.opt.given is None else self.opt.given

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag without a value."""
        return self.kind is bool

    @property
    def is_several(self) -> bool:
        """Whether its value is a list."""
        return _item_type(_without_none(self.kind)) is not None

    def read(self, text: str) -> Any:
        """Convert a text of the command line into the value."""
        return self.opt.read(text) if self.opt.read else _parse(self.name, self.kind, self.opt, text)


class Request:
    """Base class of all requests; creating one checks every value."""

    def __post_init__(self) -> None:
        for option in options(type(self)):
            value = check(option.name, option.kind, option.opt, getattr(self, option.name))
            object.__setattr__(self, option.name, value)


def options(kind: type) -> tuple[Option, ...]:
    """Return the options of a request, grouped by panel; within a panel, options of the class come first."""
    if kind not in _OPTIONS:
        _OPTIONS[kind] = _options(kind)
    return _OPTIONS[kind]


_OPTIONS: dict[type, tuple[Option, ...]] = {}


def _options(kind: Any) -> tuple[Option, ...]:
    found: list[Option] = []
    for item in fields(kind):
        if isinstance(item.type, str) and "Annotated[" in item.type:
            raise TypeError(f"{kind.__name__}: a module of requests cannot postpone its annotations")
        if get_origin(item.type) is Annotated:
            base, opt = get_args(item.type)[:2]
            if isinstance(opt, Opt):  # else it is the description of a Python-only argument
                found.append(Option(item.name, base, opt, item.default))
    panels = list(dict.fromkeys(["", *(item.opt.panel for item in found)]))
    return tuple(sorted(found, key=lambda item: _rank(kind, item, panels)))


def _rank(kind: type, item: Option, panels: Sequence[str]) -> tuple[int, ...]:
    """Return the sort key of an option: panel, arguments, required options, then by class."""
    places = [place for place, base in enumerate(kind.__mro__) if item.name in _annotations(base)]
    needed = item.on_command_line is NEEDED
    return panels.index(item.opt.panel), item.name == "json", not item.opt.place, not needed, places[0]


def _annotations(kind: type) -> Mapping[str, Any]:
    return getattr(kind, "__annotations__", {})


def check(name: str, kind: Any, opt: Opt, value: Any) -> Any:
    """Check ``value`` and return it in the field's type (lists become tuples, whole numbers ``int``).

    Raises:
        BadValueError: it has another type or is out of range.
    """
    kinds = _kinds(kind)
    if value is None and type(None) in kinds:
        return None
    inner = _without_none(kind)
    if opt.choices:
        return _choice(name, value, opt.choices) if isinstance(value, str) else value
    if get_origin(inner) is Literal:
        return _choice(name, value, get_args(inner))
    if (item := _item_type(inner)) is not None:
        return tuple(check(name, item, opt, entry) for entry in _entries(name, value, opt))
    if inner is bool:
        return _of(name, value, isinstance(value, bool), "must be True or False")
    if inner is int:
        number = int(_of(name, value, _is_number(value, Integral), "must be a whole number"))
        return _within(
            name, _of(name, number, -INT_LIMIT <= number < INT_LIMIT, "must fit into 64 bits"), opt
        )
    if inner is float:
        return _within(name, float(_of(name, value, _is_number(value, Real), "must be a number")), opt)
    if inner is str:
        return _of(name, value, isinstance(value, str), "must be text")
    if inner is Path:
        return Path(_of(name, value, isinstance(value, str | PathLike), "must be a path"))
    return value


def _parse(name: str, kind: Any, opt: Opt, text: str) -> Any:
    inner = _without_none(kind)
    item = _item_type(inner)
    if item is not None and not opt.repeat:
        return tuple(_parse(name, item, opt, part) for part in entries(text))
    inner = item or inner
    if inner not in (int, float):
        return text
    try:
        return inner(text)
    except ValueError:
        raise BadValueError(
            name, text, f"must be {'a whole number' if inner is int else 'a number'}"
        ) from None


def entries(text: str) -> list[str]:
    """Return the entries of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _entries(name: str, value: Any, opt: Opt) -> Iterable[Any]:
    if isinstance(value, str):
        return [value] if opt.repeat else entries(value)
    return cast("Iterable[Any]", _of(name, value, isinstance(value, Iterable), "must be a list"))


def _choice(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    from orderlens.registry import suggest

    words = ", ".join(map(str, allowed))
    return _of(name, value, value in allowed, f"is unknown; allowed: {words}{suggest(str(value), allowed)}")


def _within(name: str, value: Any, opt: Opt) -> Any:
    if opt.least is not None:
        _of(name, value, value >= opt.least, f"must be at least {opt.least:g}")
    if opt.most is not None:
        _of(name, value, value <= opt.most, f"must be at most {opt.most:.15g}")
    return value


def _of(name: str, value: Any, fits: bool, why: str) -> Any:
    if not fits:
        raise BadValueError(name, value, why)
    return value


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _without_none(kind: Any) -> Any:
    rest = [item for item in _kinds(kind) if item is not type(None)]
    return rest[0] if len(rest) == 1 else kind


def _item_type(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) in (Sequence, tuple, list) else None


def verb(kind: Callable[P, Q], work: Callable[[Q], R]) -> Callable[P, R]:
    """Return the Python function of a verb: it builds a request from its arguments and calls ``work``.

    Its errors name arguments where those of the command line name options.
    """
    name = re.sub(r"^run_", "", work.__name__)
    signature = _signature(kind, work)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}{_meant(kwargs, signature)}") from None
        try:
            return work(kind(*args, **kwargs))
        except OrderLensError as error:
            error.args = tuple(
                _as_arguments(item, signature.parameters) if isinstance(item, str) else item
                for item in error.args
            )
            raise

    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = work.__module__, described(cast("type", kind), work)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _meant(given: Mapping[str, object], signature: inspect.Signature) -> str:
    from orderlens.registry import suggest

    unknown = next((name for name in given if name not in signature.parameters), None)
    return "" if unknown is None else suggest(unknown, signature.parameters)


def _signature(kind: Callable[..., Any], work: Callable[..., Any]) -> inspect.Signature:
    """Return the constructor's signature with plain types and the return type of ``work``."""
    full = inspect.signature(kind)
    plain = [item.replace(annotation=_plain(item.annotation)) for item in full.parameters.values()]
    return full.replace(parameters=plain, return_annotation=inspect.signature(work).return_annotation)


def _plain(annotation: Any) -> Any:
    base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return getattr(base, "__forward_arg__", base)


def described(kind: type, work: Callable[..., Any] | None = None) -> str:
    """Return the docstring of a verb: that of the request, a line per option, and the result of ``work``.

    An option that a help text mentions appears as its argument.
    """
    about = inspect.getdoc(kind) or ""
    help_of = {
        item.name: get_args(item.type)[1] for item in fields(kind) if get_origin(item.type) is Annotated
    }
    names = [name for name in inspect.signature(kind).parameters if name in help_of]
    lines = [f"    {name}: {getattr(help_of[name], 'help', help_of[name])}" for name in names]
    returns = inspect.getdoc(work) if work is not None else None
    about += "\n\nArgs:\n" + _as_arguments("\n".join(lines), names)
    return about + (f"\n\nReturns:\n    {returns}" if returns else "")


def _as_arguments(text: str, names: Container[str]) -> str:
    """Return a message with options as arguments: ``--limit-states`` is `limit_states`. Commands stay."""

    def argument(found: re.Match[str]) -> str:
        name = (found[1] or "").replace("-", "_")
        return f"`{name}`" if name in names else found[0]

    return re.sub(r"orderlens [^;,.()']*|--([a-z][a-z-]*)", argument, text)
