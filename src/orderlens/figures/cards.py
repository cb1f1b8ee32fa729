"""Small figures for the cards of a report's first screen: rows of points, and Lorenz curves.

A card is plain data; ``draw`` returns a figure one column wide. Does not depend on runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderlens.figures.style import WIDTH_ONE_COLUMN, OrderStyle, look, point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _RUST = "#1d4f91", "#b8510b"
_DOT = OrderStyle(_BLUE, "-", "o", "")
_LETTER = 0.066
"""Width of a letter of a row's name in inches."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One value with its interval; ``hollow`` distinguishes it without colour."""

    value: float
    low: float = math.nan
    high: float = math.nan
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class DotCard:
    """Rows of dots.

    Attributes:
        title: the text alternative.
        label: of the axis, with its unit.
        rows: name and dots, from top to bottom.
    """

    title: str
    label: str
    rows: tuple[tuple[str, tuple[Dot, ...]], ...]


@dataclass(frozen=True, slots=True)
class LorenzCard:
    """Lorenz curves as (name, heights from 0 to 1, Gini); ``title`` is the text alternative."""

    title: str
    curves: tuple[tuple[str, tuple[float, ...], float], ...]


Card = DotCard | LorenzCard


def dot_card(title: str, label: str, rows: Sequence[tuple[str, Sequence[Dot]]]) -> DotCard | None:
    """Return a card of the rows that have a finite value; None where there is none."""
    finite = [(name, tuple(dot for dot in dots if math.isfinite(dot.value))) for name, dots in rows]
    known = tuple((name, dots) for name, dots in finite if dots)
    return DotCard(title, label, known) if known else None


def lorenz_card(title: str, curves: Sequence[tuple[str, Sequence[float], float]]) -> LorenzCard | None:
    """Return a card of the curves that are defined; None where there is none."""
    known = tuple(
        (name, tuple(heights), gini)
        for name, heights, gini in curves
        if len(heights) and np.isfinite(heights).all()
    )
    return LorenzCard(title, known) if known else None


def draw(card: Card) -> Figure:
    """Draw a card with fixed margins, so that no layout solver runs."""
    with look():
        if isinstance(card, DotCard):
            names = [short_name(name, 24) for name, _ in card.rows]
            left, height = 0.12 + _LETTER * max(map(len, names)), 0.2 * len(names)
            figure, panel = _new_card(left, WIDTH_ONE_COLUMN - left - 0.12, height)
            _draw_dots(panel, card, names)
        else:
            figure, panel = _new_card(0.55, 1.62, 1.62)
            _draw_lorenz(panel, card)
    return figure


def _new_card(left: float, width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with transparent background and its panel; sizes in inches."""
    from matplotlib.figure import Figure

    below, above = 0.4, 0.08
    whole = height + below + above
    figure = Figure(figsize=(WIDTH_ONE_COLUMN, whole), facecolor="none")
    figure.set_layout_engine("none")
    box = (left / WIDTH_ONE_COLUMN, below / whole, width / WIDTH_ONE_COLUMN, height / whole)
    return figure, figure.add_axes(box, facecolor="none")


def _draw_dots(panel: Axes, card: DotCard, names: Sequence[str]) -> None:
    for place, (_, dots) in enumerate(card.rows):
        for dot in dots:
            cell = {"value": dot.value, "low": dot.low, "high": dot.high}
            point(panel, _DOT, cell, float(place), hollow=dot.hollow)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_yticks(range(len(names)), names)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
    panel.margins(x=0.08)
    panel.locator_params(axis="x", nbins=5)
    panel.set_xlabel(card.label)


def _draw_lorenz(panel: Axes, card: LorenzCard) -> None:
    panel.plot([0, 1], [0, 1], color="#8a8a8a", linewidth=0.9, linestyle=(0, (4, 3)))
    looks = ((_BLUE, "-"), (_RUST, (0, (6, 2))))
    for place, (name, heights, gini) in enumerate(card.curves):
        color, line = looks[place % len(looks)]
        steps = np.linspace(0, 1, len(heights))
        label = f"{short_name(name, 13)}\nGini {gini:.2f}"
        panel.plot(steps, heights, color=color, linestyle=line, label=label)
    panel.set(xlim=(0, 1), ylim=(0, 1))
    panel.locator_params(nbins=4)
    panel.set_xlabel("share of steps, easiest first")
    panel.set_ylabel("share of −Σ log q")
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, handlelength=1.6)


def short_name(name: str, longest: int) -> str:
    """Cut the middle of a long name: policies begin in the same way and end differently."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[:half]}…{name[half + 1 - longest :]}"
