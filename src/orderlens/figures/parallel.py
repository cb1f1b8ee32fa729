"""Several tokens per pass: cost by couplings, loss and Var, and quality against tokens per pass."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.analysis.frontier import EOS_SHARE, ladder_of, log_axis, measures, unit_of
from orderlens.analysis.table import has_couplings
from orderlens.analysis.tables_couplings import (
    grouped_sets,
    loss_split,
    reference_of,
    variance_parts,
)
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_styles,
    panel_letters,
)
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


_COUPLING, _ORDER, _BOUND, _INSIDE = "#ac530f", "#1a273f", "#7c7c7c", "#558cef"
_VAR = (
    ("between", "between passes", _ORDER),
    ("inside", "inside passes", _INSIDE),
    ("coupling_between", "coupling, between", "#eea005"),
    ("coupling_inside", "coupling, inside", _COUPLING),
)


def couplings_data(study: Study) -> dict[str, Any]:
    """Return couplings by size of the set, and per policy the split of the loss and the parts of Var."""
    if not has_couplings(study):
        raise UndefinedFigureError("no couplings were measured: score with --couplings N")
    names = ("size", "coupling", "bound", "incoherence")
    groups: list[dict[str, Any]] = [
        {"group": str(row["group"]).removeprefix("tokens "), "n": row["n_sets"]}
        | {name: interval(row[name]) for name in names}
        for row in grouped_sets(study)
        if str(row["group"]).startswith("tokens ")
    ]
    loss = [
        {"order": row["order"]} | {name: interval(row[name]) for name in ("loss", "of_coupling", "of_order")}
        for row in loss_split(study, reference_of(study, study.scored))
    ]
    var = [
        {"order": row["order"]} | {name: interval(row[name]) for name, _, _ in _VAR}
        for row in variance_parts(study)
    ]
    return {"groups": groups, "loss": loss, "var": var}


def draw_couplings(data: Mapping[str, Any]) -> Figure:
    """Draw the three panels; each leaves out policies without values."""
    with look():
        loss = [row for row in data["loss"] if is_drawable(row["of_coupling"])]
        var = _aligned(data["var"], loss)
        height = max(2.5, 0.9 + 0.24 * max(len(loss), 1))
        figure, panels = new_figure(1, 3 if var else 2, height=height, gridspec_kw={"wspace": 0.05})
        _draw_groups(panels[0], data["groups"])
        _draw_loss(panels[1], loss)
        if var:
            _draw_var(panels[2], var)
        panel_letters(panels, "cost of a set", "loss of a policy", "parts of Var")
        footnote(
            figure,
            "C = log p(set | revealed) − Σ log p(token | revealed). Grey: Σ H − max H, which bounds its mean "
            "over texts that the model writes.\nThin bars at C: mean range over the paths through a set. "
            "(c) is Var of the same path with one token per pass.",
        )
    return figure


def _aligned(rows: list[Mapping[str, Any]], loss: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parts of Var in the row order of the loss; empty if no policy with sets has them."""
    by_order = {row["order"]: row for row in rows}
    found = [by_order[row["order"]] for row in loss]
    return found if any(is_drawable(row["inside"]) and centre(row["inside"]) > 0 for row in found) else []


def _draw_groups(panel: Axes, groups: list[Mapping[str, Any]]) -> None:
    places = range(len(groups))
    panel.plot(places, [centre(g["bound"]) for g in groups], "s--", color=_BOUND, label="entropy bound")
    for place, group in zip(places, groups, strict=True):
        value, half = centre(group["coupling"]), centre(group["incoherence"]) / 2
        panel.errorbar(place, value, yerr=half, color=_COUPLING, elinewidth=0.7, capsize=2)
        error = error_bars([group["coupling"]])
        panel.errorbar(place, value, yerr=error, fmt="o", color=_COUPLING, elinewidth=1.6)
    panel.plot([], [], "o", color=_COUPLING, label="coupling C")
    panel.axhline(0, color=GREY, linewidth=0.7)
    panel.set_yscale("symlog", linthresh=0.1)
    panel.set_xticks(places, [str(group["group"]) for group in groups])
    panel.set_xlabel("tokens in the set")
    panel.set_ylabel("nats per set")
    _legend(panel)


