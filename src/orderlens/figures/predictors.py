"""AUROC of Var, mean log q and length as predictors of correctness, one panel per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orderlens.figures.catalogue import Recipe
from orderlens.figures.downstream import dots, finish_rows, rows_by_task, task_panels
from orderlens.figures.numbers import interval
from orderlens.figures.style import GREY, footnote, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.predictors import Cell
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

    def row(cell: Cell) -> dict[str, Any]:
        found = {name: interval(value) for name, value in aurocs(cell).items()}
        lead = {rival: interval(auroc_lead(cell, rival)) for rival in ("mean", "n")}
        return {"auroc": found, "lead": lead}

    return rows_by_task(study, row)


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


RECIPE = Recipe("AUROC of Var, mean log q and length for correctness", data, draw, "evaluate")
