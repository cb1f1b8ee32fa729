"""One style for every figure: an order has the same colour, line style and marker in all figures.

Colours differ under the common colour-vision deficiencies and in lightness, and no two orders share a marker,
so that a figure is readable in greyscale. Also draws points with intervals, and rows of them. Depends on the
cards of orders, not on runs or metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from string import ascii_lowercase
from textwrap import fill
from typing import TYPE_CHECKING, Any
from zlib import crc32

from orderlens.analysis.table import Cell
from orderlens.metrics.estimate import Estimate
from orderlens.rules.cards import base_name, display_name, in_paper_order, order_card

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = dict[str, Any]


def interval(cell: Cell) -> Interval:
    """Return an estimate as ``{value, low, high, n}``; any other cell as undefined."""
    if not isinstance(cell, Estimate):
        return {"value": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    return {"value": cell.value, "low": cell.low, "high": cell.high, "n": cell.n}


def real(value: Any) -> float:
    """Return a number from the JSON file as a float; None becomes NaN."""
    return math.nan if value is None else float(value)


def centre(cell: Mapping[str, Any]) -> float:
    """Return the value of an interval."""
    return real(cell["value"])


def error_lengths(cell: Mapping[str, Any]) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value; 0 where it has no ends."""
    value, low, high = (real(cell[name]) for name in ("value", "low", "high"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 0.0
    return max(value - low, 0.0), max(high - value, 0.0)


def is_drawable(cell: Mapping[str, Any]) -> bool:
    """Whether there is a finite value."""
    return math.isfinite(centre(cell))


def short(value: Any, digits: int = 2) -> str:
    """Return a number as ``0.62`` or ``−0.05`` with a true minus sign; a dash if undefined."""
    number = real(value)
    if not math.isfinite(number):
        return "–"
    text = f"{abs(number):.{digits}f}"
    return f"−{text}" if number < 0 and float(text) != 0 else text


Line = str | tuple[int, tuple[float, ...]]
"""A matplotlib line style."""


@dataclass(frozen=True, slots=True)
class OrderStyle:
    """How one order is drawn: hex colour, matplotlib line style and marker, and the name in legends."""

    color: str
    linestyle: Line
    marker: str
    label: str

    def line(self) -> dict[str, Any]:
        """Keyword arguments for ``Axes.plot``."""
        return {"color": self.color, "linestyle": self.linestyle, "marker": self.marker, "label": self.label}

    def points(self) -> dict[str, Any]:
        """Keyword arguments for ``Axes.scatter``."""
        return {"color": self.color, "marker": self.marker, "label": self.label}


_LOOKS: tuple[tuple[str, Line], ...] = (
    ("#1a273f", "-"),
    ("#ac530f", "--"),
    ("#eea005", "-."),
    ("#c68bc7", (0, (3, 1, 1, 1))),
    ("#7c7c7c", ":"),
    ("#558cef", (0, (5, 1))),
    ("#195e33", (0, (1, 1))),
    ("#98d587", (0, (7, 2, 1, 2))),
    ("#661584", (0, (3, 1, 1, 1, 1, 1))),
)
"""Colour and line style by the rank on an order's card."""

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
    """Return the style of an order's label; ``random:3`` looks like ``random``.

    The marker comes from the order's card and the colour from its rank. If the card has none, a spare style
    is chosen by the id alone. A policy has its order's colour and a spare marker chosen by its label. Two
    policies may share that marker, so figures call ``order_styles``.
    """
    card = order_card(order)
    turn = sum(base_name(order).encode())
    color, line = (
        _LOOKS[card.rank]
        if card.rank < len(_LOOKS)
        else (_SPARE_COLORS[turn % len(_SPARE_COLORS)], (0, (2.0, 1.0)))
    )
    marker = card.marker or _SPARE_MARKERS[turn // 7 % len(_SPARE_MARKERS)]
    if is_variant(order):
        marker = _SPARE_MARKERS[crc32(order.encode()) % len(_SPARE_MARKERS)]
    return OrderStyle(color, line, marker, display_name(order))


def order_styles(orders: Iterable[str]) -> dict[str, OrderStyle]:
    """Return the styles of one figure; no two policies share a style as long as there are spare ones.

    An order keeps its own style. A policy whose marker is in use gets a spare marker, then a spare marker in
    another colour. The result depends on the set of labels, not on their sequence.
    """
    labels = in_paper_order(orders)
    found = {order: order_style(order) for order in labels if not is_variant(order)}
    taken = {(style.color, style.marker) for style in found.values()}
    for order in labels:
        if order in found:
            continue
        own, used = order_style(order), {marker for _, marker in taken}
        markers = (own.marker, *_SPARE_MARKERS)
        looks = [(own.color, marker) for marker in markers if marker not in used]
        looks += [(color, marker) for color in (own.color, *_SPARE_COLORS) for marker in markers]
        color, marker = next((look for look in looks if look not in taken), looks[0])
        taken.add((color, marker))
        found[order] = replace(own, color=color, marker=marker)
    return {order: found[order] for order in labels}


def is_variant(order: str) -> bool:
    """Whether a label adds an option or a commit rule to its order; a seed is neither."""
    rule, plus, _ = order.partition("+")
    option = rule.partition(":")[2]
    return bool(plus) or bool(option and not option.isdigit())


def ramp(count: int) -> list[tuple[str, Line]]:
    """Return ``count`` (colour, line style) pairs from dark to light, for an ordered quantity such as σ."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    dashes: Sequence[Line] = (
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
    """Apply our matplotlib settings inside the block only."""
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


def panel_letters(axes: Sequence[Axes], *titles: str) -> None:
    """Put (a), (b), … before each axes' title; ``titles`` replace the titles of the first axes."""
    letters = [*ascii_lowercase, *map("".join, product(ascii_lowercase, repeat=2))]
    for letter, panel, title in zip_longest(letters[: len(axes)], axes, titles[: len(axes)]):
        panel.set_title(f"({letter})  {title or panel.get_title(loc='left')}", loc="left")


GREY = "#8a8a8a"


def point(
    panel: Axes,
    style: OrderStyle,
    x: Mapping[str, Any] | float,
    y: Mapping[str, Any] | float,
    *,
    hollow: bool = False,
) -> None:
    """Draw one order's point; intervals become error bars, and ``hollow`` leaves the marker empty."""
    if any(isinstance(item, Mapping) and not is_drawable(item) for item in (x, y)):
        return
    panel.errorbar(
        _place(x),
        _place(y),
        xerr=_error(x),
        yerr=_error(y),
        linestyle="none",
        marker=style.marker,
        color=style.color,
        markersize=5.6 if style.marker != "*" else 8.0,
        markerfacecolor="white" if hollow else style.color,
        markeredgecolor=style.color if hollow else "white",
        markeredgewidth=1.1 if hollow else 0.5,
        elinewidth=0.9,
        zorder=3,
    )


def rows(
    panel: Axes, orders: Sequence[str], cells: Sequence[Mapping[str, Any]], hollow: Sequence[bool]
) -> None:
    """Draw one point per row, the first order on top; the caller writes the row labels."""
    styles = order_styles(orders)
    for place, (order, cell, empty) in enumerate(zip(orders, cells, hollow, strict=True)):
        point(panel, styles[order], cell, float(place), hollow=empty)
    panel.set_ylim(max(len(orders), 1) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)


def row_labels(panel: Axes, orders: Sequence[str]) -> None:
    """Write the orders' names at the rows."""
    panel.set_yticks(range(len(orders)), [display_name(order) for order in orders])


def log_scale(panel: Axes) -> None:
    """Make the x axis logarithmic, with powers of ten as plain text, because mathtext is slow."""
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"10{raised(round(math.log10(value)))}")


def raised(power: int) -> str:
    """Return a power in raised digits."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def power_of_ten(value: float, digits: int = 1) -> str:
    """Return a number as ``1.8 × 10⁻³``, and 0 as ``0``."""
    if value == 0:
        return "0"
    factor, _, power = f"{value:.{digits}e}".partition("e")
    return f"{factor} × 10{raised(int(power))}".replace("-", "−")


def footnote(figure: Figure, text: str) -> None:
    """Write a small grey note below the panels, its lines wrapped to the figure's width."""
    columns = int(figure.get_figwidth() * 72 / 3.6)  # a letter is 3.2 to 3.5 points wide
    lines = (fill(line, columns, break_on_hyphens=False) for line in text.splitlines())
    figure.supxlabel(
        "\n".join(lines),
        x=0.01,
        horizontalalignment="left",
        fontsize=6.4,
        color="#5f5f5f",
        linespacing=1.35,
    )


def error_bars(cells: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """Return the lengths of error bars below and above the cells, as matplotlib takes them."""
    ends = [error_lengths(cell) for cell in cells]
    return [[below for below, _ in ends], [above for _, above in ends]]


def _place(item: Mapping[str, Any] | float) -> float:
    return centre(item) if isinstance(item, Mapping) else float(item)


def _error(item: Mapping[str, Any] | float) -> list[list[float]] | None:
    return error_bars([item]) if isinstance(item, Mapping) else None
