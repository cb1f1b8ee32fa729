"""The figures of a study by name, open to plug-ins, and the loop that draws them into a folder.

A figure is a ``Recipe``: ``data(study)`` returns plain numbers, ``draw(data)`` depends on those alone.
Recipes are imported on first use, and matplotlib only when something is drawn. A plug-in registers its recipe
under the entry-point group ``orderlens.figures``.

A figure is written as SVG, PNG and PDF. The same figure gives the same bytes with the same matplotlib: no
dates, fixed ids. A JSON file holds the drawn numbers, so that a figure can be checked or redrawn without the
run. Does not depend on any particular figure.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens.common.files import replacing, write_text
from orderlens.common.plaintext import plain
from orderlens.errors import UndefinedFigureError, UserInputError, one_line
from orderlens.figures.style import RC, look
from orderlens.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study
    from orderlens.analysis.table import Table


FORMATS = ("svg", "png", "pdf")
PICTURES = (".svg", ".png")
"""Suffixes of pictures that a page can show."""

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


Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a figure is computed and drawn.

    Attributes:
        title: one line above the figure.
        data: returns the numbers of the figure; raises UndefinedFigureError when the runs lack it.
        draw: draws it; its argument may come from the JSON sidecar, where NaN is None.
        traces: runs of a replication that it reads: score, generate, ending, sweep or evaluate; None: all.
            census and states stand for the tables of that name.
    """

    title: str
    data: Callable[[Study], Data]
    draw: Callable[[Mapping[str, Any]], Figure]
    traces: str | None = None


_PLACES = {
    "fixed-sequence": "fixed_sequence:RECIPE",
    "lorenz": "fixed_sequence:LORENZ",
    "coherence": "fixed_sequence:COHERENCE",
    "hits": "jensen:HITS",
    "locality": "locality:RECIPE",
    "couplings": "parallel:COUPLINGS",
    "census": "census:RECIPE",
    "census-lattice": "census:LATTICE",
    "frontier": "parallel:FRONTIER",
    "reveal-order": "reveal_order:RECIPE",
    "unmask": "unmask:RECIPE",
    "temperature": "temperature:RECIPE",
    "tolerance": "temperature:TOLERANCE",
    "jensen": "jensen:RECIPE",
    "plane": "plane:RECIPE",
    "accuracy-var": "accuracy:RECIPE",
    "accuracy-by-var": "accuracy:BY_VAR",
    "predictors": "accuracy:AUROC",
    "var-effect": "accuracy:VAR_EFFECT",
}
FIGURES: Registry[Recipe] = Registry(
    "figure",
    {name: f"orderlens.figures.{place}" for name, place in _PLACES.items()},
    entry_point_group="orderlens.figures",
    check=lambda found: None if isinstance(found, Recipe) else "is not an orderlens.figures.Recipe",
)


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """One requested figure: its files (the JSON last), or the reason why it was not drawn."""

    name: str
    title: str
    paths: tuple[Path, ...] = ()
    why: str | None = None

    def best(self, first: str) -> Path:
        """Return the picture for a page in the format ``first`` (``.svg`` or ``.png``), or in the other."""
        shown = [path for path in self.paths if path.suffix in PICTURES]
        return max(shown, key=lambda path: path.suffix == first)


def figure_names(traces: Iterable[str] | None = None) -> list[str]:
    """Return the names of all figures, or of those that read the given kinds of traces."""
    wanted = None if traces is None else set(traces)
    if wanted is None:
        return FIGURES.names()
    return [name for name, item in FIGURES.entries() if isinstance(item, Recipe) and item.traces in wanted]


def draw_figures(
    study: Study,
    folder: str | Path,
    names: Iterable[str] | None = None,
    formats: Sequence[str] | None = None,
) -> list[DrawnFigure]:
    """Draw figures into ``folder``, each with its data as JSON; a figure without data gives the reason.

    With several models (or weights, block sizes, precisions) there is one figure per model, and the file name
    contains the model.

    Args:
        study: the runs.
        folder: where the files go.
        names: which figures; all by default.
        formats: picture formats; all by default.
    """
    recipes = FIGURES.entries() if names is None else ((name, FIGURES.get(name)) for name in names)
    out: list[DrawnFigure] = []
    for name, item in recipes:
        if isinstance(item, Recipe):
            out += _draw(study, Path(folder), name, item, formats)
        else:
            out.append(DrawnFigure(name, "", why=one_line(item)))
    return out


def _draw(
    study: Study, folder: Path, name: str, item: Recipe, formats: Sequence[str] | None
) -> list[DrawnFigure]:
    if item.traces is not None and not study.has_view(item.traces):
        return [DrawnFigure(name, item.title, why=f"there are no '{study.main_run(item.traces)}' traces")]
    parts = study.view(item.traces).by_setup()
    if len(parts) == 1:
        return [_draw_one(next(iter(parts.values())), folder, name, item, formats)]
    return [
        _draw_one(part, folder, f"{name}-{_slug(model)}", item, formats, model)
        for model, part in parts.items()
    ]


def _draw_one(
    study: Study,
    folder: Path,
    name: str,
    item: Recipe,
    formats: Sequence[str] | None,
    model: str | None = None,
) -> DrawnFigure:
    title = item.title if model is None else f"{item.title}: {model}"
    if lacking := _lacking(study, item.traces):
        return DrawnFigure(name, title, why=lacking)
    try:
        data = item.data(study)
    except UndefinedFigureError as error:
        return DrawnFigure(name, title, why=one_line(error))
    if remarks := study.remarks:
        data = data | {"remarks": remarks}
    figure = item.draw(data)
    if model is not None:
        data = data | {"model": model}
        figure.suptitle(model, fontsize=8)
    return DrawnFigure(name, title, tuple(save_figure(figure, data, folder, name, formats or FORMATS)))


def _lacking(study: Study, traces: str | None) -> str:
    """Return which of a figure's traces the runs lack; empty if none."""
    from orderlens.analysis.table import NO_CENSUS, NO_STATES

    if traces == "score" and not len(study.scored):
        return "nothing was scored: the run holds no fixed targets"
    if traces in ("generate", "ending", "sweep") and not len(study.generated):
        return "nothing was generated: the run holds no decoded paths"
    if traces == "census" and "census" not in study.run.tables:
        return NO_CENSUS
    if traces == "states" and "states" not in study.run.tables:
        return NO_STATES
    if traces == "evaluate" and "verdicts" not in study.run.tables:
        return "nothing was graded: the run holds no verdicts"
    return ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
