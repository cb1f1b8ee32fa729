"""Locality: entropy and its fall by distance to the revealed text, and entropy by pass and position.

Needs the states of the masked positions (``--states``); ``metrics.locality`` defines the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    centre,
    error_bars,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_styles,
    panel_letters,
    real,
)
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study

CURVES = (("entropy", "entropy (nats)"), ("fall", "fall of entropy (nats)"))
MAPPED = ("max-prob", "random", "forced-ar")
"""Orders whose maps are drawn first; the data hold all."""


def data(study: Study) -> dict[str, Any]:
    """Return entropy and its fall by order and distance, and maps of entropy by pass and place of block 0."""
    from orderlens.analysis.table import NO_STATES
    from orderlens.analysis.tables_assumptions import locality, shown_traces
    from orderlens.analysis.traces import first_block_entropy

    frame = shown_traces(study)
    if not len(frame):
        raise UndefinedFigureError(NO_STATES)
    series: dict[str, list[dict[str, Any]]] = {}
    for row in locality(study)[0].rows:
        cells = {name: interval(row[name]) for name, _ in CURVES}
        series.setdefault(str(row["order"]), []).append({"distance": str(row["distance"]), **cells})
    maps = first_block_entropy(study.run, frame)
    return {
        "series": [{"order": order, "points": points} for order, points in series.items()],
        "maps": [{"order": order, "entropy": maps[order].round(6).tolist()} for order in series],
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw both curves and the maps of two orders, on one colour scale."""
    ranked = sorted(data["maps"], key=lambda item: (item["order"] not in MAPPED, _rank(item["order"])))
    mapped = ranked[:2]
    with look():
        figure, panels = new_figure(2, 2, height=5.0)
        for panel, (name, label) in zip(panels, CURVES, strict=False):
            _curves(panel, data, name)
            panel.set_xlabel("distance (positions)")
            panel.set_ylabel(label)
        values = [np.array(item["entropy"], np.float64) for item in mapped]
        top = max(float(np.nanmax(value)) for value in values)
        for panel, item, value in zip(panels[2:], mapped, values, strict=False):
            size = (0.5, value.shape[1] + 0.5, len(value) + 0.5, 0.5)
            shown = panel.imshow(
                np.ma.masked_invalid(value), extent=size, aspect="auto", vmin=0, vmax=top, cmap="viridis"
            )
            panel.grid(visible=False)
            panel.set_title(f"entropy, {display_name(item['order'])}", loc="left")
            panel.set_xlabel("place in block 0")
            panel.set_ylabel("pass")
        for panel in panels[2 + len(mapped) :]:
            panel.set_axis_off()
        panel_letters(panels[: 2 + len(mapped)], "entropy by distance", "fall of entropy by distance")
        bar = panels[1 + len(mapped)].inset_axes((1.03, 0.0, 0.04, 1.0))
        figure.colorbar(shown, cax=bar, label="nats")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        footnote(
            figure,
            "(a) by distance to the nearest revealed token, (b) to the token just revealed. Bars: 95 % "
            "intervals over texts.\nMaps: mean over texts; white: revealed in all of them.",
        )
    return figure


def _rank(order: str) -> int:
    return MAPPED.index(order) if order in MAPPED else 0


def _curves(panel: Axes, data: Mapping[str, Any], name: str) -> None:
    styles = order_styles(item["order"] for item in data["series"])
    groups = list({point["distance"]: None for item in data["series"] for point in item["points"]})
    count = len(data["series"])
    for place, item in enumerate(data["series"]):
        shift = 0.08 * (place - (count - 1) / 2)
        points = [point for point in item["points"] if is_drawable(point[name])]
        panel.errorbar(
            [groups.index(point["distance"]) + shift for point in points],
            [centre(point[name]) for point in points],
            yerr=error_bars(point[name] for point in points),
            elinewidth=0.8,
            **styles[item["order"]].line(),
        )
    panel.set_xticks(range(len(groups)), groups)
    if any(real(point[name]["low"]) < 0 for item in data["series"] for point in item["points"]):
        panel.axhline(0.0, color="#8a8a8a", linewidth=0.8)


RECIPE = Recipe("Entropy by distance to the revealed text, pass and position", data, draw, "states")
