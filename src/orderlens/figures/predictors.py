"""Var, mean log q and length as predictors of correctness, and what Var adds to the other two.

One panel per task, one row per order, a few marks in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from orderlens.figures.accuracy import dots, finish_rows, rows_by_task, task_panels
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import GREY, footnote, interval, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from orderlens.analysis.predictors import GradedCell
    from orderlens.analysis.study import Study


class Mark(NamedTuple):
    """How a number is drawn: name, marker, colour and filling; no order uses these colours and markers."""

    label: str
    marker: str
    color: str
    fill: bool = True


PREDICTORS = {
    "var": Mark("Var (lower = correct)", "o", "#44337a"),
    "mean": Mark("mean log q (higher = correct)", "s", "#1f8a99"),
    "n": Mark("length (shorter = correct)", "D", "#8a8a8a"),
}
CONTROLS = {
    "alone": ((), Mark("Var alone", "o", "#44337a", False)),
    "given_length": (("n",), Mark("length controlled", "D", "#8a8a8a", False)),
    "given_mean": (("mean",), Mark("mean log q controlled", "s", "#1f8a99", False)),
    "given_both": (("mean", "n"), Mark("both controlled", "o", "#44337a")),
}
"""Predictors that are controlled for, and the mark."""


def auroc_data(study: Study) -> dict[str, Any]:
    """Return per task and order the AUROC of each predictor and Var's lead over its rivals."""
    from orderlens.analysis.predictors import auroc_lead, aurocs

    def row(cell: GradedCell) -> dict[str, Any]:
        found = {name: interval(value) for name, value in aurocs(cell).items()}
        lead = {rival: interval(auroc_lead(cell, rival)) for rival in ("mean", "n")}
        return {"auroc": found, "lead": lead}

    return rows_by_task(study, row)


def effect_data(study: Study) -> dict[str, Any]:
    """Return per task and order the log-odds per standard deviation of Var under each set of controls."""
    from orderlens.analysis.predictors import var_effect

    def row(cell: GradedCell) -> dict[str, Any]:
        return {"effect": {name: interval(var_effect(cell, held)) for name, (held, _) in CONTROLS.items()}}

    return rows_by_task(study, row)


def draw_aurocs(data: Mapping[str, Any]) -> Figure:
    """Draw three marks per order; the line at one half is chance level."""
    note = "Correct against incorrect answers under one order, seeds pooled. Bars: 95 % intervals."
    return _draw(data, "auroc", PREDICTORS, 0.5, "AUROC", note, height=0.34, gap=0.22)


def draw_effects(data: Mapping[str, Any]) -> Figure:
    """Draw four marks per order; left of 0, answers with lower Var are more often correct."""
    marks = {name: mark for name, (_, mark) in CONTROLS.items()}
    note = (
        "Logistic regression on normal scores, errors clustered by item; bars: 95 % intervals. "
        "Left of 0: answers with lower Var are more often correct."
    )
    return _draw(data, "effect", marks, 0.0, "log-odds per sd of Var", note, height=0.42, gap=0.2)


def _draw(
    data: Mapping[str, Any],
    part: str,
    marks: Mapping[str, Mark],
    line: float,
    label: str,
    note: str,
    *,
    height: float,
    gap: float,
) -> Figure:
    with look():
        count = max(len(task["rows"]) for task in data["tasks"])
        figure, panels = task_panels(data["tasks"], 0.7 + height * count)
        for panel, task in zip(panels, data["tasks"], strict=True):
            panel.axvline(line, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
            for place, (name, mark) in enumerate(marks.items()):
                shift = gap * (place - (len(marks) - 1) / 2)
                cells = [row[part][name] for row in task["rows"]]
                dots(panel, cells, shift, mark.marker, mark.color, mark.label, mark.fill)
            finish_rows(panel, [row["order"] for row in task["rows"]])
            panel.set_xlabel(label)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(marks))
        footnote(figure, note)
    return figure


RECIPE = Recipe("AUROC of Var, mean log q and length for correctness", auroc_data, draw_aurocs, "evaluate")
VAR_EFFECT = Recipe(
    "Effect of Var with and without mean log q and length", effect_data, draw_effects, "evaluate"
)
