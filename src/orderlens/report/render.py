"""The one template environment behind every page.

HTML templates escape every value. Markdown templates do the same for what Markdown would read as markup of
its own or as HTML: angle brackets, ampersands and, in cells, bars. Knows no runs, tables or findings.
"""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens.errors import MissingPackageError
from orderlens.files import write_text

if TYPE_CHECKING:
    from jinja2 import Environment


def write_page(path: Path, template: str, **data: Any) -> Path:
    """Fill ``template`` with ``data`` and write it whole to ``path``.

    Args:
        path: the page; written beside and then replaced, so that a full disk costs nothing.
        template: name of a file in ``templates/``, ending in ``.html.j2`` or ``.md.j2``.
        data: plain values, lists and dataclasses that the template knows.
    """
    return write_text(path, fill(template, **data))


def fill(template: str, **data: Any) -> str:
    """Return the filled template as text."""
    return _environment(template.endswith(".html.j2")).get_template(template).render(**data)


@cache
def _environment(html: bool) -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError:
        raise MissingPackageError("pages need jinja2; install it with 'pip install jinja2'") from None
    environment = Environment(
        loader=PackageLoader("orderlens.report"),
        autoescape=html,  # noqa: S701  Markdown is escaped by finalize, without entities for quotes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=None if html else _plain_markdown,
    )
    environment.filters |= {"cell": _cell, "data_uri": data_uri, "md": Markdown}
    return environment


class Markdown(str):
    """Text that is Markdown already and passes unchanged."""

    __slots__ = ()


def _plain_markdown(value: Any) -> Any:
    """Escape what a reader of Markdown would take for HTML; Markdown made by us passes."""
    if isinstance(value, Markdown) or not isinstance(value, str):
        return value
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cell(value: str) -> Markdown:
    """Return text for one cell of a Markdown table."""
    return Markdown(str(_plain_markdown(value)).replace("|", "\\|").replace("\n", " "))


def data_uri(path: Path) -> str:
    """Return a picture as an address that holds it."""
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
