"""A replication's own pages: the report, and the same as Markdown."""

from __future__ import annotations

import re


def test_the_markdown_file_links_the_pictures_and_holds_every_finding(replication):
    text = (replication.folder / "results.md").read_text(encoding="utf-8")
    for item in replication.figures:
        assert f"](figures/{item.name}.png)" in text
        assert (replication.folder / "figures" / f"{item.name}.png").is_file()
    for finding in replication.reading.findings:
        assert f"| {finding.claim} | {finding.outcome} |" in text
    for table in replication.tables:
        assert f"### {table.title}" in text


def test_the_report_shows_every_figure_table_finding_and_run(replication, read_html):
    page = read_html(replication.page.read_text(encoding="utf-8"))
    names = [value for name, value in page.attributes if name == "id"]
    cards = sum(value == "chart" for name, value in page.attributes if name == "class")
    assert cards == 3
    assert page.tags.count("img") == len(replication.figures) + cards
    assert sum(name.startswith("table-") for name in names) == len(replication.tables)
    assert sum(name.startswith("finding-") for name in names) == len(replication.reading.findings)
    text = " ".join(page.text)
    for part in (
        "not a likelihood",
        "range_of_means",
        "mean_of_ranges",
        "12 of 14 samples",
        "score",
        "sweep",
    ):
        assert part in text
    assert {"likelihood", "path", "parallel"} <= set(names), "the demo's third question"
    found = re.search(r"max-prob\+top=4 needs ([\d.]+) passes for ([\d.]+) tokens", text)
    assert found is not None
    assert 3 < float(found[2]) / float(found[1]) <= 4, "tokens per pass; a block may end with fewer"
