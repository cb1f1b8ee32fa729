"""Accuracy in bins of content Var inside each order, one panel per task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orderlens.figures.catalogue import Recipe
from orderlens.figures.downstream import graded_cells, task_panels
from orderlens.figures.numbers import arms, centre, interval, real
from orderlens.figures.style import OrderStyle, footnote, look, order_styles
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

PLAIN_DECADES = 2.0
"""Up to this span of Var the axis shows plain numbers; beyond it they would overlap."""


def data(study: Study) -> dict[str, Any]:
    """Return per task and order the bins: Var (median and ends), accuracy (%) with interval, size."""
    from orderlens.analysis.predictors import accuracy_by_var

    tasks = []
    for task, cells in graded_cells(study).items():
        series = []
        for cell in cells:
            bins = [item | {"accuracy": interval(item["accuracy"])} for item in accuracy_by_var(cell)]
            series.append({"order": cell.order, "bins": bins})
        tasks.append({"task": task, "series": series})
    return {"tasks": tasks}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw a line with intervals per order."""
    with look():
        figure, panels = task_panels(data["tasks"], 2.4)
        styles = order_styles(item["order"] for task in data["tasks"] for item in task["series"])
        for panel, task in zip(panels, data["tasks"], strict=True):
            _panel(panel, task, styles)
        names: dict[str, Any] = {}
        for panel in panels:
            handles, labels = panel.get_legend_handles_labels()
            names |= dict(zip(labels, handles, strict=True))
        figure.legend(names.values(), names, loc="outside upper center", ncols=min(6, len(names)))
        footnote(
            figure,
            "Bins hold equally many answers of one order (all its seeds), placed at their median Var.\n"
            "Bars: 95 % intervals. A slope is no effect of Var alone: mean log q and length change too.",
        )
    return figure


def _panel(panel: Axes, task: Mapping[str, Any], styles: Mapping[str, OrderStyle]) -> None:
    lowest = []
    for item in task["series"]:
        style, bins = styles[item["order"]], item["bins"]
        x = [real(one["var"]) for one in bins]
        y = [centre(one["accuracy"]) for one in bins]
        ends = [arms(one["accuracy"]) for one in bins]
        error = [[below for below, _ in ends], [above for _, above in ends]]
        look_of = style.line() | {"label": display_name(item["order"])}
        panel.errorbar(x, y, yerr=error, elinewidth=0.8, **look_of)
        lowest += x
    if lowest and min(lowest) > 0 and max(lowest) > 5 * min(lowest):
        _log_axis(panel, math.log10(max(lowest) / min(lowest)))
    panel.set_xlabel("content Var(log q) (nats²)")
    panel.set_ylabel("accuracy (%)")


def _log_axis(panel: Axes, decades: float) -> None:
    """A logarithmic axis with few numbers: plain ones over two decades or less, else powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    if decades <= PLAIN_DECADES:
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        panel.xaxis.set_major_locator(LogLocator(numticks=6))
    panel.xaxis.set_minor_formatter(NullFormatter())


RECIPE = Recipe("Accuracy in bins of Var inside each order", data, draw, "evaluate")
