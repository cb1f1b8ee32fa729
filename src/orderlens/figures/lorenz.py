"""Fig. 1b: distribution of a block's self-information over its steps, per order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis.tables_fixed import first_block_curves as data
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    OrderStyle,
    footnote,
    look,
    new_figure,
    order_styles,
    panel_letters,
    real,
    short,
)
from orderlens.metrics.segments import FloatArray
from orderlens.rules.cards import display_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the Lorenz curves (left) and their distance below the diagonal (right)."""
    with look():
        figure, (whole, depth) = new_figure(1, 2, height=2.9)
        steps = np.linspace(0, 1, data["length"] + 1)
        whole.plot([0, 1], [0, 1], color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        depth.axhline(0, color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        styles = order_styles(item["order"] for item in data["curves"])
        for place, item in enumerate(data["curves"]):
            style = styles[item["order"]]
            heights = np.array([real(value) for value in item["lorenz"]])
            _curve(whole, item, style, steps, heights, place)
            _curve(depth, item, style, steps, steps - heights, place)
        whole.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        whole.set_ylabel("share of −Σ log q")
        depth.set(xlim=(0, 1), box_aspect=1)
        depth.set_ylabel("distance below uniform")
        for panel in (whole, depth):
            panel.set_xlabel("share of steps, easiest first")
        panel_letters([whole, depth], "Lorenz curves", "depth of the curves")
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", title="order (Gini)")
        n = max(item["n"] for item in data["curves"])
        text = f"Block 0 ({data['length']} steps), mean of up to {n} curves per order; dashed: uniform."
        footnote(figure, text)
    return figure


def _curve(
    panel: Axes,
    item: Mapping[str, Any],
    style: OrderStyle,
    steps: FloatArray,
    heights: FloatArray,
    place: int,
) -> None:
    spacing = max(len(steps) // 4, 1)
    panel.plot(
        steps,
        heights,
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=(place % spacing, spacing),
        linewidth=1.2,
        markersize=4.0,
        label=f"{display_name(item['order'])} ({short(item['gini'], 3)})",
        markerfacecolor="white" if item["kind"] == "target-aware" else style.color,
    )


RECIPE = Recipe("Lorenz curves of self-information in block 0 (Fig. 1b)", data, draw, "score")
