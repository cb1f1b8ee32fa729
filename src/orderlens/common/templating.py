"""The template environment of all pages and notebook views.

HTML and SVG templates escape every value. Markdown templates escape angle brackets, ampersands and, in table
cells, bars. Does not depend on runs, tables or findings.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orderlens.common.files import write_text
from orderlens.common.plaintext import one_line, printable, shown, size_of
from orderlens.errors import MissingPackageError

if TYPE_CHECKING:
    from jinja2 import Environment


def write_page(path: Path, template: str, **data: Any) -> Path:
    """Fill ``template`` with ``data`` and write it to ``path``.

    Args:
        path: the page; replaced atomically.
        template: name of a file in ``templates/``, ending in ``.html.j2``, ``.svg.j2`` or ``.md.j2``.
        data: plain values, lists and dataclasses that the template uses.
    """
    return write_text(path, fill(template, **data))


def fill(template: str, **data: Any) -> str:
    """Return the filled template as text."""
    return _environment(template.endswith((".html.j2", ".svg.j2"))).get_template(template).render(**data)


def first_rows_html(columns: Mapping[str, Sequence[object]], n_rows: int) -> str:
    """Return the first rows of a table as an HTML table, with all its columns."""
    return fill("rows.html.j2", **_cells(columns), size=size_of(columns, n_rows))


def facts_html(facts: Mapping[str, str], columns: Mapping[str, Sequence[object]]) -> str:
    """Return named facts, one per line, followed by a few rows as an HTML table."""
    lines = [(one_line(name), one_line(value)) for name, value in facts.items()]
    filled = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    return fill("run.html.j2", facts=lines, **_cells(filled))


def _cells(columns: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    return {
        "heads": [one_line(name) for name in columns],
        "rows": [[shown(value) for value in row] for row in zip(*columns.values(), strict=True)],
    }


@cache
def _environment(html: bool) -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError:
        raise MissingPackageError("pages need jinja2; install it with 'pip install jinja2'") from None
    environment = Environment(
        loader=PackageLoader("orderlens", "show/templates"),
        autoescape=html,  # noqa: S701  Markdown is escaped by finalize, without entities for quotes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_safe if html else _plain_markdown,
    )
    environment.filters |= {"cell": _cell, "data_uri": data_uri, "md": Markdown, "verbatim": _verbatim}
    return environment


class Markdown(str):
    """Markdown text, which is not escaped again."""

    __slots__ = ()


def _safe(value: Any) -> Any:
    """Escape control characters, which autoescaping leaves in the text."""
    if type(value) is not str:
        return value
    return printable(value) if len(value) < _SHORT else value


_SHORT = 100_000
"""Longer values are packed data, not text."""


def _verbatim(text: str) -> Any:
    """Return a built script or style unchanged; it must not contain the end of an element."""
    from markupsafe import Markup

    if "</" in text:
        raise ValueError("a built asset contains '</', which may end its element")
    return Markup(text)  # noqa: S704  our own file


def _plain_markdown(value: Any) -> Any:
    """Escape HTML in text; ``Markdown`` stays unchanged."""
    if isinstance(value, Markdown) or not isinstance(value, str):
        return value
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(value: str) -> Markdown:
    """Return text for one cell of a Markdown table."""
    return Markdown(str(_plain_markdown(value)).replace("|", "\\|").replace("\n", " "))


_PLACES = re.compile(r' (?:d|x|y)="[^"]*"')
_DECIMALS = re.compile(r"(\d\.\d\d)\d+")


def data_uri(picture: Path | str) -> str:
    """Return a picture (a file, or SVG as text) as a data URI.

    Coordinates of SVG are cut to two decimals of a point.
    """
    if isinstance(picture, Path) and picture.suffix != ".svg":
        return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
    text = picture if isinstance(picture, str) else picture.read_text(encoding="utf-8")
    slim = _PLACES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), text)
    slim = " ".join(slim[slim.index("<svg") :].split())
    return "data:image/svg+xml," + quote(slim, safe=" /:;=,.()*!'-_~@$+?")
