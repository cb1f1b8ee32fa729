"""What the figures of graded runs share: the cells they show, one panel per task, one row per order.

The paper shows its downstream study in tables only; these pictures are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.errors import UndefinedFigureError
from orderlens.figures.numbers import arms, centre, is_drawable
from orderlens.figures.style import GREY, new_figure, panel_letters, row_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.predictors import GradedCell
    from orderlens.analysis.study import Study


def graded_cells(study: Study) -> dict[str, list[GradedCell]]:
    """Return the cells of a study by task; refuses a study without verdicts."""
    from orderlens.analysis.predictors import pooled_cells

    found: dict[str, list[GradedCell]] = {}
    for cell in pooled_cells(study.graded, study.options.resampling):
        if len(cell.rows):
            found.setdefault(cell.task, []).append(cell)
    if not found:
        raise UndefinedFigureError("nothing was graded: the run holds no verdicts")
    return found


def rows_by_task(study: Study, row: Callable[[GradedCell], Mapping[str, Any]]) -> dict[str, Any]:
    """Return per task one entry for every cell: its order, its number of answers, and what ``row`` says."""
    tasks = [
        {"task": task, "rows": [{"order": cell.order, "n": len(cell.rows), **row(cell)} for cell in cells]}
        for task, cells in graded_cells(study).items()
    ]
    return {"tasks": tasks}


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


def dots(
    panel: Axes,
    cells: Sequence[Mapping[str, Any]],
    shift: float,
    marker: str,
    color: str,
    label: str,
    fill: bool = True,
) -> None:
    """Draw one mark per row, moved by ``shift`` rows."""
    shown = [(place + shift, cell) for place, cell in enumerate(cells) if is_drawable(cell)]
    ends = [arms(cell) for _, cell in shown]
    panel.errorbar(
        [centre(cell) for _, cell in shown],
        [place for place, _ in shown],
        xerr=[[below for below, _ in ends], [above for _, above in ends]],
        fmt=marker,
        color=color,
        markerfacecolor=color if fill else "white",
        elinewidth=0.9,
        label=label,
    )


def finish_rows(panel: Axes, orders: Sequence[str]) -> None:
    """Name the rows, the first order on top; say so where there was nothing to draw."""
    if not any(len(line.get_xdata()) for box in panel.containers for line in box.lines[:1]):  # type: ignore[attr-defined]
        place = {"transform": panel.transAxes, "ha": "center", "va": "center", "color": GREY}
        panel.text(0.5, 0.5, "undefined:\ntoo few right or wrong", **place)  # type: ignore[arg-type]
    panel.set_ylim(len(orders) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
    row_labels(panel, orders)
