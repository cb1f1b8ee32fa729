"""Fig. 1b: how a block's self-information is shared among its steps, per order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis.curves import lorenz_curves
from orderlens.analysis.orders import display_name, kind_of
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.marks import footnote
from orderlens.figures.numbers import real, short
from orderlens.figures.style import look, new_figure, order_style, panel_letters
from orderlens.metrics.segments import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


def data(study: Study) -> dict[str, Any]:
    """Return the mean Lorenz curve of −log q in block 0 per order, by rising Gini.

    Only blocks of the commonest length are averaged; how many others there are is told.
    """
    frame = lorenz_curves(study.run, block=0, keep=~study.every["repeated"].to_numpy(bool))
    frame = frame[frame["scored"] & (frame["n"] > 0)]
    if not len(frame):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    counts = frame[frame["step"] == 0].groupby("length")["n"].sum()
    blocks = {int(str(length)): int(n) for length, n in counts.items()}
    length = max(blocks, key=lambda item: blocks[item])
    curves = []
    for order, part in frame[frame["length"] == length].groupby("order", sort=False):
        first = part.iloc[0]
        heights = part.sort_values("step")["lorenz"].tolist()
        kind = kind_of(str(order))
        curves.append(
            {"order": order, "kind": kind, "gini": first["gini"], "n": int(first["n"]), "lorenz": heights}
        )
    curves.sort(key=lambda item: (item["gini"], item["order"]))
    return {"length": length, "curves": curves, "n_other_lengths": sum(blocks.values()) - blocks[length]}


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the curves under the diagonal and, beside them, how far under it they run."""
    with look():
        figure, (whole, depth) = new_figure(1, 2, height=2.9)
        steps = np.linspace(0, 1, data["length"] + 1)
        whole.plot([0, 1], [0, 1], color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        depth.axhline(0, color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        for place, item in enumerate(data["curves"]):
            heights = np.array([real(value) for value in item["lorenz"]])
            _curve(whole, item, steps, heights, place)
            _curve(depth, item, steps, steps - heights, place)
        whole.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        whole.set_ylabel("share of −Σ log q")
        depth.set(xlim=(0, 1), box_aspect=1)
        depth.set_ylabel("distance below uniform")
        for panel in (whole, depth):
            panel.set_xlabel("share of steps, easiest first")
        panel_letters([whole, depth])
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", title="order (Gini)")
        n = max(item["n"] for item in data["curves"])
        text = f"Block 0 ({data['length']} steps), mean of up to {n} curves per order; dashed: uniform."
        footnote(figure, text)
    return figure


def _curve(panel: Axes, item: Mapping[str, Any], steps: FloatArray, heights: FloatArray, place: int) -> None:
    style = order_style(item["order"])
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
