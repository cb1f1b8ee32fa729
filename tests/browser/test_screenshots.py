"""Pictures of pages at three sizes, compared with kept ones coarsely: layout counts, not fonts.

``ORDERLENS_GOLDEN=write pytest tests/browser/test_screenshots.py`` keeps new ones.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "browser"
SIZES = {"wide": (1440, 900), "tablet": (834, 1112), "phone": (390, 844)}
CELL = 16
"""Pixels per side of the squares whose mean lightness is compared."""
MOST_DIFFERENT = 0.12
"""Share of squares that may differ by more than a tenth of the range: fonts move words, not blocks."""


def coarse(png: bytes) -> np.ndarray:
    """Return the mean lightness of squares [rows, columns], 0…255."""
    from PIL import Image

    grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"), np.float64)
    high, wide = (length // CELL * CELL for length in grey.shape)
    return grey[:high, :wide].reshape(high // CELL, CELL, wide // CELL, CELL).mean(axis=(1, 3))


def compare(page, name):
    from PIL import Image

    found = coarse(page.screenshot())
    kept = GOLDEN / f"{name}.png"
    if os.environ.get("ORDERLENS_GOLDEN") == "write":
        kept.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(found.round().astype(np.uint8)).save(kept, optimize=True)
    wanted = np.asarray(Image.open(kept), np.float64)
    assert found.shape == wanted.shape
    share = float((np.abs(found - wanted) > 25.5).mean())
    assert share <= MOST_DIFFERENT, f"{name}: {share:.0%} of the page looks different"


@pytest.mark.parametrize("size", SIZES)
def test_the_viewers_pages(page, address, size):
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{address}#sample=s1&run=plain&a=forced-ar&b=random&step=9")
    page.locator(".tokens").first.wait_for()
    page.evaluate("document.querySelector('.sample-page').scrollIntoView()")
    compare(page, f"sample-{size}")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


@pytest.mark.parametrize("size", SIZES)
def test_the_reports_first_screen(page, reports, size):
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.goto((reports / "plain.html").as_uri())
    page.locator("table.samples tbody tr").first.wait_for()
    compare(page, f"report-{size}")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
