"""Write a figure as SVG, PNG and PDF with its data as JSON, and a table in all formats.

The same figure gives the same bytes with the same matplotlib: no dates, fixed ids. The JSON holds the drawn
numbers, so that a figure can be checked or redrawn without the run. Does not depend on any particular figure.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens.common.files import replacing, write_text
from orderlens.common.plaintext import plain
from orderlens.errors import UserInputError
from orderlens.figures.style import RC, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.table import Table

FORMATS = ("svg", "png", "pdf")

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "OrderLens"},
    "png": {"Software": "OrderLens"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "OrderLens", "Producer": "OrderLens"},
}


def save_figure(
    figure: Figure,
    data: Mapping[str, Any],
    folder: str | Path,
    name: str,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write ``name.svg``, ``name.png``, ``name.pdf`` and ``name.json`` into ``folder``.

    Args:
        figure: a matplotlib figure.
        data: the figure's data: numbers, strings, lists, arrays and mappings of them.
        folder: created when missing.
        name: file name without suffix.
        formats: the picture formats wanted, out of :data:`FORMATS`.

    Returns:
        The written paths, pictures first, the JSON last.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise UserInputError(f"unknown figure format {unknown[0]!r}; allowed: {', '.join(FORMATS)}")
    place = Path(folder)
    paths = [place / f"{name}.{kind}" for kind in formats]
    for path in paths:
        if path.suffix == ".svg":
            write_text(path, svg_text(figure))
            continue
        with look(), replacing(path) as fresh:
            figure.savefig(fresh, metadata=_METADATA[path.suffix[1:]])
    return [*paths, save_data(data, place / f"{name}.json")]


_IDS = re.compile(r'(?<=id=")[a-z][0-9a-f]{10}(?=")|(?<=#)[a-z][0-9a-f]{10}(?=[")])')


def svg_text(figure: Figure) -> str:
    """Return a figure as SVG.

    Ids are numbered: matplotlib hashes clip boxes, whose last bits the layout solver does not repeat. The
    canvas is called directly, because ``savefig`` first draws everything once without output.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    figure.set_dpi(RC["savefig.dpi"])
    with look():
        FigureCanvasSVG(figure).print_svg(out, metadata=_METADATA["svg"])  # type: ignore[no-untyped-call]
    names: dict[str, str] = {}
    return _IDS.sub(lambda found: names.setdefault(found[0], f"id{len(names)}"), out.getvalue())


def save_data(data: Mapping[str, Any], path: Path) -> Path:
    """Write ``data`` as JSON; NaN and infinities, which JSON lacks, become null."""
    text = json.dumps(plain(data), ensure_ascii=False, indent=1, allow_nan=False)
    return write_text(path, text + "\n")


def save_table(folder: Path, table: Table) -> None:
    """Write one table as text, CSV, LaTeX and JSON, with the paper's values next to ours."""
    from orderlens.analysis.rendering import as_json, render
    from orderlens.analysis.table import with_paper_values

    full = with_paper_values(table)
    for form, suffix in {"text": "txt", "csv": "csv", "latex": "tex"}.items():
        write_text(folder / f"{table.name}.{suffix}", render([full], form))
    save_data(as_json(full), folder / f"{table.name}.json")
