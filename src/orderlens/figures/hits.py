"""Greedy successes: recovery of whole spans against products over their steps, correlation of hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.style import (
    GREY,
    OrderStyle,
    centre,
    error_lengths,
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

SHARES = {
    "observed": ("observed", "o", "#1a273f"),
    "by_rate": ("product of hit rates", "s", "#1f8a99"),
    "fitted": ("product of fitted f(q)", "^", "#a33a5b"),
}
"""Share of whole spans → name, marker and colour."""


def data(study: Study) -> dict[str, Any]:
    """Return by deployable order, and pooled, the recovery by span and the autocorrelation by lag."""
    from orderlens.analysis.tables_assumptions import ALL, measure_hits

    found = study.shared(measure_hits)
    if not found:
        raise UndefinedFigureError("no whole trace of a deployable order was scored")

    def spans(order: str) -> list[dict[str, Any]]:
        names = (*SHARES, "log_excess")
        return [
            {"span": span, **{name: interval(getattr(cells, name)) for name in names}}
            for span, cells in found[order].spans.items()
        ]

    def lags(order: str) -> list[dict[str, Any]]:
        return [{"lag": lag, "correlation": interval(cell)} for lag, cell in found[order].lags.items()]

    orders = [order for order in found if order != ALL]
    return {
        "pooled": spans(ALL),
        "orders": [{"order": order, "spans": spans(order), "lags": lags(order)} for order in orders],
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw recovery of all orders pooled, and by order its excess over independence and the correlation."""
    with look():
        figure, panels = new_figure(1, 3, height=2.9)
        pooled = data["pooled"]
        for name, (label, marker, color) in SHARES.items():
            positive = [point for point in pooled if centre(point[name]) > 0]
            _line(panels[0], positive, "span", name, {"marker": marker, "color": color, "label": label})
        if any(centre(point[name]) > 0 for point in pooled for name in SHARES):
            panels[0].set_yscale("log")
        panels[0].set_ylabel("share of spans recovered")
        panels[0].legend()
        styles: dict[str, OrderStyle] = order_styles(item["order"] for item in data["orders"])
        for item in data["orders"]:
            line = styles[item["order"]].line() | {"label": display_name(item["order"])}
            _line(panels[1], item["spans"], "span", "log_excess", line)
            _line(panels[2], item["lags"], "lag", "correlation", line)
        for panel in panels[1:]:
            panel.axhline(0.0, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
        panels[1].set_ylabel("log(recovered / product)")
        panels[2].set_ylabel("correlation of hits given q")
        spans, lags = (
            [point["span"] for point in pooled],
            [point["lag"] for point in data["orders"][0]["lags"]],
        )
        for panel, ticks in zip(panels, (spans, spans, lags), strict=True):
            panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
            panel.set_xscale("log", base=2)
            panel.set_xticks(ticks, [str(tick) for tick in ticks])
            panel.set_xlabel("lag (reveals)" if ticks is lags else "span (tokens)")
        panel_letters(panels, "whole spans", "excess by span", "correlation by lag")
        handles, labels = panels[2].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
        footnote(
            figure,
            "A hit: the target was the most probable token. (a) all deployable orders; 0 is not drawn. "
            "(b), (c): 0 if hits are independent given q.\nBars: 95 % intervals over texts.",
        )
    return figure


def _line(
    panel: Axes, points: Sequence[Mapping[str, Any]], x: str, y: str, look_of_line: Mapping[str, Any]
) -> None:
    shown = [point for point in points if is_drawable(point[y])]
    ends = [error_lengths(point[y]) for point in shown]
    panel.errorbar(
        [point[x] for point in shown],
        [centre(point[y]) for point in shown],
        yerr=[[below for below, _ in ends], [above for _, above in ends]],
        elinewidth=0.8,
        **look_of_line,
    )


RECIPE = Recipe("Are greedy successes independent given q?", data, draw, "score")
