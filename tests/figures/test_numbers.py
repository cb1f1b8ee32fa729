"""Cells become plain numbers and come back from JSON."""

from __future__ import annotations

import json
import math

import pytest

from orderlens.common.plaintext import plain
from orderlens.figures import style as numbers
from orderlens.metrics.estimate import Estimate


def test_an_undefined_cell_survives_json_as_nan():
    stored = json.loads(json.dumps(plain(numbers.interval(Estimate.undefined("why")))))
    assert stored["value"] is None
    assert not numbers.is_drawable(stored)
    assert numbers.error_lengths(stored) == (0.0, 0.0)


def test_arms_reach_from_the_value_to_the_ends():
    assert numbers.error_lengths(numbers.interval(Estimate(2.0, 1.5, 4.0))) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.621, 2, "0.62"), (-0.05, 2, "−0.05"), (-0.001, 2, "0.00"), (1.0, 2, "1.00"), (12.345, 1, "12.3")],
)
def test_short_numbers(value, digits, text):
    assert numbers.short(value, digits) == text


def test_undefined_numbers_are_a_dash():
    assert numbers.short(math.nan) == numbers.short(None) == "–"
