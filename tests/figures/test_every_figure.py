"""Every registered figure is drawn from its stored numbers and shows them: other numbers, another picture."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from orderlens.figures.catalogue import FIGURES
from orderlens.figures.style import look

GOLDEN = Path(__file__).parent.parent / "golden" / "figures"


def stored(name):
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def picture(name, data):
    """Return the grey values of the drawing; large enough that a moved mark shows."""
    buffer = io.BytesIO()
    with look():
        FIGURES.get(name).draw(copy.deepcopy(data)).savefig(buffer, format="png", dpi=30)
    buffer.seek(0)
    return imread(buffer)[..., :3].mean(axis=2)


def stretched(value):
    """Move every fraction a little, unevenly, so that no change of scale hides it."""
    if isinstance(value, float) and not value.is_integer():
        return value * (0.8 if round(abs(value) * 1e4) % 2 else 0.97)
    if isinstance(value, list):
        return [stretched(item) for item in value]
    return {name: stretched(item) for name, item in value.items()} if isinstance(value, dict) else value


def test_each_figure_has_stored_numbers_and_no_file_is_left_over():
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(FIGURES.names())
    assert {path.stem for path in GOLDEN.glob("*.png")} <= set(FIGURES.names())


@pytest.mark.parametrize("name", FIGURES.names())
def test_the_drawing_shows_the_numbers(name):
    data = stored(name)
    first = picture(name, data)
    assert first.std() > 0.02, "something is drawn"
    moved = picture(name, stretched(data))
    assert moved.shape != first.shape or np.abs(moved - first).max() > 0.2