def _draw_loss(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        for name, shift, color in (("of_order", -0.18, _ORDER), ("of_coupling", 0.18, _COUPLING)):
            panel.barh(place + shift, centre(row[name]), height=0.32, color=color)
        error = error_bars([row["loss"]])
        panel.errorbar(centre(row["loss"]), place, xerr=error, fmt="|", color="black", elinewidth=0.9)
    panel.axvline(0, color=GREY, linewidth=0.7)
    panel.plot([], [], "s", color=_ORDER, label="order")
    panel.plot([], [], "s", color=_COUPLING, label="coupling")
    _rows(panel, rows)
    panel.set_xlabel("loss (nats/token); mark: total")
    _legend(panel)


def _draw_var(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        if not is_drawable(row["coupling_inside"]):
            panel.text(0, place, " not every set measured", va="center", fontsize=5.6, color=GREY)
            continue
        reach = {1: 0.0, -1: 0.0}
        for name, _, color in _VAR:
            value = centre(row[name])
            side = 1 if value >= 0 else -1
            panel.barh(place, value, left=reach[side], height=0.62, color=color)
            reach[side] += value
    for _, label, color in _VAR:
        panel.plot([], [], "s", color=color, label=label)
    panel.axvline(0, color=GREY, linewidth=0.7)
    _rows(panel, rows)
    panel.set_yticklabels([])
    panel.set_xlabel("Var (nats²)")
    _legend(panel)


def _legend(panel: Axes) -> None:
    """Put the legend above the panel, clear of the marks."""
    panel.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.15),
        ncols=2,
        fontsize=5.8,
        columnspacing=0.6,
        handlelength=1.6,
    )


def _rows(panel: Axes, rows: list[Mapping[str, Any]]) -> None:
    panel.set_yticks(range(len(rows)), [display_name(str(row["order"])) for row in rows], fontsize=6.6)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)


COUPLINGS = Recipe("Cost of committing several tokens per pass", couplings_data, draw_couplings)


_COLORS = ("#1a273f", "#ac530f", "#558cef", "#eea005", "#195e33", "#661584", "#7c7c7c", "#a33a5b", "#1f8a99")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Look = tuple[str, str]
"""Colour and marker."""


def family_of(order: str) -> str:
    """Return a policy without its numbers: ``max-prob+threshold=0.9`` and ``=0.7`` are one family."""
    rule, plus, commit = order.partition("+")
    return f"{rule}{plus}{re.sub(r'=[^+]*', '', commit)}"


def frontier_data(study: Study) -> dict[str, Any]:
    """Return every measure's points, and which policies are the ladder."""
    with study.needing(("text",)):
        found = [measure for measure in measures(study) if not measure.name.startswith(EOS_SHARE)]
    if not found:
        raise UndefinedFigureError("the runs hold neither scored nor generated texts")
    panels: list[dict[str, Any]] = []
    for measure in found:
        points = [
            {
                "order": point.order,
                "quality": interval(point.quality),
                "tokens_per_pass": interval(point.tokens_per_pass),
                "front": point.front,
            }
            for point in measure.points(study.options.resampling)
        ]
        panels.append(
            {"measure": measure.name, "better": measure.better, "n": len(measure.prompts), "points": points}
        )
    if not any(len(panel["points"]) > 1 for panel in panels):
        raise UndefinedFigureError("one policy: there is no frontier to draw")
    if not any(len(_paces(panel)) > 1 for panel in panels):
        raise UndefinedFigureError("all policies are equally fast: there is no frontier to draw")
    return {"panels": panels, "ladder": ladder_of(study.orders(study.samples))}


