"""Every verb and option of the command line as plain data: what people's scripts rely on.

``python -m orderlens.cli.surface`` prints it as JSON; ``tests/cli/surface.json`` holds what was agreed on.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, DefaultPlaceholder, OptionInfo


def surface(app: typer.Typer) -> dict[str, list[dict[str, Any]]]:
    """Return verb → parameters in their order: ``names``, ``type``, ``default`` (absent when required)."""
    return {
        verb or "orderlens": [_parameter(*item) for item in _parameters(function)]
        for verb, function in _verbs(app, "")
    }


def _verbs(app: typer.Typer, prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    if app.registered_callback is not None and app.registered_callback.callback is not None:
        yield prefix.rstrip(), app.registered_callback.callback
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__.replace('_', '-')}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = "" if isinstance(group.name, DefaultPlaceholder) else f"{group.name} "
        yield from _verbs(group.typer_instance, prefix + name)


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any, Any]]:
    """Yield each parameter with its plain type and typer's description of it."""
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if hint is typer.Context:
            continue
        kind, info = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
        if isinstance(parameter.default, OptionInfo):  # flag: bool = typer.Option(False, "--flag")
            info = OptionInfo(param_decls=parameter.default.param_decls)
            yield parameter.replace(default=parameter.default.default), kind, info
        else:
            yield parameter, kind, info


def _parameter(parameter: inspect.Parameter, kind: Any, info: Any) -> dict[str, Any]:
    record = {"names": _names(parameter.name, kind, info), "type": _type(kind)}
    if parameter.default is inspect.Parameter.empty:
        return record
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    plain = default is None or isinstance(default, bool | int | float | str)
    return record | {"default": default if plain else str(default)}


def _names(name: str, kind: Any, info: Any) -> list[str]:
    if isinstance(info, ArgumentInfo):
        return [name.upper()]
    dashed = name.replace("_", "-")
    guessed = f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}"
    declared = list(info.param_decls or ()) if isinstance(info, OptionInfo) else []
    if isinstance(info, OptionInfo) and isinstance(info.default, str):  # typer.Option(first, *further)
        declared.insert(0, info.default)
    return declared or [guessed]


def _type(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(_type(item) for item in get_args(kind) if item is not type(None))
    if get_origin(kind) is list:
        return f"list of {_type(get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(str(item.value) for item in kind)
    return str(getattr(kind, "__name__", kind))


if __name__ == "__main__":
    from orderlens.cli.main import build_app

    typer.echo(json.dumps(surface(build_app()), indent=1, ensure_ascii=False))
