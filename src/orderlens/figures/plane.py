"""Every graded generation on the plane of content mean and Var, coloured by verdict: the paper's two axes.

One panel per task and order. Dashed lines are the task's medians over all orders, the borders of the table
``quadrants``; the strips at the sides show how correct and incorrect answers are distributed along each axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from orderlens.figures.accuracy import graded_cells
from orderlens.figures.cards import short_name
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import GREY, footnote, look, new_figure, panel_letters, raised, real
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

COLUMNS = 4
"""Panels in a row."""
RASTER = 2000
"""Answers from which on a panel's marks are pixels in vector formats, so that the file stays small."""
N_BINS = 14
LETTERS = 15
"""Letters of a task's or an order's name that fit above the last panel of a row."""
DECADES = 6
"""Powers of ten that a logarithmic axis of Var shows below its largest value."""
MARKS = {True: ("correct", "o", "#1f8a99"), False: ("incorrect", "x", "#a33a5b")}
"""Verdict → name, marker and colour; no order uses these colours."""


def data(study: Study) -> dict[str, Any]:
    """Return per task the medians of mean and Var, and per order mean, Var and verdict of every answer."""
    tasks = []
    for task, cells in graded_cells(study).items():
        medians = {
            name: float(np.median(np.concatenate([cell.column(name) for cell in cells])))
            for name in ("mean", "var")
        }
        answers = [
            {
                "order": cell.order,
                "mean": cell.column("mean").tolist(),
                "var": cell.column("var").tolist(),
                "correct": cell.right.tolist(),
            }
            for cell in cells
        ]
        tasks.append({"task": task, "medians": medians, "orders": answers})
    return {"tasks": tasks, "temperature": study.temperature}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw one panel per task and order; the panels of a task share their axes."""
    import matplotlib as mpl

    shown = [(task, item) for task in data["tasks"] for item in task["orders"]]
    columns = min(COLUMNS, len(shown))
    n_rows = math.ceil(len(shown) / columns)
    with look(), mpl.rc_context({"axes.titlepad": 20.0, "axes.titlesize": 7.5}):
        figure, panels = new_figure(n_rows, columns, height=0.8 + 2.05 * n_rows)
        for panel, (task, item) in zip(panels, shown, strict=False):
            _panel(panel, task, item)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        for panel in panels[::columns]:
            panel.set_ylabel("Var(log q) (nats²)")
        panel_letters(panels[: len(shown)])
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2)
        footnote(
            figure,
            "One mark per answer, content tokens. Dashed: medians of the task over all orders. "
            f"Strips: shares of the correct and of the incorrect answers. T = {real(data['temperature']):g}.",
        )
    return figure


def _panel(panel: Axes, task: Mapping[str, Any], item: Mapping[str, Any]) -> None:
    mean, var = (np.array(item[name], np.float64) for name in ("mean", "var"))
    right = np.array(item["correct"], bool)
    for verdict, (label, marker, color) in MARKS.items():
        chosen = right == verdict
        panel.plot(
            mean[chosen],
            var[chosen],
            marker,
            color=color,
            markersize=3.0,
            markeredgewidth=0.8 if marker == "x" else 0.0,
            alpha=0.6,
            label=label,
            rasterized=len(mean) > RASTER,
        )
    medians = task["medians"]
    border: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 2))}
    panel.axvline(medians["mean"], **border)
    panel.axhline(medians["var"], **border)
    means, variances = (_values(task, name) for name in ("mean", "var"))
    _var_axis(panel, variances)
    space = 0.06 * max(float(np.ptp(means)), 1e-6)
    panel.set_xlim(float(means.min()) - space, float(means.max()) + space)
    names = (short_name(name, LETTERS) for name in (task["task"], display_name(item["order"])))
    panel.set_title("\n".join(names), loc="left")
    panel.set_xlabel("mean log q (nats)")
    panel.locator_params(axis="x", nbins=2)
    _strip(panel, mean, right, is_mean=True)
    _strip(panel, var, right, is_mean=False)


def _values(task: Mapping[str, Any], name: str) -> FloatArray:
    return np.concatenate([np.array(item[name], np.float64) for item in task["orders"]])


def _var_axis(panel: Axes, values: FloatArray) -> None:
    """Set the limits, on a logarithmic scale if Var spans more than a factor of five.

    0 stays on the axis. Between it and the lowest power of ten the scale is linear, without labels.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    positive, high = values[values > 0], float(values.max())
    if len(positive) and high > 5 * positive.min():
        low = max(float(positive.min()), high * 10.0**-DECADES)
        lowest, highest = math.floor(math.log10(low)), math.floor(math.log10(high * 1.5))
        ticks = [10.0**power for power in range(lowest, highest + 1)]
        if values.min() >= low:
            panel.set_yscale("log")
            panel.set_ylim(low / 1.5, high * 1.5)
        else:
            panel.set_yscale("symlog", linthresh=ticks[0])
            panel.set_ylim(-0.2 * ticks[0], high * 1.5)
            ticks = [0.0, *ticks]
        panel.yaxis.set_major_locator(FixedLocator(ticks))
        panel.yaxis.set_major_formatter(FuncFormatter(_power if lowest < -3 else _plain))
        panel.yaxis.set_minor_formatter(NullFormatter())
        return
    space = 0.06 * max(float(np.ptp(values)), 1e-6)
    panel.set_ylim(float(values.min()) - space, float(values.max()) + space)


def _plain(value: float, _: int | None = None) -> str:
    return f"{value:g}"


def _power(value: float, _: int | None = None) -> str:
    return f"10{raised(round(math.log10(value)))}" if value else "0"


def _strip(panel: Axes, values: FloatArray, right: BoolArray, *, is_mean: bool) -> None:
    """Draw the distribution of each verdict's answers: of the mean above the panel, of Var at its right."""
    strip = panel.inset_axes((0.0, 1.03, 1.0, 0.15) if is_mean else (1.03, 0.0, 0.15, 1.0))
    axis = panel.xaxis if is_mean else panel.yaxis
    scaled = axis.get_transform().transform(values)
    low, high = axis.get_transform().transform(np.array(axis.get_view_interval()))
    edges = np.linspace(low, high, N_BINS + 1)
    way: Literal["vertical", "horizontal"] = "vertical" if is_mean else "horizontal"
    for verdict, (_, _, color) in MARKS.items():
        mine = scaled[right == verdict]
        if len(mine):
            share = np.histogram(mine, edges)[0] / len(mine)
            strip.stairs(share, edges, orientation=way, color=color, fill=True, alpha=0.35)
    strip.set_axis_off()
    (strip.set_xlim if is_mean else strip.set_ylim)(low, high)


RECIPE = Recipe("Every answer on the plane of mean and Var, by verdict", data, draw, "evaluate")
