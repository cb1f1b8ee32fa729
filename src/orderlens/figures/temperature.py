"""Fig. S1: greedy decoding (outlined marks) against sampling, four panels with the high-temperature band."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orderlens.analysis import paper
from orderlens.analysis.table import has_temperatures
from orderlens.analysis.tables_generation import sweep_rows
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    OrderStyle,
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    is_variant,
    look,
    new_figure,
    order_styles,
    panel_letters,
)
from orderlens.rules.cards import display_name, in_paper_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

PANELS = (
    ("external_ppl_whole", "median external perplexity", "log"),
    ("var", "Var(log q) (nats²)", "log"),
    ("content_mean", "content mean log q (nats)", "linear"),
    ("eos_fraction", "EOS fraction", "linear"),
)
HIGH_TEMPERATURE = paper.number("high_temperature")
"""From this temperature on the paper reports that all orders collapse, and excludes them from comparisons."""
COLLAPSED_PPL = paper.number("collapsed_ppl")


def data(study: Study) -> dict[str, Any]:
    """Return per order and temperature the four panels' values, and from where every order has collapsed."""
    if not has_temperatures(study):
        raise UndefinedFigureError("a sweep needs traces generated at two temperatures or more")
    series: dict[str, list[dict[str, Any]]] = {}
    for row in sweep_rows(study):
        cells = {name: interval(row[name]) for name, _, _ in PANELS}
        point = {"temperature": float(str(row["temperature"])), **cells}
        series.setdefault(str(row["order"]), []).append(point)
    evaluator = study.evaluator
    return {
        "series": [{"order": order, "points": series[order]} for order in in_paper_order(series)],
        "high_temperature": HIGH_TEMPERATURE,
        "collapsed_from": _collapsed_from(series),
        "evaluator": None if evaluator is None else evaluator.name,
        "n_prompts": int(study.generated["prompt"].nunique()),
    }


def _collapsed_from(series: Mapping[str, list[dict[str, Any]]]) -> float:
    """Return the lowest temperature from which every order's median perplexity stays above 1,000."""
    low_enough = [
        item["temperature"]
        for points in series.values()
        for item in points
        if is_drawable(item["external_ppl_whole"]) and item["external_ppl_whole"]["value"] <= COLLAPSED_PPL
    ]
    known = sorted({item["temperature"] for points in series.values() for item in points})
    measured = any(is_drawable(item["external_ppl_whole"]) for points in series.values() for item in points)
    above = [value for value in known if value > max(low_enough, default=-math.inf)]
    return above[0] if measured and above else math.nan


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the four panels."""
    with look():
        figure, panels = new_figure(2, 2, height=4.9, sharex=True)
        for panel, (name, label, scale) in zip(panels, PANELS, strict=True):
            if _draw_panel(panel, data, name) and scale == "log":
                panel.set_yscale("log")
            panel.set_ylabel(label)
            if name == "eos_fraction":
                top = max(panel.get_ylim()[1], 0.05)
                panel.set_ylim(-0.04 * top, top)
            _band(panel, data, label_it=name == "external_ppl_whole")
        for panel in panels[2:]:
            panel.set_xlabel("temperature")
        panel_letters(panels, "external perplexity", "variance", "mean", "end of text")
        handles, labels = panels[1].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=min(len(labels), 5), columnspacing=1.4
        )
        footnote(figure, _note(data))
    return figure


def _draw_panel(panel: Axes, data: Mapping[str, Any], name: str) -> bool:
    """Draw one quantity; return whether there was any value."""
    any_drawn = False
    count = len(data["series"])
    styles = order_styles(item["order"] for item in data["series"])
    for place, item in enumerate(data["series"]):
        style = styles[item["order"]]
        variant = is_variant(item["order"])
        points = [point for point in item["points"] if is_drawable(point[name])]
        any_drawn = any_drawn or bool(points)
        warm = [point for point in points if point["temperature"] > 0]
        panel.errorbar(
            [point["temperature"] for point in warm],
            [centre(point[name]) for point in warm],
            yerr=error_bars(point[name] for point in warm),
            color=style.color,
            linestyle=(0, (1, 1.5)) if variant else style.linestyle,
            marker=style.marker,
            markersize=4.2,
            markerfacecolor="white" if variant else style.color,
            elinewidth=0.8,
            label=display_name(item["order"]),
        )
        shift = 0.045 * (place - (count - 1) / 2)
        for point in points:
            if point["temperature"] == 0:
                _greedy_mark(panel, shift, centre(point[name]), style, hollow=variant)
    if not any_drawn:
        panel.text(0.45, 0.5, "not measured", transform=panel.transAxes, ha="center", color="#5f5f5f")
        panel.set_yticks([])
    return any_drawn


def _greedy_mark(panel: Axes, x: float, y: float, style: OrderStyle, *, hollow: bool) -> None:
    """Mark a value at T = 0 with the order's marker (readable in greyscale) and a dark outline."""
    look_of_mark: dict[str, Any] = {
        "markersize": 6.8,
        "markeredgecolor": "black",
        "markeredgewidth": 1.0,
        "zorder": 4,
    }
    if hollow:
        look_of_mark |= {"markerfacecolor": "white", "markeredgecolor": style.color}
    panel.plot(x, y, linestyle="none", marker=style.marker, color=style.color, **look_of_mark)


