"""The figures of a study by name, open to plug-ins, and the loop that draws them into a folder.

A figure is a ``Recipe``: ``data(study)`` returns plain numbers, ``draw(data)`` depends on those alone.
Recipes are imported on first use, and matplotlib only when something is drawn. A plug-in registers its recipe
under the entry-point group ``orderlens.figures``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens.errors import UndefinedFigureError, one_line
from orderlens.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

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
    "lorenz": "lorenz:RECIPE",
    "coherence": "coherence:RECIPE",
    "hits": "hits:RECIPE",
    "locality": "locality:RECIPE",
    "couplings": "couplings:RECIPE",
    "census": "census:RECIPE",
    "census-lattice": "census:LATTICE",
    "frontier": "frontier:RECIPE",
    "reveal-order": "reveal_order:RECIPE",
    "unmask": "unmask:RECIPE",
    "temperature": "temperature:RECIPE",
    "tolerance": "temperature:TOLERANCE",
    "jensen": "jensen:RECIPE",
    "plane": "plane:RECIPE",
    "accuracy-var": "accuracy:RECIPE",
    "accuracy-by-var": "accuracy:BY_VAR",
    "predictors": "predictors:RECIPE",
    "var-effect": "predictors:VAR_EFFECT",
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
    from orderlens.figures.save import FORMATS, save_figure

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
    if traces == "score" and not len(study.scored):
        return "nothing was scored: the run holds no fixed targets"
    if traces in ("generate", "ending", "sweep") and not len(study.generated):
        return "nothing was generated: the run holds no decoded paths"
    if traces == "census" and "census" not in study.run.tables:
        return "no census: 'orderlens census' evaluates all states of a span"
    if traces == "states" and "states" not in study.run.tables:
        return "no states were kept: score, generate or evaluate with --states"
    if traces == "evaluate" and "verdicts" not in study.run.tables:
        return "nothing was graded: the run holds no verdicts"
    return ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
