"""A request: a frozen dataclass that is a verb's command line, Python signature and reference page at once.

What the type of a field does not say (help, limits, default of the command line) is in its ``Opt``. Values
are checked by one function, wherever they come from; only the command line's text is parsed first. Depends on
no verb and on no command-line library.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from orderlens.errors import UserInputError

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
NEEDED: Any = MISSING
"""``Opt.given`` of an option that the command line must have."""
WHOLE = 2**63


@dataclass(frozen=True, slots=True)
class Opt:
    """What the type of a field does not say about an option.

    Attributes:
        help: one sentence.
        short: a letter, ``-m``.
        name: of the option, where it is not the field's.
        shown: the default in words: "the model's own".
        given: default of the command line where it differs from Python's; ``NEEDED`` has none.
        least: smallest number that is allowed.
        most: largest number that is allowed.
        choices: words that are allowed besides objects that only Python can give.
        metavar: placeholder of the value in ``--help``.
        read: turns the command line's text into the value.
        panel: heading in ``--help``; the options without one come first.
        place: an argument (``RUN…``) instead of an option.
        repeat: may be given several times, each time with one value; commas belong to it.
        negative: ``--no-NAME`` is offered as well.
        stored: it determines the rows of a run, so the run's spec holds it under the field's name.
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
    """A value that an option cannot have.

    Attributes:
        option: name of the field.
        value: as it was given.
        why: what is wrong and what is allowed, as the rest of the sentence.
    """

    def __init__(self, option: str, value: object, why: str) -> None:
        super().__init__(f"{option}={value!r} {why}")
        self.option, self.value, self.why = option, value, why

    def __reduce__(self) -> tuple[Any, ...]:
        """Allow other processes to raise it again."""
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
        """The option as it is typed: ``--block-size``, or ``RUN`` for an argument."""
        if self.opt.place:
            return self.opt.metavar or self.name.upper()
        return f"--{self.opt.name or self.name.replace('_', '-')}"

    @property
    def on_command_line(self) -> Any:
        """The default of the command line; ``NEEDED`` where it has none."""
        return self.default if self.opt.given is None else self.opt.given

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def is_several(self) -> bool:
        """Whether it holds several values."""
        return _item_type(_without_none(self.kind)) is not None

    def read(self, text: str) -> Any:
        """Return the value that the command line's text means."""
        return self.opt.read(text) if self.opt.read else _parse(self.name, self.kind, self.opt, text)


class Request:
    """Base of all requests: every value is checked when one is made."""

    def __post_init__(self) -> None:
        for option in options(type(self)):
            value = check(option.name, option.kind, option.opt, getattr(self, option.name))
            object.__setattr__(self, option.name, value)


def options(kind: type) -> tuple[Option, ...]:
    """Return the options of a request, those of the class itself first, grouped by their panel."""
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
            if isinstance(opt, Opt):  # else it is the description of something that only Python can give
                found.append(Option(item.name, base, opt, item.default))
    panels = list(dict.fromkeys(["", *(item.opt.panel for item in found)]))
    return tuple(sorted(found, key=lambda item: _rank(kind, item, panels)))


def _rank(kind: type, item: Option, panels: Sequence[str]) -> tuple[int, ...]:
    """Return what options are sorted by: panel, arguments, what is needed, own ones, those of groups."""
    places = [place for place, base in enumerate(kind.__mro__) if item.name in _annotations(base)]
    needed = item.on_command_line is NEEDED
    return panels.index(item.opt.panel), item.name == "json", not item.opt.place, not needed, places[0]


def _annotations(kind: type) -> Mapping[str, Any]:
    return getattr(kind, "__annotations__", {})


def check(name: str, kind: Any, opt: Opt, value: Any) -> Any:
    """Return ``value`` as the field keeps it (lists become tuples, whole numbers ``int``).

    Raises:
        BadValueError: it is of another type or out of range.
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
        return tuple(check(name, item, opt, each) for each in _entries(name, value, opt))
    if inner is bool:
        return _of(name, value, isinstance(value, bool), "must be True or False")
    if inner is int:
        number = int(_of(name, value, _is_number(value, Integral), "must be a whole number"))
        return _within(name, _of(name, number, -WHOLE <= number < WHOLE, "must fit into 64 bits"), opt)
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
    """Return the Python function of a verb: it takes what the request's class takes, and does ``work``."""
    name = re.sub(r"^run_", "", work.__name__)
    signature = _signature(kind, work)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}{_meant(kwargs, signature)}") from None
        return work(kind(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = work.__module__, described(cast("type", kind), work)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _meant(given: Mapping[str, object], signature: inspect.Signature) -> str:
    from orderlens.registry import suggest

    unknown = next((name for name in given if name not in signature.parameters), None)
    return "" if unknown is None else suggest(unknown, signature.parameters)


def _signature(kind: Callable[..., Any], work: Callable[..., Any]) -> inspect.Signature:
    """Return the constructor's signature with plain types and the result of ``work``."""
    whole = inspect.signature(kind)
    plain = [item.replace(annotation=_plain(item.annotation)) for item in whole.parameters.values()]
    return whole.replace(parameters=plain, return_annotation=inspect.signature(work).return_annotation)


def _plain(annotation: Any) -> Any:
    base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return getattr(base, "__forward_arg__", base)


def described(kind: type, work: Callable[..., Any] | None = None) -> str:
    """Return the docstring of a verb: the request's, with a line per option, and what ``work`` returns."""
    said = inspect.getdoc(kind) or ""
    told = {item.name: get_args(item.type)[1] for item in fields(kind) if get_origin(item.type) is Annotated}
    names = [name for name in inspect.signature(kind).parameters if name in told]
    lines = [f"    {name}: {getattr(told[name], 'help', told[name])}" for name in names]
    returns = inspect.getdoc(work) if work is not None else None
    end = f"\n\nReturns:\n    {returns}" if returns else ""
    return f"{said}\n\nArgs:\n" + "\n".join(lines) + end
