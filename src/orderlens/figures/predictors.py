"""AUROC of Var, mean log q and length as predictors of correctness, one panel per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.figures.catalogue import Recipe
from orderlens.figures.downstream import graded_cells, task_panels
from orderlens.figures.marks import GREY, footnote, row_labels
from orderlens.figures.numbers import arms, centre, interval, is_drawable
from orderlens.figures.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

MARKS = {
    "var": ("Var (lower = correct)", "o", "#44337a"),
    "mean": ("mean log q (higher = correct)", "s", "#1f8a99"),
    "n": ("length (shorter = correct)", "D", "#8a8a8a"),
}
"""How each predictor is drawn: name, marker, colour (none of them an order's)."""


def data(study: Study) -> dict[str, Any]:
    """Return per task and order the AUROC of each predictor and Var's lead over its rivals."""
    from orderlens.analysis.predictors import auroc_lead, aurocs

    tasks = []
    for task, cells in graded_cells(study).items():
        rows = []
        for cell in cells:
            found = {name: interval(value) for name, value in aurocs(cell).items()}
            lead = {rival: interval(auroc_lead(cell, rival)) for rival in ("mean", "n")}
            rows.append({"order": cell.order, "n": len(cell.rows), "auroc": found, "lead": lead})
        tasks.append({"task": task, "rows": rows})
    return {"tasks": tasks}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw three marks per order; one half is a coin."""
    with look():
        count = max(len(task["rows"]) for task in data["tasks"])
        figure, panels = task_panels(data["tasks"], 0.7 + 0.34 * count)
        for panel, task in zip(panels, data["tasks"], strict=True):
            panel.axvline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
            for place, (name, (label, marker, color)) in enumerate(MARKS.items()):
                cells = [row["auroc"][name] for row in task["rows"]]
                dots(panel, cells, 0.22 * (place - 1), marker, color, label)
            finish_rows(panel, [row["order"] for row in task["rows"]])
            panel.set_xlabel("AUROC")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        note = "Correct against incorrect answers under one order, seeds pooled. Bars: 95 % intervals."
        footnote(figure, note)
    return figure


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


RECIPE = Recipe("AUROC of Var, mean log q and length for correctness", data, draw, "evaluate")
