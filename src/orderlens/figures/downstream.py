"""The figures of a graded run and the loop that draws them.

The paper shows its downstream study in tables only; these pictures are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderlens.errors import UndefinedFigureError, one_line
from orderlens.figures.catalogue import Drawn, Recipe
from orderlens.figures.style import new_figure, panel_letters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study
    from orderlens.evaluation.predictors import Cell

DOWNSTREAM: dict[str, Recipe] = {
    "accuracy-var": Recipe("accuracy_var", "Accuracy against content Var per order", "evaluate"),
    "accuracy-by-var": Recipe("accuracy_bins", "Accuracy in bins of Var inside each order", "evaluate"),
    "predictors": Recipe("predictors", "AUROC of Var, mean log q and length for correctness", "evaluate"),
    "var-effect": Recipe("var_effect", "Effect of Var with and without mean log q and length", "evaluate"),
}


def draw_downstream(study: Study, folder: str | Path, formats: Sequence[str] | None = None) -> list[Drawn]:
    """Draw all figures of a graded run into ``folder``, each with its data beside it."""
    from orderlens.figures.save import FORMATS, save_figure

    out = []
    for name, item in DOWNSTREAM.items():
        module = item.load()
        try:
            data = module.data(study)
        except UndefinedFigureError as error:
            out.append(Drawn(name, item.title, why=one_line(error)))
            continue
        paths = save_figure(module.draw(data), data, folder, name, formats or FORMATS)
        out.append(Drawn(name, item.title, tuple(paths)))
    return out


def graded_cells(study: Study) -> dict[str, list[Cell]]:
    """Return the cells of a study by task; refuses a study without verdicts."""
    from orderlens.evaluation.predictors import pooled_cells

    found: dict[str, list[Cell]] = {}
    for cell in pooled_cells(study.graded, study.options.resampling):
        if len(cell.rows):
            found.setdefault(cell.task, []).append(cell)
    if not found:
        raise UndefinedFigureError("nothing was graded: the run holds no verdicts")
    return found


def task_panels(tasks: Sequence[Mapping[str, Any]], height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with one titled panel per task, three to a row; ``height`` is that of a row."""
    columns = min(3, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure, panels = new_figure(rows, columns, height=0.5 + height * rows)
    for panel in panels[len(tasks) :]:
        panel.set_axis_off()
    for panel, task in zip(panels, tasks, strict=False):
        panel.set_title(f"{task['task']}", loc="left")
    panel_letters(panels[: len(tasks)])
    return figure, panels[: len(tasks)]
