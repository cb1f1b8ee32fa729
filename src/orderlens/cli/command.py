"""Parses command lines into requests and builds ``--help`` from the classes of requests.

The only module that imports click, which splits the words and lays out the help. ``orderlens.runs.request``
reads and checks the values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from itertools import pairwise
from typing import Annotated, Any, Generic, TypeVar

import click
from click.core import ParameterSource

from orderlens.errors import UserInputError
from orderlens.runs.request import NEEDED, BadValueError, Opt, Option, Request, options

Q = TypeVar("Q", bound=Request)
WIDTH = 100
"""Maximum width of ``--help`` in columns."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[Q]):
    """A command: the class of its request, and the function that executes a request.

    Attributes:
        kind: the request's class.
        work: executes a request and returns the exit code; None means 0.
        about: the class whose docstring is the help.
        loose: unknown options go into the request's field ``rest`` instead of being refused.
    """

    kind: type[Q]
    work: Callable[[Q], int | None]
    about: type
    loose: bool = False

    @property
    def help(self) -> str:
        """The text at the top of ``--help``."""
        return cleandoc(self.about.__doc__ or "")

    @property
    def summary(self) -> str:
        """First paragraph of the help."""
        return " ".join(self.help.partition("\n\n")[0].split())


def takes(
    kind: type[Q], about: type | None = None, *, loose: bool = False
) -> Callable[[Callable[[Q], int | None]], Verb[Q]]:
    """Decorate the function that executes requests of class ``kind``; returns its ``Verb``."""
    return lambda work: Verb(kind, work, about or kind, loose)


def run(name: str, verb: Verb[Any], words: Sequence[str]) -> int:
    """Parse the words and execute the request; return the exit code.

    Raises:
        UserInputError: an option is unknown, missing or has a value that it cannot have.
    """
    try:
        request = request_of(verb, words, name)
    except click.exceptions.Exit as stop:  # --help
        return stop.exit_code
    try:
        return verb.work(request) or 0
    except BadValueError as error:
        raise _named_by_flag(error, verb) from error


def _named_by_flag(error: BadValueError, verb: Verb[Any]) -> UserInputError:
    """Return the error with the option named as on the command line."""
    flags = {item.name: item.flag for item in options(verb.kind)}
    return UserInputError(f"{flags.get(error.option, error.option)} {shown_value(error.value)} {error.why}")


def request_of(verb: Verb[Q], words: Sequence[str], name: str = "") -> Q:
    """Return the request that the words describe.

    Raises:
        UserInputError: as ``run``.
    """
    try:
        with _Command(name, verb).make_context(f"orderlens {name}", list(words)) as context:
            return _request(verb, context)
    except click.ClickException as error:
        raise UserInputError(_complaint(error, verb)) from None


def _request(verb: Verb[Q], context: click.Context) -> Q:
    known = {item.name: item for item in options(verb.kind)}
    given: dict[str, Any] = {"rest": tuple(context.args)} if verb.loose else {}
    try:
        for name, item in known.items():
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                given[name] = _read(item, context.params[name])
            elif item.on_command_line is NEEDED:
                first, rest = item.opt.help[0], item.opt.help[1:]
                raise UserInputError(
                    f"{item.flag} is missing: {first if rest[0].isupper() else first.lower()}{rest}"
                )
            elif item.opt.given is not None:
                given[name] = item.opt.given
        return verb.kind(**given)
    except BadValueError as error:
        raise _named_by_flag(error, verb) from None


def shown_value(value: object) -> str:
    """Return a value as messages show it."""
    return f"'{value}'" if isinstance(value, str) else str(value)


