"""What Var adds: its effect on the odds of a correct answer, alone and with mean log q and length held."""

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
    "alone": ("Var alone", (), "o", False),
    "given_length": ("length held", ("n",), "D", False),
    "given_mean": ("mean log q held", ("mean",), "s", False),
    "given_both": ("both held", ("mean", "n"), "o", True),
}
"""Name, predictors held fixed, marker, and whether the mark is filled."""


def data(study: Study) -> dict[str, Any]:
    """Return per task and order the log-odds per standard deviation of Var under each set of controls."""
    from orderlens.analysis.predictors import var_effect

    def row(cell: Cell) -> dict[str, Any]:
        return {"effect": {name: interval(var_effect(cell, mark[1])) for name, mark in MARKS.items()}}

    return rows_by_task(study, row)


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw four marks per order; left of 0 lower Var goes with correct answers."""
    with look():
        count = max(len(task["rows"]) for task in data["tasks"])
        figure, panels = task_panels(data["tasks"], 0.7 + 0.42 * count)
        for panel, task in zip(panels, data["tasks"], strict=True):
            panel.axvline(0.0, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
            for place, (name, (label, _, marker, fill)) in enumerate(MARKS.items()):
                cells = [row["effect"][name] for row in task["rows"]]
                color = "#44337a" if marker == "o" else "#1f8a99" if marker == "s" else "#8a8a8a"
                dots(panel, cells, 0.2 * (place - 1.5), marker, color, label, fill)
            finish_rows(panel, [row["order"] for row in task["rows"]])
            panel.set_xlabel("log-odds per sd of Var")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
        footnote(
            figure,
            "Logistic regression on normal scores, errors clustered by item; bars: 95 % intervals. "
            "Left of 0: lower Var goes with correct answers.",
        )
    return figure


RECIPE = Recipe("Effect of Var with and without mean log q and length", data, draw, "evaluate")
