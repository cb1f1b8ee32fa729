"""Fig. 1: every order by mean log q and Var (a), and Lorenz curves of −log q over the steps of a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orderlens.analysis import paper
from orderlens.analysis.tables_fixed import first_block_curves, order_plane
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    OrderStyle,
    footnote,
    interval,
    is_drawable,
    look,
    new_figure,
    order_style,
    order_styles,
    panel_letters,
    point,
    real,
    row_labels,
    rows,
    short,
)
from orderlens.metrics.coherence import tied_ranks
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.segments import FloatArray
from orderlens.rules.cards import display_name, is_random

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


COLUMNS = ("mean", "var", "gini_block0", "argmax_accuracy")
"""The statistics of the figure."""


def data(study: Study) -> dict[str, Any]:
    """Return per order the four statistics with intervals, by rising Var, and each random seed's means."""
    if not len(study.scored):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    points: list[dict[str, Any]] = []
    for row in order_plane(study):
        cells = {name: interval(row[name]) for name in COLUMNS}
        if is_drawable(cells["mean"]) and is_drawable(cells["var"]):
            points.append({"order": row["order"], "kind": row["kind"], "n": row["n"], **cells})
    points.sort(key=lambda item: (item["var"]["value"], item["order"]))
    drawn = study.scored[study.scored["order"].map(lambda order: is_random(str(order)))]
    seeds = drawn.groupby(["order", "seed"])[["mean", "var"]].mean().reset_index()
    return {
        "points": points,
        "random_seeds": seeds.to_dict("records") if len(seeds) > 1 else [],
        "spearman_var_mean": {"all": _rho(points), "paper_six": _rho(points, paper.orders("fixed-sequence"))},
        "n_sequences": int(study.scored["prompt"].nunique()),
    }


def _rho(points: list[dict[str, Any]], wanted: tuple[str, ...] | None = None) -> float:
    used = [item for item in points if wanted is None or item["order"] in wanted]
    if wanted is not None and len(used) < len(wanted):
        return float("nan")
    var, mean = ([item[name]["value"] for item in used] for name in ("var", "mean"))
    return rank_correlation(var, tied_ranks(mean))


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the plane and two columns of dots; the dots' row labels are the legend."""
    with look():
        count = len(data["points"])
        figure, panels = new_figure(
            1, 3, height=max(2.5, 0.5 + 0.26 * count), gridspec_kw={"width_ratios": [2.1, 1, 1]}
        )
        _plane(panels[0], data)
        orders = [item["order"] for item in data["points"]]
        hollow = [item["kind"] == "target-aware" for item in data["points"]]
        for panel, name, title in zip(
            panels[1:], COLUMNS[2:], ("Gini, block 0", "argmax accuracy"), strict=True
        ):
            rows(panel, orders, [item[name] for item in data["points"]], hollow)
            panel.set_xlabel(title)
        row_labels(panels[1], orders)
        panels[2].set_yticks(range(count), [""] * count)
        panel_letters(panels, "variance against mean", "inequality", "accuracy")
        footnote(figure, _note(data))
    return figure


def _plane(panel: Axes, data: Mapping[str, Any]) -> None:
    styles = order_styles(item["order"] for item in data["points"])
    for item in data["random_seeds"]:
        order = item.get("order", "random")
        look_of_random = styles.get(order) or order_style(order)
        panel.plot(
            real(item["mean"]),
            real(item["var"]),
            look_of_random.marker,
            color=look_of_random.color,
            alpha=0.35,
            markersize=3.2,
            markeredgewidth=0,
        )
    for item in data["points"]:
        style, hollow = styles[item["order"]], item["kind"] == "target-aware"
        point(panel, style, item["mean"], item["var"], hollow=hollow)
    panel.set_xlabel("mean log q of the target (nats per token)")
    panel.set_ylabel("Var(log q) (nats²)")
    panel.margins(0.08)


def _note(data: Mapping[str, Any]) -> str:
    rho = data["spearman_var_mean"]
    parts = [f"Spearman ρ(Var, mean) = {short(rho['all'])} over {len(data['points'])} orders"]
    if is_drawable({"value": rho["paper_six"]}):
        parts.append(f"{short(rho['paper_six'])} over the paper's six")
    text = ", ".join(parts) + f"; n = {data['n_sequences']} sequences, bars: 95 % intervals."
    if any(item["kind"] == "target-aware" for item in data["points"]):
        text += "\nHollow: the order sees the target, so its sum of log q is not a likelihood."
    return text


RECIPE = Recipe("Variance against mean log q per order (Fig. 1a)", data, draw, "score")


def draw_lorenz(data: Mapping[str, Any]) -> Figure:
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
            _lorenz_curve(whole, item, style, steps, heights, place)
            _lorenz_curve(depth, item, style, steps, steps - heights, place)
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


def _lorenz_curve(
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


LORENZ = Recipe(
    "Lorenz curves of self-information in block 0 (Fig. 1b)", first_block_curves, draw_lorenz, "score"
)
