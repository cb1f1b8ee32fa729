"""Templates escape what they are given, in HTML and in Markdown, and pages are written whole."""

from __future__ import annotations

import sys
from urllib.parse import unquote

import pytest

from orderlens.common import templating
from orderlens.common.templating import Markdown, fill, write_page
from orderlens.errors import MissingPackageError
from orderlens.figures.catalogue import DrawnFigure
from orderlens.show.report.page import picture
from orderlens.studies.downstream import NOTES, DownstreamReading

EVIL = "<script>alert('1')</script> & | <b>"


def downstream(**more):
    reading = DownstreamReading((), (EVIL,))
    return {
        "downstream": reading,
        "groups": reading.groups(),
        "rules": NOTES,
        "pictures": [],
        "tables": [],
    } | more


def test_markdown_cannot_carry_html():
    text = fill("downstream.md.j2", **downstream(pictures=[picture(DrawnFigure("a", EVIL, why=EVIL))]))
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;alert('1')" in text, "escaped once, quotes stay readable"
    assert "&amp;lt;" not in text


def test_tables_made_as_markdown_pass_unchanged():
    table = {
        "name": "t",
        "title": "T",
        "notes": [EVIL],
        "elsewhere": False,
        "text": Markdown("| a |\n| --- |"),
    }
    assert "| a |\n| --- |" in fill("downstream.md.j2", **downstream(tables=[table]))


def test_a_built_asset_may_not_end_its_element():
    with pytest.raises(ValueError, match="may end its element"):
        templating._verbatim("a</script>b")


def test_drawings_lose_decimals_of_places_and_nothing_else(tmp_path):
    drawing = tmp_path / "a.svg"
    drawing.write_text(
        '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><path d="M 1.23456 2.5" '
        'transform="scale(0.015625)"/><text x="1.23999">#1.23456 "&quot;é</text></svg>'
    )
    address = templating.data_uri(drawing)
    assert not set('"<>#') & set(address), "nothing that would end an attribute or start a fragment"
    text = unquote(address.partition(",")[2])
    assert text.startswith("<svg ")
    for part in ('d="M 1.23 2.5"', "scale(0.015625)", 'x="1.23"', "#1.23456", "é"):
        assert part in text


def test_a_missing_value_is_an_error_and_leaves_the_old_page(tmp_path):
    place = tmp_path / "page.md"
    place.write_text("old")
    with pytest.raises(Exception, match="undefined"):
        write_page(place, "replication.md.j2")
    assert place.read_text() == "old"


def test_without_jinja_the_package_is_named(monkeypatch):
    templating._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    try:
        with pytest.raises(MissingPackageError, match="pages need jinja2; install it"):
            templating.fill("sample.html.j2")
    finally:
        templating._environment.cache_clear()
