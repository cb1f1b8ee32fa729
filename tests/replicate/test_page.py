"""The page is one file without scripts or addresses, and shows hostile text as text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from orderlens.analysis.estimate import Estimate
from orderlens.analysis.judge import WORDS, Check, Finding, Number, Outcome, Reading
from orderlens.analysis.table import Column, Table
from orderlens.figures.catalogue import Drawn
from orderlens.replicate.pages import write_html
from orderlens.replicate.plan import make_plan

EVIL = "<script>alert(1)</script>\"&'<img src=x onerror=y>"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close."""

    VOID = ("meta", "img")

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


@pytest.fixture
def page(tmp_path):
    picture = tmp_path / "figures" / "one.svg"
    picture.parent.mkdir()
    picture.write_text(f"<svg xmlns='http://www.w3.org/2000/svg'><text>{'x' * 10}</text></svg>")
    columns = (Column("value", EVIL), Column("text", "text"))
    row = {"order": EVIL, "value": Estimate.undefined(EVIL), "text": EVIL}
    table = Table("t", EVIL, ("order",), columns, (row,), (EVIL,))
    findings = [
        Finding(
            "v",
            EVIL,
            (Check(EVIL, Estimate(1.0), outcome=Outcome(word, why=EVIL)),),
            EVIL,
            rule=EVIL,
            numbers=(Number(EVIL, Estimate(1.0), EVIL),),
            remarks=(EVIL,),
        )
        for word in WORDS
    ]
    figures = [Drawn("one", EVIL, (picture,)), Drawn("two", "two", why=EVIL)]
    plan = make_plan("quick", EVIL, EVIL)
    return read(write_html(tmp_path / "index.html", plan, [table], Reading(tuple(findings)), figures, [EVIL]))


def test_hostile_text_stays_text(page):
    assert "script" not in page.tags
    assert page.tags.count("img") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert EVIL in " ".join(page.text)


def test_nothing_is_fetched(page):
    places = [value for name, value in page.attributes if name in ("src", "href")]
    assert all(value.startswith(("data:image/", "figures/")) for value in places)
    policy = dict(page.attributes)["content"]
    assert "default-src 'none'" in policy or any("default-src 'none'" in str(v) for _, v in page.attributes)


def test_each_outcome_has_its_word(page):
    text = " ".join(page.text)
    for word in WORDS:
        assert f"{word.capitalize()}: 1 check" in text


def test_the_markdown_file_links_the_pictures_and_holds_every_finding(replication):
    text = (replication.results.folder / "results.md").read_text(encoding="utf-8")
    for item in replication.results.figures:
        assert f"](figures/{item.name}.png)" in text
        assert (replication.results.folder / "figures" / f"{item.name}.png").is_file()
    for finding in replication.results.reading.findings:
        assert f"| {finding.claim} | {finding.word} |" in text
    for table in replication.results.tables:
        assert f"### {table.title}" in text


def test_the_real_page_shows_every_figure_table_and_finding(replication):
    reader = read(replication.results.page)
    assert reader.tags.count("img") == len(replication.results.figures)
    assert reader.tags.count("table") == len(replication.results.tables)
    assert reader.tags.count("section") == len(replication.results.reading.findings)
    text = " ".join(reader.text)
    assert "no likelihood" in text
    assert "range_of_means" in text
    assert "mean_of_ranges" in text
