"""Correctness by Var: accuracy per order and in bins, Var, mean log q and length as predictors.

One panel per task. The helpers for cells, panels by task and rows by order serve all figures of graded runs.
The paper shows its downstream study in tables only; these figures are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    OrderStyle,
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_styles,
    panel_letters,
    point,
    real,
    row_labels,
)
from orderlens.metrics.estimate import FEWEST
from orderlens.rules.cards import display_name

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
    """Return per task one entry for every cell: order, number of answers, and the values of ``row``."""
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
    panel.errorbar(
        [centre(cell) for _, cell in shown],
        [place for place, _ in shown],
        xerr=error_bars(cell for _, cell in shown),
        linestyle="none",
        marker=marker,
        color=color,
        markerfacecolor=color if fill else "white",
        elinewidth=0.9,
        label=label,
    )


def finish_rows(panel: Axes, orders: Sequence[str]) -> None:
    """Label the rows, first order on top; write a text where there is nothing to draw."""
    if not any(len(line.get_xdata()) for box in panel.containers for line in box.lines[:1]):  # type: ignore[attr-defined]
        place = {"transform": panel.transAxes, "ha": "center", "va": "center", "color": GREY}
        panel.text(0.5, 0.5, "undefined: too few\ncorrect or incorrect", **place)  # type: ignore[arg-type]
    panel.set_ylim(len(orders) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
    row_labels(panel, orders)


LEAST_SPAN = 5.0
"""Minimum range of a panel's y axis in percentage points."""


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
    from orderlens.metrics.estimate import Clusters, means

    rows = cell.answers.assign(accuracy=100.0 * cell.answers["correct"])
    (var,) = means(cell.rows[["var"]], cell.clusters)
    (accuracy,) = means(rows[["accuracy"]], Clusters(rows["item_id"], cell.clusters.resampling))
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
            small: dict[str, Any] = {
                "markersize": 3.0,
                "alpha": 0.4,
                "markeredgewidth": 0,
                "color": style.color,
            }
            place = real(seed["var"]), real(seed["accuracy"])
            panel.plot(*place, linestyle="none", marker=style.marker, **small)
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


PLAIN_DECADES = 2.0
"""Up to this span of Var (decades) the axis shows plain numbers; beyond it they would overlap."""


def bins_data(study: Study) -> dict[str, Any]:
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


def draw_bins(bins_data: Mapping[str, Any]) -> Figure:
    """Draw a line with intervals per order."""
    with look():
        figure, panels = task_panels(bins_data["tasks"], 2.4)
        styles = order_styles(item["order"] for task in bins_data["tasks"] for item in task["series"])
        for panel, task in zip(panels, bins_data["tasks"], strict=True):
            _bins_panel(panel, task, styles)
        names: dict[str, Any] = {}
        for panel in panels:
            handles, labels = panel.get_legend_handles_labels()
            names |= dict(zip(labels, handles, strict=True))
        figure.legend(names.values(), names, loc="outside upper center", ncols=min(6, len(names)))
        footnote(
            figure,
            "Bins hold equal numbers of answers of one order (all seeds), placed at their median Var.\n"
            "Bars: 95 % intervals. A slope is not the effect of Var alone: mean log q and length vary too.",
        )
    return figure


def _bins_panel(panel: Axes, task: Mapping[str, Any], styles: Mapping[str, OrderStyle]) -> None:
    lowest = []
    for item in task["series"]:
        style, bins = styles[item["order"]], item["bins"]
        x = [real(one["var"]) for one in bins]
        y = [centre(one["accuracy"]) for one in bins]
        error = error_bars(one["accuracy"] for one in bins)
        look_of = style.line() | {"label": display_name(item["order"])}
        panel.errorbar(x, y, yerr=error, elinewidth=0.8, **look_of)
        lowest += x
    if lowest and min(lowest) > 0 and max(lowest) > 5 * min(lowest):
        _log_axis(panel, math.log10(max(lowest) / min(lowest)))
    panel.set_xlabel("content Var(log q) (nats²)")
    panel.set_ylabel("accuracy (%)")


def _log_axis(panel: Axes, decades: float) -> None:
    """Make the x axis logarithmic with few tick labels: plain up to two decades, else powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    if decades <= PLAIN_DECADES:
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        panel.xaxis.set_major_locator(LogLocator(numticks=6))
    panel.xaxis.set_minor_formatter(NullFormatter())


BY_VAR = Recipe("Accuracy in bins of Var inside each order", bins_data, draw_bins, "evaluate")


class Mark(NamedTuple):
    """How a number is drawn: name, marker, colour and filling; no order uses these colours and markers."""

    label: str
    marker: str
    color: str
    fill: bool = True


BARS = f"95 % intervals, none with fewer than {FEWEST} correct or incorrect items"
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
    note = f"Correct against incorrect answers under one order, seeds pooled. Bars: {BARS}."
    return _draw(data, "auroc", PREDICTORS, 0.5, "AUROC", note, height=0.34, gap=0.22)


def draw_effects(data: Mapping[str, Any]) -> Figure:
    """Draw four marks per order; left of 0, answers with lower Var are more often correct."""
    marks = {name: mark for name, (_, mark) in CONTROLS.items()}
    note = (
        f"Logistic regression on normal scores, errors clustered by item; bars: {BARS}. "
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


AUROC = Recipe("AUROC of Var, mean log q and length for correctness", auroc_data, draw_aurocs, "evaluate")
VAR_EFFECT = Recipe(
    "Effect of Var with and without mean log q and length", effect_data, draw_effects, "evaluate"
)
