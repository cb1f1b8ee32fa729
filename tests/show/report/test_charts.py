"""Coordinates of the small pictures: linear, inside the frame, names cut in the middle, round ticks."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from orderlens.show.report.charts import WIDTH, Point, Row, dot_plot, lorenz_plot, nice_ticks


def places(chart):
    return [dot.x for line in chart.lines for dot in line.dots]


def test_places_are_linear_in_the_values():
    values = [-3.0, -1.0, 0.0, 4.0]
    chart = dot_plot("t", "l", [Row(f"r{n}", (Point(value),)) for n, value in enumerate(values)])
    per_unit = [
        (b - a) / (y - x) for (x, a), (y, b) in itertools.pairwise(zip(values, places(chart), strict=True))
    ]
    assert per_unit == pytest.approx([per_unit[0]] * 3, abs=0.1)
    assert per_unit[0] > 0
    assert places(chart)[0] == pytest.approx(chart.left + 0.06 / 1.12 * (WIDTH - chart.left - 14), abs=0.1)


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0, 1e-9, 1e9])
def test_one_value_stands_in_the_middle(value):
    chart = dot_plot("t", "l", [Row("only", (Point(value),))])
    assert places(chart) == [pytest.approx((chart.left + WIDTH - 14) / 2, abs=0.2)]
    assert all(chart.left <= x <= WIDTH for x, _ in chart.ticks)


def test_rows_stand_below_each_other_and_those_without_values_are_left_out():
    rows = [Row("a", (Point(1.0),)), Row("none", (Point(math.nan),)), Row("c", (Point(2.0), Point(math.nan)))]
    chart = dot_plot("t", "axis", rows)
    assert [line.name for line in chart.lines] == ["a", "c"]
    assert [len(line.dots) for line in chart.lines] == [1, 1]
    heights = [line.y for line in chart.lines]
    assert heights == sorted(heights)
    assert heights[-1] < chart.height
    taller = dot_plot("t", "axis", [*rows, Row("d", (Point(0.0),))])
    assert taller.height - chart.height == heights[1] - heights[0]
    assert (chart.title, chart.label) == ("t", "axis")


def test_intervals_are_inside_and_half_known_ones_are_not_drawn():
    points = (Point(1.0, 0.0, 9.0, hollow=True), Point(2.0, math.nan, 3.0), Point(3.0))
    dots = dot_plot("t", "l", [Row("a", points)]).lines[0].dots
    assert [dot.has_interval for dot in dots] == [True, False, False]
    assert [dot.hollow for dot in dots] == [True, False, False]
    assert dots[0].low < dots[0].x < dots[0].high <= WIDTH


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("max-prob", "max-prob"),
        ("x" * 22, "x" * 22),
        ("abcdefghijklmnopqrstuvwxyz", "abcdefghij…pqrstuvwxyz"),
    ],
)
def test_long_names_keep_beginning_and_end(name, shown):
    (line,) = dot_plot("t", "l", [Row(name, (Point(1.0),))]).lines
    assert (line.name, line.title) == (shown, name)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (-3, 7),
        (0.11, 0.93),
        (1e-7, 9e-7),
        (-1e6, 3e6),
        (99.5, 100.5),
        (0.0, 0.3),
        (-0.05, 0.1),
        (2, 33),
    ],
)
def test_ticks_are_few_round_even_and_inside(low, high):
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert re.sub(r"[-+.0e]", "", f"{steps[0]:.3e}".partition("e")[0]) in ("1", "2", "25", "5")
    assert ticks[0] - steps[0] < low
    assert ticks[-1] + steps[0] > high


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (math.nan, 1), (0, math.inf)])
def test_no_span_has_no_ticks(low, high):
    assert nice_ticks(low, high) == []


def test_ticks_are_written_with_a_true_minus_and_zero_is_zero():
    chart = dot_plot("t", "l", [Row("a", (Point(-1.0), Point(1.0)))])
    words = [word for _, word in chart.ticks]
    assert "0" in words
    assert "−0.5" in words
    assert not any("-" in word for word in words)


def test_curves_run_from_the_lower_left_to_the_upper_right():
    chart = lorenz_plot(
        "t", [("a", [0.0, 0.25, 1.0], 0.25), ("bad", [0.0, math.nan], 0.5), ("none", [], 0.1)]
    )
    (curve,) = chart.curves
    points = [tuple(map(float, pair.split())) for pair in curve.path.removeprefix("M").split("L")]
    left, top, size = chart.left, chart.top, chart.size
    assert points[0] == (left, top + size)
    assert points[1] == (left + size / 2, top + size * 0.75)
    assert points[2] == (left + size, top)
    assert (curve.name, curve.value) == ("a", "Gini 0.25")
    assert lorenz_plot("t", []) is None
