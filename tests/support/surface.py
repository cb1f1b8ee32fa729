"""Every verb and option of the command line as plain data: what people's scripts rely on.

``python tests/support/surface.py`` prints it as JSON; ``tests/cli/surface.json`` holds what was agreed on.
"""

from __future__ import annotations

import json
from typing import Any

from orderlens.cli.command import allowed, default_text, type_name
from orderlens.cli.main import VERBS, load_verb
from orderlens.runs.request import NEEDED, Option, options


def surface() -> dict[str, list[dict[str, Any]]]:
    """Return verb → parameters in their order: ``names``, ``type``, ``default`` (absent when required)."""
    version = {"names": ["--version"], "type": "bool", "default": False}
    return {"orderlens": [version]} | {
        name: [_parameter(item) for item in options(load_verb(name).kind)] for name in VERBS
    }


def _parameter(item: Option) -> dict[str, Any]:
    record: dict[str, Any] = {"names": names(item), "type": _type(item)}
    value = item.on_command_line
    if value is NEEDED:
        return record
    listed = isinstance(value, tuple) and not item.opt.repeat
    plain = value is None or isinstance(value, bool | int | float | str)
    default = (
        (default_text(value) or None) if listed else None if value == () else value if plain else str(value)
    )
    return record | {"default": default}


def names(item: Option) -> list[str]:
    """Return the ways to type an option."""
    if item.opt.place:
        return [item.name.upper()]
    flag = f"{item.flag}/--no-{item.flag[2:]}" if item.opt.negative else item.flag
    return [flag, *([item.opt.short] if item.opt.short else [])]


def _type(item: Option) -> str:
    if words := allowed(item):
        return " or ".join(words)
    if item.opt.repeat:
        return f"list of {type_name(item)}"
    return "str" if item.is_several else type_name(item)


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1, ensure_ascii=False))  # noqa: T201
