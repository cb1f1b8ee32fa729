"""Takes the picture of a report's first screen for the README; needs Chromium.

    python recipes/report_picture.py REPORT.html PICTURE.png

Does not depend on orderlens: it opens the file as a reader would, in light colours.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1000, 900
"""Size of the window in pixels; the picture ends below the first row of cards, which depends on the fonts."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def take(report: Path, picture: Path) -> None:
    """Open ``report`` in Chromium and write what the window shows to ``picture``."""
    program = os.environ.get("ORDERLENS_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_load_state("networkidle")
        card = page.locator(".question").first.bounding_box()
        assert card is not None, "the report has no cards"
        bottom = card["y"] + card["height"] + 10
        page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
