"""One look for every figure: an order keeps its colour, line style and marker throughout the product.

Colours differ under the common colour-vision deficiencies and step through lightness, and no two orders share
a marker, so that a figure still reads in grey. This module knows order ids, not runs or metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class OrderStyle:
    """How one order is drawn: hex colour, matplotlib line style and marker, and the name in legends."""

    color: str
    linestyle: str | tuple[int, tuple[float, ...]]
    marker: str
    label: str

    def line(self) -> dict[str, Any]:
        """Keyword arguments for ``Axes.plot``."""
        return {"color": self.color, "linestyle": self.linestyle, "marker": self.marker, "label": self.label}

    def points(self) -> dict[str, Any]:
        """Keyword arguments for ``Axes.scatter``."""
        return {"color": self.color, "marker": self.marker, "label": self.label}


ORDER_STYLES: dict[str, OrderStyle] = {
    "forced-ar": OrderStyle("#1a273f", "-", "o", "Forced-AR"),
    "max-prob": OrderStyle("#ac530f", "--", "s", "Max-prob"),
    "top-margin": OrderStyle("#eea005", "-.", "^", "Top-margin"),
    "random": OrderStyle("#7c7c7c", ":", "X", "Random"),
    "reverse-ar": OrderStyle("#558cef", (0, (5, 1)), "D", "Reverse-AR"),
    "entropy": OrderStyle("#c68bc7", (0, (3, 1, 1, 1)), "v", "Entropy"),
    "oracle-max-q": OrderStyle("#195e33", (0, (1, 1)), "P", "Oracle max-q"),
    "oracle-margin": OrderStyle("#98d587", (0, (7, 2, 1, 2)), "h", "Oracle margin"),
    "oracle-min-q": OrderStyle("#661584", (0, (3, 1, 1, 1, 1, 1)), "*", "Oracle min-q"),
}
"""The fixed styles, in the order in which legends list them."""

_SPARE_MARKERS = ("<", ">", "p", "H", "d", "8")
_SPARE_COLORS = ("#3f3f3f", "#9b5d18", "#1f8a99", "#b3a100", "#a33a5b", "#6f6fd0")

RC: Any = {
    "figure.dpi": 120,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "orderlens",
}
"""matplotlib settings (a dict) for print: sizes are those of a figure placed at its natural width."""

WIDTH_ONE_COLUMN = 3.4
WIDTH_TEXT = 6.8
"""Inches: one column and the full text width of a two-column page."""


def order_style(order: str) -> OrderStyle:
    """Return the style of an order id; ``random:3`` looks like ``random``.

    An order the product does not know gets a spare look that depends on its name alone.
    """
    name = order.split(":", 1)[0]
    known = ORDER_STYLES.get(name)
    if known is not None:
        return known
    turn = sum(name.encode())
    color = _SPARE_COLORS[turn % len(_SPARE_COLORS)]
    return OrderStyle(color, (0, (2, 1)), _SPARE_MARKERS[turn // 7 % len(_SPARE_MARKERS)], order)


def ramp(count: int) -> list[tuple[str, str | tuple[int, tuple[float, ...]]]]:
    """Return ``count`` (colour, line style) pairs from dark to light, for an ordered quantity such as σ."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    dashes: Sequence[str | tuple[int, tuple[float, ...]]] = (
        "-",
        (0, (5, 1.2)),
        (0, (3, 1, 1, 1)),
        (0, (1, 1)),
        (0, (8, 1.5, 2, 1.5)),
        (0, (2.5, 2)),
    )
    places = [0.85 * step / max(count - 1, 1) for step in range(count)]
    return [
        (to_hex(colormaps["viridis"](place)), dashes[step % len(dashes)]) for step, place in enumerate(places)
    ]


@contextmanager
def look() -> Iterator[None]:
    """Apply the product's matplotlib settings inside the block and nowhere else."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH_TEXT, height: float = 2.6, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure outside pyplot's global state and its axes in reading order.

    Call inside :func:`look`. ``options`` go to ``Figure.subplots``; sizes are inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def panel_letters(axes: Sequence[Axes]) -> None:
    """Put (a), (b), … before each axes' title."""
    for letter, panel in zip("abcdefghijklmnop", axes, strict=False):
        panel.set_title(f"({letter})  {panel.get_title(loc='left')}", loc="left")
