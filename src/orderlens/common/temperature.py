"""Sampling temperatures: numbers, and schedules within a block; an error names the bad value."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

from orderlens.errors import UserInputError

TEMPERATURE_FORMS = "a number, START:END (linear as a block fills) or position:START:END"


class TemperatureSchedule(float):
    """A temperature that changes linearly within each block; as a number, the mean of both ends.

    Attributes:
        start: temperature of the block's first pass or position.
        end: of its last one.
        by_position: whether it depends on the position in the block instead of the tokens revealed so far.
    """

    start: float
    end: float
    by_position: bool

    def __new__(cls, start: float, end: float, by_position: bool = False) -> TemperatureSchedule:
        schedule = super().__new__(cls, round((start + end) / 2, 12))
        schedule.start, schedule.end, schedule.by_position = start, end, by_position
        return schedule

    def __getnewargs__(self) -> Any:
        return self.start, self.end, self.by_position

    def __str__(self) -> str:
        return f"{'position:' if self.by_position else ''}{self.start!r}:{self.end!r}"

    __repr__ = __str__

    def at(self, share: Any) -> Any:
        """Return the temperature at a share (0 to 1) of the block; a number or an array of numbers."""
        return self.start + (self.end - self.start) * share


def as_temperatures(given: float | str | Iterable[float | str]) -> list[float]:
    """Return one or several temperatures or schedules, or their text separated by commas, as a list."""
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    return [_temperature(value) for value in (given if isinstance(given, Iterable) else [given])]


def plain_temperature(value: float) -> float | str:
    """Return a temperature for JSON: a schedule as its text, from which ``as_temperatures`` reads it."""
    return str(value) if isinstance(value, TemperatureSchedule) else value


def _temperature(value: object) -> float:
    if isinstance(value, TemperatureSchedule):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    text = value if isinstance(value, str) else ""
    ends = text.removeprefix("position:").split(":")
    try:
        numbers = [float(end) for end in ends]
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        return TemperatureSchedule(numbers[0], numbers[1], text.startswith("position:"))
    if len(numbers) != 1 or ":" in text:
        raise UserInputError(f"temperature {value!r} must be {TEMPERATURE_FORMS}")
    return numbers[0]
