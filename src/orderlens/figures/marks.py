"""Marks that several figures share: a point with its interval, and rows of such points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orderlens.analysis.orders import display_name
from orderlens.figures.numbers import arms, centre, is_drawable
from orderlens.figures.style import order_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
GREY = "#8a8a8a"


def point(panel: Axes, order: str, x: Cell | float, y: Cell | float, *, hollow: bool = False) -> None:
    """Draw one order's point; intervals become thin arms, and ``hollow`` leaves the marker empty."""
    if any(isinstance(item, Mapping) and not is_drawable(item) for item in (x, y)):
        return
    style = order_style(order)
    panel.errorbar(
        _place(x),
        _place(y),
        xerr=_error(x),
        yerr=_error(y),
        fmt=style.marker,
        color=style.color,
        markersize=5.6 if style.marker != "*" else 8.0,
        markerfacecolor="white" if hollow else style.color,
        markeredgecolor=style.color if hollow else "white",
        markeredgewidth=1.1 if hollow else 0.5,
        elinewidth=0.9,
        zorder=3,
    )


def rows(panel: Axes, orders: Sequence[str], cells: Sequence[Cell], hollow: Sequence[bool]) -> None:
    """Draw one point per row, the first order on top; the row labels are the caller's."""
    for place, (order, cell, empty) in enumerate(zip(orders, cells, hollow, strict=True)):
        point(panel, order, cell, float(place), hollow=empty)
    panel.set_ylim(max(len(orders), 1) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)


def row_labels(panel: Axes, orders: Sequence[str]) -> None:
    """Write the orders' names at the rows."""
    panel.set_yticks(range(len(orders)), [display_name(order) for order in orders])


def footnote(figure: Figure, text: str) -> None:
    """Write a small grey note below the panels, inside the figure's layout."""
    figure.supxlabel(
        text, x=0.01, horizontalalignment="left", fontsize=6.4, color="#5f5f5f", linespacing=1.35
    )


def _place(item: Cell | float) -> float:
    return centre(item) if isinstance(item, Mapping) else float(item)


def _error(item: Cell | float) -> list[list[float]] | None:
    if not isinstance(item, Mapping):
        return None
    below, above = arms(item)
    return [[below], [above]]