def _band(panel: Axes, data: Mapping[str, Any], *, label_it: bool) -> None:
    known = sorted({point["temperature"] for item in data["series"] for point in item["points"]})
    start, highest = float(data["high_temperature"]), known[-1]
    panel.set_xlim(-0.16, highest + 0.08)
    if highest < start:
        return
    edge = (max([value for value in known if value < start], default=start) + start) / 2
    panel.axvspan(max(edge, start - 0.1), highest + 0.08, color="#ededed", linewidth=0, zorder=0)
    if label_it:
        panel.text(
            highest + 0.05,
            0.03,
            "high temperature",
            transform=panel.get_xaxis_transform(),
            ha="right",
            fontsize=6.4,
            color="#5f5f5f",
        )


def _note(data: Mapping[str, Any]) -> str:
    evaluator = data["evaluator"] or "none (external perplexity was not measured)"
    found = data["collapsed_from"]
    here = (
        f"here every order's median exceeds 1,000 from T = {found:g} on"
        if found is not None and math.isfinite(found)
        else "here not every order's median exceeds 1,000 at any T"
    )
    if data["evaluator"] is None:
        here = "without external perplexity it cannot be located in this run"
    band = f"Grey: T ≥ {data['high_temperature']:g}, the paper's high-temperature regime; {here}."
    hottest = max(point["temperature"] for item in data["series"] for point in item["points"])
    if hottest < data["high_temperature"]:
        band = f"The paper's high-temperature regime (T ≥ {data['high_temperature']:g}) lies beyond this run."
    return (
        f"Outlined marks: T = 0 (moved apart). Bars: 95 % intervals over {data['n_prompts']} prompts. "
        f"Evaluator: {evaluator}.\n{band}"
    )


RECIPE = Recipe("Greedy decoding against sampling (Fig. S1)", data, draw, "sweep")


PROFILES = (("loss_lowest", "profile at the lowest T"), ("loss_own", "profile at T"))


def tolerance_data(study: Study) -> dict[str, Any]:
    """Return per order and temperature the theory's predicted loss (table ``tolerance``)."""
    from orderlens.analysis.tables_assumptions import tolerance

    if not has_temperatures(study):
        raise UndefinedFigureError("a sweep needs traces generated at two temperatures or more")
    series: dict[str, list[dict[str, Any]]] = {}
    for row in tolerance(study)[0].rows:
        cells = {name: interval(row[name]) for name, _ in PROFILES}
        point = {"temperature": float(str(row["temperature"])), **cells}
        series.setdefault(str(row["order"]), []).append(point)
    return {
        "series": [{"order": order, "points": series[order]} for order in in_paper_order(series)],
        "high_temperature": HIGH_TEMPERATURE,
    }


def draw_tolerance(data: Mapping[str, Any]) -> Figure:
    """Draw the predicted loss on the sweep's axis: of the profiles at the lowest T, and at each T."""
    with look():
        figure, panels = new_figure(1, 2, height=2.9, sharey=True)
        for panel, (name, title) in zip(panels, PROFILES, strict=True):
            _draw_panel(panel, data, name)
            panel.set_title(title, loc="left")
            panel.set_xlabel("temperature")
            _band(panel, data, label_it=False)
        panels[0].set_ylabel("predicted loss (nats/token)")
        panel_letters(panels)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        footnote(
            figure,
            "Mean of −log f(q) at σ = T π/√6, the standard deviation of the Gumbel noise of sampling at T. "
            "Bars: 95 % intervals.",
        )
    return figure


TOLERANCE = Recipe("The theory's predicted loss against temperature", tolerance_data, draw_tolerance, "sweep")
