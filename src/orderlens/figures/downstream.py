"""What the figures of graded runs share: the cells they show, and one panel per task.

The paper shows its downstream study in tables only; these pictures are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.errors import UndefinedFigureError
from orderlens.figures.style import new_figure, panel_letters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.predictors import Cell
    from orderlens.analysis.study import Study


def graded_cells(study: Study) -> dict[str, list[Cell]]:
    """Return the cells of a study by task; refuses a study without verdicts."""
    from orderlens.analysis.predictors import pooled_cells

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
