"""Layout of the pages at three widths: stored boxes in one font; nothing moves under the pointer in any font.

``ORDERLENS_GOLDEN=write pytest tests/browser/test_layout.py`` keeps new boxes.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import matplotlib as mpl
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "boxes.json"
FONTS = Path(mpl.get_data_path()) / "fonts" / "ttf"
SIZES = {"wide": (1280, 900), "tablet": (834, 1112), "phone": (390, 844)}
TOLERANCE = 8.0
"""Pixels by which a side may differ: engines round line heights, they do not move blocks."""
SAMPLE = ".sample-head, .controls, .player, .detail, .panel, .panel h3, .tokens, .plot-box, .under, .legend"
REPORT = ".lead, nav.contents, .question, .question h2, .answer, .question .chart"
SPACING = {"serif": "0", "sans-serif": "0.04em", "monospace": "0.09em"}
"""Letter spacing of the generic families: narrow, ordinary and wide text on every machine."""

BOXES = """selector => [...document.querySelectorAll(selector)].map(item => {
  const box = item.getBoundingClientRect();
  const name = (item.getAttribute("class") || item.tagName.toLowerCase()).split(" ")[0];
  return [name, ...[box.x, box.y + scrollY, box.width, box.height].map(side => Math.round(side * 10) / 10)];
})"""
BRING = """async ({sans, mono}) => {
  for (const [name, data] of [["Brought", sans], ["Brought Mono", mono]]) {
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
    document.fonts.add(await new FontFace(name, bytes.buffer).load());
  }
  document.documentElement.style.setProperty("--sans", '"Brought"');
  document.documentElement.style.setProperty("--mono", '"Brought Mono"');
}"""
SET = """([family, spacing]) => {
  const {style} = document.documentElement;
  for (const name of ["--sans", "--mono"]) style.setProperty(name, family);
  style.letterSpacing = spacing;
}"""


def compare(page, name, selector):
    """Compare boxes, in a font that matplotlib carries, with the kept ones."""
    fonts = {"sans": "DejaVuSans.ttf", "mono": "DejaVuSansMono.ttf"}
    page.evaluate(
        BRING, {key: base64.b64encode((FONTS / file).read_bytes()).decode() for key, file in fonts.items()}
    )
    found = page.evaluate(BOXES, selector)
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("ORDERLENS_GOLDEN") == "write":
        kept[name] = found
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
        GOLDEN.write_text(f"{{\n{lines}\n}}\n")
    assert [box[0] for box in found] == [box[0] for box in kept[name]]
    moved = [
        (now, then)
        for now, then in zip(found, kept[name], strict=True)
        if any(abs(a - b) > TOLERANCE for a, b in zip(now[1:], then[1:], strict=True))
    ]
    assert not moved, f"{name}: {len(moved)} boxes differ from those kept, first {moved[0]}"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


def open_two_orders(page, address, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{address}#sample=s1&run=plain&a=forced-ar&b=random&step=9")
    page.locator(".tokens").nth(1).wait_for()


@pytest.mark.parametrize("size", SIZES)
def test_the_viewers_page_of_two_orders(page, address, size):
    open_two_orders(page, address, *SIZES[size])
    compare(page, f"sample-{size}", SAMPLE)


@pytest.mark.parametrize("size", SIZES)
def test_the_reports_first_screen(page, reports, size):
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.goto((reports / "plain.html").as_uri())
    page.locator("table.samples tbody tr").first.wait_for()
    compare(page, f"report-{size}", REPORT)


@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_moves_under_the_pointer(page, address, size, panels):
    open_two_orders(page, address, SIZES[size][0], 3000)
    if panels == 1:
        page.get_by_label("Compare with").select_option(label="nothing")
    everything = f"{SAMPLE}, .token, .plot, .worst, .shortcuts"
    for family, spacing in SPACING.items():
        page.evaluate(SET, [family, spacing])
        page.mouse.move(1, 1)
        at_rest = page.evaluate(BOXES, everything)
        targets = page.evaluate(BOXES, ".token[data-position]") + page.evaluate(BOXES, ".plot-box .plot")
        assert len(targets) == 25 * panels
        for _, x, y, width, height in targets:
            page.mouse.move(x + width / 2, y + height / 2)
            assert page.locator(".token.marked").count() == panels
            assert page.evaluate(BOXES, everything) == at_rest, family
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            "nothing sticks out"
        )


@pytest.mark.parametrize("size", SIZES)
def test_tokens_keep_their_place_while_passes_are_replayed(page, address, size):
    open_two_orders(page, address, SIZES[size][0], 3000)
    page.evaluate(SET, ["monospace", SPACING["monospace"]])
    at_rest = page.evaluate(BOXES, ".token")
    for key in ["ArrowRight"] * 3 + ["End", "Home", "b"]:
        page.keyboard.press(key)
        assert page.evaluate(BOXES, ".token") == at_rest
