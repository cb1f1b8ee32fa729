"""Between tables and pictures: cells as plain numbers, and plain numbers (None for NaN) as floats again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orderlens.analysis.table import Cell
from orderlens.metrics.estimate import Estimate

Interval = dict[str, Any]


def interval(cell: Cell) -> Interval:
    """Return an estimate as ``{value, low, high, n}``; anything that is no estimate is undefined."""
    if not isinstance(cell, Estimate):
        return {"value": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    return {"value": cell.value, "low": cell.low, "high": cell.high, "n": cell.n}


def real(value: Any) -> float:
    """Return a number of the sidecar as a float: None is NaN."""
    return math.nan if value is None else float(value)


def centre(cell: Mapping[str, Any]) -> float:
    """Return the value of an interval."""
    return real(cell["value"])


def arms(cell: Mapping[str, Any]) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value; 0 where it has no ends."""
    value, low, high = (real(cell[name]) for name in ("value", "low", "high"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 0.0
    return max(value - low, 0.0), max(high - value, 0.0)


def is_drawable(cell: Mapping[str, Any]) -> bool:
    """Whether there is a finite value."""
    return math.isfinite(centre(cell))


def short(value: Any, digits: int = 2) -> str:
    """Return a number without its leading zero, as in ``.62`` and ``−.05``; a dash when undefined."""
    number = real(value)
    if not math.isfinite(number):
        return "–"
    text = f"{abs(number):.{digits}f}"
    sign = "−" if number < 0 and float(text) != 0 else ""
    return sign + (text[1:] if text.startswith("0.") else text)