def draw_frontier(data: Mapping[str, Any]) -> Figure:
    """Draw the panels, three in a row, with one legend; a constant measure appears only in the footnote.

    Measures whose policies are all equally fast are left out: there is no frontier in them.
    """
    with look():
        ladder = list(data["ladder"])
        apart = [panel for panel in data["panels"] if len(_paces(panel)) > 1] or list(data["panels"])
        panels = [panel for panel in apart if len(_values(panel)) > 1] or apart
        same = [panel for panel in apart if panel not in panels and _values(panel)]
        columns = min(3, len(panels))
        rows = math.ceil(len(panels) / columns)
        orders = list(dict.fromkeys(point["order"] for panel in panels for point in panel["points"]))
        families = list(dict.fromkeys(_family(order, ladder) for order in orders))
        looks = _looks(families)
        height = 0.6 + 2.15 * rows + 0.16 * math.ceil(len(families) / 3)
        figure, axes = new_figure(rows, columns, height=height)
        for axis, panel in zip(axes, panels, strict=False):
            _draw_panel(axis, panel, looks, ladder)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        handles, names = _handles(axes[0], {family: looks[family] for family in families})
        figure.legend(handles, names, loc="outside upper center", ncols=min(3, len(families)), fontsize=6.8)
        note = "Error bars: intervals over prompts. Filled: on the Pareto front of quality and passes."
        constant = "; ".join(f"{panel['measure']}: {min(_values(panel)):g} %" for panel in same)
        footnote(figure, f"{note}\nThe same under every policy: {constant}." if constant else note)
    return figure


def _paces(panel: Mapping[str, Any]) -> set[float]:
    return {round(centre(point["tokens_per_pass"]), 6) for point in panel["points"]}


def _values(panel: Mapping[str, Any]) -> set[float]:
    return {centre(point["quality"]) for point in panel["points"] if is_drawable(point["quality"])}


def _family(order: str, ladder: Sequence[str]) -> str:
    """Return the family; the ladder is one family, including its rung of one token per pass."""
    return family_of(ladder[-1]) if order in ladder else family_of(order)


def _looks(families: Sequence[str]) -> dict[str, Look]:
    """Return colours and markers: an order's own, and for policies those that no order in the figure has.

    Both change from policy to policy; after a full period the markers are shifted against the colours.
    """
    orders = order_styles(name for name in families if "+" not in name)
    looks = {name: (style.color, style.marker) for name, style in orders.items()}
    colors = [item for item in _COLORS if item not in {color for color, _ in looks.values()}] or _COLORS
    markers = [item for item in _MARKERS if item not in {marker for _, marker in looks.values()}] or _MARKERS
    period = math.lcm(len(colors), len(markers))
    for place, name in enumerate(name for name in families if "+" in name):
        looks[name] = colors[place % len(colors)], markers[(place + place // period) % len(markers)]
    return looks


def _draw_panel(
    axis: Axes, panel: Mapping[str, Any], looks: Mapping[str, Look], ladder: Sequence[str]
) -> None:
    by_family: dict[str, list[Mapping[str, Any]]] = {}
    for point in panel["points"]:
        if is_drawable(point["quality"]) and is_drawable(point["tokens_per_pass"]):
            by_family.setdefault(_family(point["order"], ladder), []).append(point)
    for family, points in by_family.items():
        color, marker = looks[family]
        ordered = sorted(points, key=lambda point: centre(point["tokens_per_pass"]))
        xs, ys = ([centre(point[name]) for point in ordered] for name in ("tokens_per_pass", "quality"))
        axis.plot(xs, ys, "-", color=color, linewidth=0.9, alpha=0.6)
        for point, x, y in zip(ordered, xs, ys, strict=True):
            full = bool(point["front"])
            axis.errorbar(
                x,
                y,
                xerr=error_bars([point["tokens_per_pass"]]),
                yerr=error_bars([point["quality"]]),
                linestyle="none",
                marker=marker,
                color=color,
                markersize=4.8,
                markerfacecolor=color if full else "white",
                elinewidth=0.7,
            )
    if log_axis([centre(point["tokens_per_pass"]) for point in panel["points"]]):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    sign = {1: " ↑", -1: " ↓"}.get(int(panel["better"]), "")
    axis.set_title(f"{panel['measure']}{sign}", fontsize=7.6)
    axis.set_xlabel("tokens per pass")
    axis.set_ylabel(unit_of(str(panel["measure"])))


def _handles(axis: Axes, looks: Mapping[str, Look]) -> tuple[list[Any], list[str]]:
    handles = []
    for color, marker in looks.values():
        handles += axis.plot([], [], marker=marker, color=color, linewidth=0.9)
    return handles, [display_name(family) for family in looks]


FRONTIER = Recipe("Quality against tokens per pass", frontier_data, draw_frontier)
