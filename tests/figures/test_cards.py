"""Small figures of the first screen: every defined value is drawn, twice with the same bytes."""

from __future__ import annotations

import math

import pytest

from orderlens.figures.cards import Dot, dot_card, draw, lorenz_card, short_name
from orderlens.figures.catalogue import svg_text

ROWS = [
    ("max-prob", [Dot(1.0, 0.5, 1.5), Dot(2.0, hollow=True)]),
    ("none", [Dot(math.nan)]),
    ("random", [Dot(3.0, math.nan, 4.0), Dot(math.nan)]),
]


def test_rows_without_values_are_left_out():
    card = dot_card("title", "axis", ROWS)
    assert [(name, len(dots)) for name, dots in card.rows] == [("max-prob", 2), ("random", 1)]
    assert dot_card("title", "axis", ROWS[1:2]) is None


def test_rows_are_drawn_from_top_to_bottom_with_their_intervals():
    (panel,) = draw(dot_card("title", "axis", ROWS)).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["max-prob", "random"]
    assert panel.get_xlabel() == "axis"
    assert panel.yaxis_inverted()
    points = [bars.lines[0] for bars in panel.containers]
    assert [(float(item.get_xdata()[0]), float(item.get_ydata()[0])) for item in points] == [
        (1.0, 0.0),
        (2.0, 0.0),
        (3.0, 1.0),
    ]
    assert [item.get_markerfacecolor() == "white" for item in points] == [False, True, False]
    low, high = panel.get_xlim()
    assert low < 0.5 < 3.0 < high


def test_curves_that_are_not_defined_are_left_out():
    card = lorenz_card("title", [("a", [0.0, 0.3, 1.0], 0.2), ("b", [0.0, math.nan], 0.1), ("c", [], 0.1)])
    assert [name for name, _, _ in card.curves] == ["a"]
    assert lorenz_card("title", [("b", [0.0, math.nan], 0.1)]) is None
    (panel,) = draw(card).axes
    assert panel.lines[1].get_ydata().tolist() == [0.0, 0.3, 1.0]
    assert panel.get_legend().get_texts()[0].get_text() == "a\nGini 0.20"


def test_names_and_legend_are_inside_the_picture():
    long = "max-prob+threshold=0.6+edit=0.8"
    for card in (dot_card("t", "x", [(long, [Dot(1.0)])]), lorenz_card("t", [(long, [0.0, 1.0], 0.2)])):
        figure = draw(card)
        figure.draw_without_rendering()
        box, whole = figure.get_tightbbox(), figure.bbox_inches
        assert box.x0 >= whole.x0
        assert box.x1 <= whole.x1
        assert box.y0 >= whole.y0


@pytest.mark.parametrize("card", [dot_card("t", "x", ROWS), lorenz_card("t", [("a", [0.0, 0.3, 1.0], 0.2)])])
def test_one_card_gives_the_same_bytes(card):
    assert svg_text(draw(card)) == svg_text(draw(card))


def test_long_names_keep_beginning_and_end():
    assert short_name("max-prob", 24) == "max-prob"
    cut = short_name("max-prob+threshold=0.6+edit=0.8", 24)
    assert (cut[:4], cut[-9:], len(cut)) == ("max-", "+edit=0.8", 24)
