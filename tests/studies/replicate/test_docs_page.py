"""The results as a page of a repository: complete, linked, and without the data set's text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orderlens.cli.main import main
from orderlens.errors import StorageError
from orderlens.store.reader import open_run
from orderlens.studies.results import write_docs


@pytest.fixture(scope="module")
def page(replication, tmp_path_factory):
    """The page of the small replication."""
    place = tmp_path_factory.mktemp("docs") / "results-control.md"
    return write_docs(replace(replication, notes=("A note.",)), place)


def test_every_finding_stands_under_its_outcome(page, replication):
    text = page.read_text()
    short = text[text.index("## In short") : text.index("## Figures")]
    headings = re.split(r"^### ", short, flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in headings] == [
        "Agrees with the paper",
        "Does not agree",
        "Left open by this run",
    ]
    for word, part in zip(("supported", "not supported", "left open"), headings, strict=True):
        claims = {item.claim for item in replication.reading.findings if item.outcome == word}
        assert {claim for claim in claims if claim in part} == claims
        assert part.count("\n| ") == (len(claims) + 2 if claims else 0)
    assert "- A note." in text


def test_every_picture_is_there(page, replication):
    links = re.findall(r"\]\((figures/[^)]+)\)", page.read_text())
    assert len(links) == 2 * len(replication.figures)
    assert all((page.parent / link).stat().st_size > 1000 for link in links)


def test_every_table_and_the_digests_are_there(page, replication):
    text = page.read_text()
    assert all(f"### {table.title}" in text for table in replication.tables)
    assert open_run(replication.folder / "runs" / "score").spec["data"]["digest"] in text


def test_no_text_of_the_data_appears(page, replication):
    """Neither prompts nor targets nor generated texts: numbers, and tokens inside one picture."""
    run = open_run([replication.folder / "runs" / name for name in ("score", "generate")])
    written = page.read_text()
    for row in run.outputs().to_arrow(["prompt_text", "text"]).to_pylist():
        for text in row.values():
            assert not text or text[:24] not in written


def test_what_people_wrote_on_the_page_is_kept(replication, tmp_path):
    place = tmp_path / "results.md"
    fresh = write_docs(replication, place).read_text()
    reading = "## Our reading\n\nWritten by hand.\n\n### In detail\n\n- One of 28 pairs."
    place.write_text(fresh.replace("## Figures", f"{reading}\n\n## Figures", 1))
    for _ in range(2):
        again = write_docs(replace(replication, notes=(*replication.notes, "Made again.")), place).read_text()
        assert again.replace("- Made again.\n", "").replace(f"{reading}\n\n", "") == fresh
        assert again.count(reading) == 1


def test_a_file_that_is_no_page_is_not_overwritten(replication, tmp_path):
    place = tmp_path / "results.md"
    place.write_bytes(b"\xff\xfe\x00 not text")
    with pytest.raises(StorageError, match="not UTF-8 text"):
        write_docs(replication, place)
    assert place.read_bytes().startswith(b"\xff\xfe")


def test_a_page_needs_results_and_a_place(replication, tmp_path, capsys):
    folder = str(replication.folder)
    assert main(["replicate", "--out", folder, "--decode-only", "--docs", str(tmp_path / "x.md")]) == 2
    assert "--docs needs the results" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_docs(replication, tmp_path / "file" / "page.md")
