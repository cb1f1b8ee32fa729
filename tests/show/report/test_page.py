"""What a page tells of a run's origin, and tables and pictures as plain data."""

from __future__ import annotations

from pathlib import Path

import pytest

from orderlens.analysis.glossary import Entry
from orderlens.analysis.table import Column, Table
from orderlens.figures.catalogue import DrawnFigure
from orderlens.metrics.estimate import Estimate
from orderlens.show.report.page import (
    ColumnHead,
    asset,
    grid,
    markdown_tables,
    origin,
    picture,
    run_details,
    terms_of,
)
from orderlens.testing import make_run, make_trace

SPEC = {
    "kind": "sweep",
    "model": {"name": "hmm", "digest": "d"},
    "orders": ["max-prob", "random:3"],
    "temperatures": [0.0, 0.7],
    "seed": 0,
    "data": {"name": "passages", "n_samples": 12},
}
FACTS = {
    "spec": SPEC,
    "state": "complete",
    "rows": {"reveals": 12345},
    "spec_digest": "0123456789abcdef0123",
    "provenance": {
        "versions": {"orderlens": "0.2", "torch": None, "numpy": "2.0"},
        "hardware": {"processor": "a processor", "accelerators": ""},
        "time": "2026-01-01",
    },
}


def test_the_origin_of_a_run_in_pairs():
    assert origin(FACTS) == [
        ("kind", "sweep"),
        ("model", "hmm"),
        ("data", "passages, 12 samples"),
        ("orders", "max-prob, random:3"),
        ("temperatures", "0, 0.7"),
        ("seed", "0"),
        ("state", "complete"),
        ("reveals", "12,345"),
        ("spec digest", "0123456789abcdef"),
        ("versions", "orderlens 0.2, numpy 2.0"),
        ("computed on", "a processor"),
        ("started", "2026-01-01"),
    ]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("file.jsonl", "file.jsonl"),
        ({"source": "hub"}, "hub"),
        ({"tasks": {"arith": {}, "choice": {}}}, "arith, choice"),
        ({"name": "n", "source": "s", "n_samples": 0}, "n"),
        (None, None),
    ],
)
def test_data_are_named_by_what_the_spec_has(data, shown):
    assert dict(origin({"spec": {"data": data}})).get("data") == shown


def test_a_run_that_tells_nothing_has_no_origin():
    assert origin({}) == []
    assert dict(origin({"spec": {"model": "made up"}})) == {"model": "made up"}


def test_details_do_not_tell_where_a_run_lies(tmp_path):
    run = make_run([make_trace("a", "max-prob", [-1.0])])
    run.save(tmp_path / "somewhere")
    from orderlens.store.reader import open_run

    for opened in (run, open_run(tmp_path / "somewhere")):
        (facts,) = run_details(opened).values()
        assert str(tmp_path) not in repr(facts)
        assert facts["spec"]["model"] == "made up"


@pytest.mark.parametrize(
    ("paths", "first", "best", "why"),
    [
        (["a.svg", "a.png", "a.json"], ".png", "a.png", None),
        (["a.svg", "a.png", "a.json"], ".svg", "a.svg", None),
        (["a.svg", "a.json"], ".png", "a.svg", None),
        (["a.pdf", "a.json"], ".png", None, "no picture format was requested"),
    ],
)
def test_a_picture_is_shown_in_the_best_format_there_is(paths, first, best, why):
    found = picture(DrawnFigure("a", "A figure", tuple(map(Path, paths))))
    assert found.why == why
    if best is not None:
        assert found.best(first) == Path(best)


def test_a_figure_that_could_not_be_drawn_keeps_its_reason():
    assert picture(DrawnFigure("a", "A figure", why="nothing was scored")).why == "nothing was scored"
    only_svg = picture(DrawnFigure("a", "A", (Path("a.svg"),)), formats=(".png",))
    assert only_svg.why == "no picture format was requested"


TABLE = Table(
    "t",
    "A table",
    ("order",),
    (Column("x", "X (nats)", 2), Column("n", "n"), Column("y", "Y")),
    (
        {"order": "max-prob", "x": Estimate(-1.234, -2.0, -0.5, 9), "n": 3, "y": None},
        {"order": "random", "x": Estimate.undefined("too few"), "n": 0, "y": "word"},
    ),
    ("A note.",),
)


def test_a_grid_has_a_heading_per_column_and_a_text_per_cell():
    found = grid(TABLE)
    assert [head.text for head in found.heads] == ["order", "X (nats)", "n", "Y"]
    assert (found.name, found.title, found.notes) == ("t", "A table", ("A note.",))
    (head, first), (_, second) = found.rows
    assert head.text == "max-prob"
    assert first[0] == "-1.23 [-2.00, -0.50]"
    assert (first[1], second[1], second[2]) == ("3", "0", "word")
    assert "too few" in second[0]
    assert all(1 + len(cells) == len(found.heads) for _, cells in found.rows)


def test_heads_are_explained_by_the_glossary_where_it_lists_them():
    found = grid(TABLE)
    assert [head.entry and head.entry.term for head in found.heads] == ["Order", None, "n", None]
    row = {"metric": "var", "meaning": "Var(log q)"}
    by_metric = grid(Table("generation", "", ("metric",), (Column("meaning", "meaning"),), (row,)))
    assert by_metric.rows[0][0].entry.term == "Var"
    assert by_metric.rows[0][0].unit == "nats²"
    terms = [entry.term for entry in terms_of([found, by_metric, found])]
    assert terms == ["Order", "n", "Metric", "Var"]


def test_only_short_units_are_shown_below_a_head():
    long, several, short = (
        ColumnHead("x", Entry("t", "s", "m", unit=unit)) for unit in ("nats " * 9, "a; b", "nats")
    )
    assert [head.unit for head in (long, several, short, ColumnHead("x"))] == ["", "", "nats", ""]


def test_markdown_has_every_row_and_the_note():
    text = str(markdown_tables([TABLE, TABLE]))
    assert text.count("| max-prob |") == 2
    assert text.count("A note.") == 2


def test_an_asset_is_the_built_file_under_its_digest():
    import base64
    import hashlib

    for name in ("report.js", "page.css"):
        found = asset(name)
        assert len(found.text) > 1000
        digest = base64.b64encode(hashlib.sha256(found.text.encode()).digest()).decode()
        assert found.digest == f"sha256-{digest}"
