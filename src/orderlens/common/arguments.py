"""Checks of plain arguments: whole numbers and temperatures, or one line that names the bad value."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

from orderlens.errors import UserInputError


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return ``value`` if it is a whole number of 64 bits, and not below ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UserInputError(f"{name}={value!r} must be a whole number")
    number = int(value)
    if least is not None and number < least:
        raise UserInputError(f"{name}={number} must be at least {least}")
    if not -(2**63) <= number < 2**63:
        raise UserInputError(f"{name}={number} must fit into 64 bits")
    return number


def as_temperatures(given: float | Iterable[float]) -> list[float]:
    """Return the temperatures of a number or of several."""
    values = [given] if isinstance(given, Real | str) or not isinstance(given, Iterable) else list(given)
    for value in values:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise UserInputError(f"temperature {value!r} is not a number; give a number or a list of numbers")
    return [float(value) for value in values]
