"""Small pictures of the first screen as coordinates: templates draw them, with the page's own colours.

Knows numbers and labels, not runs. Units are those of the SVG's view box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 340.0
_ROW, _TOP, _FOOT, _RIGHT = 21.0, 6.0, 34.0, 14.0
_LETTER = 6.7
_LONGEST = 22


@dataclass(frozen=True, slots=True)
class Point:
    """One value with its interval; ``hollow`` sets it apart without colour."""

    value: float
    low: float = math.nan
    high: float = math.nan
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of dots under a name."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """A placed point."""

    x: float
    low: float
    high: float
    hollow: bool

    @property
    def has_interval(self) -> bool:
        """Whether there is a line to draw."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Line:
    """A placed row: its name cut to fit, its height and its dots."""

    name: str
    title: str
    y: float
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class DotPlot:
    """Dots with intervals, one line per name."""

    kind = "dots"
    title: str
    label: str
    left: float
    width: float
    height: float
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]


def dot_plot(title: str, label: str, rows: Sequence[Row]) -> DotPlot | None:
    """Place rows of dots; None where no value is defined.

    Args:
        title: the text alternative.
        label: of the axis, with its unit.
        rows: from top to bottom.
    """
    known = [row for row in rows if any(math.isfinite(point.value) for point in row.points)]
    if not known:
        return None
    left = 12 + _LETTER * min(_LONGEST, max(len(row.name) for row in known))
    values = [
        value
        for row in known
        for point in row.points
        for value in (point.value, point.low, point.high)
        if math.isfinite(value)
    ]
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return round(left + (value - low) / (high - low) * (WIDTH - left - _RIGHT), 1)

    lines = tuple(
        Line(
            _short(row.name),
            row.name,
            _TOP + _ROW * (place + 0.5),
            tuple(
                Dot(x(point.value), x(point.low), x(point.high), point.hollow)
                for point in row.points
                if math.isfinite(point.value)
            ),
        )
        for place, row in enumerate(known)
    )
    ticks = tuple((x(value), _number(value)) for value in nice_ticks(low, high))
    return DotPlot(title, label, left, WIDTH, _TOP + _ROW * len(known) + _FOOT, lines, ticks)


@dataclass(frozen=True, slots=True)
class Curve:
    """A placed Lorenz curve."""

    name: str
    path: str
    value: str


@dataclass(frozen=True, slots=True)
class LorenzPlot:
    """Lorenz curves over the diagonal."""

    kind = "lorenz"
    title: str
    curves: tuple[Curve, ...]
    size: float
    left: float
    top: float


def lorenz_plot(title: str, curves: Sequence[tuple[str, Sequence[float], float]]) -> LorenzPlot | None:
    """Place curves given as (name, heights from 0 to 1, Gini); None where there is none."""
    left, top, size = 46.0, 8.0, 172.0
    placed = []
    for name, heights, gini in curves:
        if not len(heights) or not all(math.isfinite(value) for value in heights):
            continue
        places = [
            f"{left + size * step / max(len(heights) - 1, 1):.1f} {top + size * (1 - value):.1f}"
            for step, value in enumerate(heights)
        ]
        placed.append(Curve(name, "M" + "L".join(places), f"Gini {gini:.2f}"))
    return LorenzPlot(title, tuple(placed), size, left, top) if placed else None


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return up to ``most`` round numbers between two limits."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return []
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (power * factor) <= most)
    first = math.ceil(low / step)
    return [step * (first + place) for place in range(int((high - step * first) / step) + 1)]


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−") if abs(value) > 1e-12 else "0"


def _short(name: str) -> str:
    """Cut the middle of a long name: policies begin alike and end differently."""
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 1) // 2
    return f"{name[:half]}…{name[half + 1 - _LONGEST :]}"
