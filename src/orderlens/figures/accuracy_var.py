"""Every order on the plane of content Var and accuracy, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orderlens.figures.catalogue import Recipe
from orderlens.figures.downstream import graded_cells, task_panels
from orderlens.figures.numbers import interval, real
from orderlens.figures.style import GREY, OrderStyle, footnote, look, order_styles, point
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.predictors import GradedCell
    from orderlens.analysis.study import Study

LEAST_SPAN = 5.0
"""Least height of a panel in percentage points."""


def data(study: Study) -> dict[str, Any]:
    """Return per task and order mean content Var and accuracy (%), seeds pooled and apart, and guessing."""
    from orderlens.analysis.tables_downstream import guessing_levels

    guessing = guessing_levels(study)
    tasks = [
        {
            "task": task,
            "guessing": guessing.get(task, math.nan),
            "points": [_point(cell) for cell in cells],
        }
        for task, cells in graded_cells(study).items()
    ]
    return {"tasks": tasks, "temperature": study.temperature}


def _point(cell: GradedCell) -> dict[str, Any]:
    from orderlens.metrics.estimate import means

    rows = cell.rows.assign(accuracy=100.0 * cell.rows["correct"])
    var, accuracy = means(rows[["var", "accuracy"]], cell.clusters)
    seeds = []
    if "seed_label" in rows.columns and rows["seed_label"].nunique() > 1:
        by_seed = rows.groupby("seed_label", sort=False)[["var", "accuracy"]].mean()
        seeds = by_seed.reset_index(drop=True).to_dict("records")
    return {"order": cell.order, "var": interval(var), "accuracy": interval(accuracy), "seeds": seeds}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw one panel per task; the legend names the orders once."""
    with look():
        figure, panels = task_panels(data["tasks"], 2.3)
        seen = list({item["order"]: None for task in data["tasks"] for item in task["points"]})
        styles = order_styles(seen)
        for panel, task in zip(panels, data["tasks"], strict=True):
            _panel(panel, task, styles)
        _legend(figure, {order: styles[order] for order in seen})
        text = "Bars: 95 % intervals over items. Small marks: single seeds of an order. Dashed: guessing."
        footnote(figure, f"{text} T = {real(data['temperature']):g}.")
    return figure


def _panel(panel: Axes, task: Mapping[str, Any], styles: Mapping[str, OrderStyle]) -> None:
    for item in task["points"]:
        style = styles[item["order"]]
        for seed in item["seeds"]:
            small: dict[str, Any] = {"markersize": 3.0, "alpha": 0.4, "markeredgewidth": 0}
            panel.plot(real(seed["var"]), real(seed["accuracy"]), style.marker, color=style.color, **small)
        point(panel, style, item["var"], item["accuracy"])
    if math.isfinite(real(task["guessing"])):
        panel.axhline(real(task["guessing"]), color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
    panel.set_xlabel("content Var(log q) (nats²)")
    panel.set_ylabel("accuracy (%)")
    panel.margins(0.1)
    low, high = panel.get_ylim()
    if high - low < LEAST_SPAN:  # orders that agree must not look far apart
        middle = max((low + high) / 2, 0.4 * LEAST_SPAN)
        panel.set_ylim(middle - LEAST_SPAN / 2, middle + LEAST_SPAN / 2)
    panel.locator_params(axis="x", nbins=5)


def _legend(figure: Figure, styles: Mapping[str, OrderStyle]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker=style.marker, color=style.color) for style in styles.values()
    ]
    names = [display_name(order) for order in styles]
    figure.legend(handles, names, loc="outside upper center", ncols=min(6, len(styles)))


RECIPE = Recipe("Accuracy against content Var per order", data, draw, "evaluate")