def _read(item: Option, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    try:
        if isinstance(value, tuple):
            return tuple(item.read(text) for text in value)
        return item.read(value)
    except BadValueError as error:
        raise BadValueError(item.name, error.value, error.why) from None


def _complaint(error: click.ClickException, verb: Verb[Any]) -> str:
    """Return the parser's complaint in our wording."""
    from orderlens.registry import suggest

    if isinstance(error, click.NoSuchOption):
        flags = [item.flag for item in options(verb.kind) if not item.opt.place]
        name = error.option_name
        begun = [flag for flag in flags if flag.startswith(name) or name.startswith(flag)]
        near = suggest(name, begun, 0.0) or suggest(name, flags, 0.84)  # "--" alone makes options similar
        return f"unknown option {name}{near or ';'} --help lists all"
    if isinstance(error, click.BadOptionUsage) and "not take a value" in error.message:
        return f"{error.option_name} takes no value; write it alone"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value; --help says which"
    text = " ".join(error.format_message().split())
    if text.startswith("Got unexpected extra argument"):
        extra = text[text.index("(") + 1 : -1] if "(" in text else text
        extra = extra.rpartition("(")[2]
        return (
            f"unexpected argument '{extra}'; separate list items with commas, without spaces, "
            "and quote what holds spaces"
        )
    return text


class _Command(click.Command):
    """A click command whose help has one section per panel."""

    def __init__(self, name: str, verb: Verb[Any]) -> None:
        self.verb = verb
        super().__init__(
            name,
            help=verb.help,
            params=[_parameter(item) for item in options(verb.kind)],
            context_settings={"max_content_width": WIDTH}
            | ({"ignore_unknown_options": True, "allow_extra_args": True} if verb.loose else {}),
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; an option that is followed by another option has no value."""
        takes = {item.flag: item.is_flag for item in options(self.verb.kind) if not item.opt.place}
        for word, following in pairwise(args):
            if not takes.get(word, True) and following in takes:
                raise click.BadOptionUsage(word, "no value")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, panel by panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for item in options(self.verb.kind):
            heading = "Arguments" if item.opt.place else item.opt.panel or "Options"
            panels.setdefault(heading, []).append((label(item), f"{item.opt.help}{default_of(item)}"))
        panels["Options"].append(("--help", "Show this message and exit."))
        for heading, rows in panels.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def label(item: Option) -> str:
    """Return an option as ``--help`` lists it: short form, name, negation and placeholder of the value."""
    if item.opt.place:
        return item.flag
    names = f"{item.opt.short}, {item.flag}" if item.opt.short else item.flag
    if item.is_flag:
        return f"{names} / --no-{item.flag[2:]}" if item.opt.negative else names
    return f"{names} {item.opt.metavar or _metavar(item)}"


def _metavar(item: Option) -> str:
    if words := allowed(item):
        return f"[{'|'.join(words)}]"
    if item.is_several and not item.opt.repeat:
        return "LIST"
    return {"int": "INTEGER", "float": "NUMBER", "Path": "PATH"}.get(type_name(item), "TEXT")


def allowed(item: Option) -> tuple[str, ...]:
    """Return the values of an option that accepts a fixed list of words; else nothing."""
    from typing import Literal, get_args, get_origin

    kinds = [item.kind, *get_args(item.kind)]
    literal = next((kind for kind in kinds if get_origin(kind) is Literal), None)
    return item.opt.choices or get_args(literal) if literal is not None or item.opt.choices else ()


def type_name(item: Option) -> str:
    """Return the type of one value: int, float, bool, Path or str."""
    from pathlib import Path
    from typing import get_args

    kinds = {item.kind, *get_args(item.kind)}
    return next((kind.__name__ for kind in (bool, int, float, Path) if kind in kinds), "str")


def default_of(item: Option) -> str:
    """Return the default as ``--help`` shows it."""
    value = item.on_command_line
    if value is NEEDED:
        return "  [required]"
    if item.is_flag:
        return f"  [default: {'yes' if value else 'no'}]" if item.opt.negative else ""
    text = item.opt.shown or default_text(value)
    return f"  [default: {text}]" if text else ""


def default_text(value: Any) -> str:
    """Return a default as it is typed on the command line."""
    if value is None or value == ():
        return ""
    if isinstance(value, tuple | list):
        return ",".join(map(default_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parameter(item: Option) -> click.Parameter:
    if item.opt.place:
        several: dict[str, Any] = {"nargs": -1} if item.is_several else {}
        return click.Argument([item.name], required=False, metavar=item.flag, **several)
    names = [item.name, *([item.opt.short] if item.opt.short else [])]
    if item.is_flag:
        flag = f"{item.flag}/--no-{item.flag[2:]}" if item.opt.negative else item.flag
        return click.Option([*names, flag], is_flag=True)
    repeated: dict[str, Any] = {"multiple": True} if item.opt.repeat else {}
    return click.Option([*names, item.flag], **repeated)


def overview(
    title: str, about: str, rows: Mapping[str, str], options_shown: Iterable[tuple[str, str]], end: str = ""
) -> str:
    """Return the help of a group of commands."""
    formatter = click.HelpFormatter(max_width=WIDTH)
    formatter.write_usage(title, "[OPTIONS] COMMAND [ARGS]...")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(about)
    with formatter.section("Options"):
        formatter.write_dl([*options_shown, ("--help", "Show this message and exit.")])
    with formatter.section("Commands"):
        formatter.write_dl(list(rows.items()))
    if end:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(end)
    return formatter.getvalue().rstrip("\n")


@dataclass(frozen=True, kw_only=True)
class Output(Request):
    """The option that every command has."""

    json: Annotated[bool, Opt("Print machine-readable JSON instead of text.")] = field(default=False)
