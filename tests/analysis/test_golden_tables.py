"""Every registered table of fixed small runs of the exact control, against stored numbers.

To renew them after a deliberate change, run this file with ORDERLENS_RENEW_GOLDEN=1.
"""

from __future__ import annotations

import pytest

from orderlens.analysis import as_json, render, with_paper_values
from orderlens.analysis.table import TABLES

KINDS = {
    "fixed-sequence": "score",
    "generation": "generate",
    "reveal-order": "generate",
    "coherence": "score",
    "order-pairs": "score",
    "policies": None,
    "couplings": None,
    "locality": "states",
    "census": "census",
    "frontier": None,
    "speed": None,
    "temperature": "sweep",
    "downstream": "evaluate",
    "within-cell": "evaluate",
    "quadrants": "evaluate",
    "selectors": "evaluate",
    "votes": "evaluate",
    "content": "evaluate",
    "controls": "evaluate",
    "theory": "score",
    "null": "evaluate",
    "hits": "score",
    "tolerance": "sweep",
    "losses": "score",
}
"""Table → the runs it is made from."""


def numbers(table):
    """Return the rows of a table and its headings; notes are prose."""
    found = as_json(table)
    headings = {column.name: [column.heading, column.digits] for column in table.columns}
    return {"keys": found["keys"], "columns": headings, "rows": found["rows"]}


@pytest.mark.parametrize("name", KINDS)
def test_every_table_shows_the_stored_numbers(name, golden_studies, golden):
    tables = golden_studies[KINDS[name]].tables([name])
    assert name in {table.name for table in tables}
    found = {table.name: numbers(table) for table in tables}
    assert golden.differences("tables", name, found) == []
    assert all(table["rows"] for table in found.values())


@pytest.mark.parametrize("name", KINDS)
def test_every_column_of_a_csv_file_has_its_own_name(name, golden_studies):
    for table in golden_studies[KINDS[name]].tables([name]):
        heading = render([with_paper_values(table)], "csv").splitlines()[0].split(",")
        assert sorted(heading) == sorted(set(heading)), table.name


def test_no_table_is_left_out_and_no_file_left_over(golden):
    assert sorted(KINDS) == sorted(TABLES.names())
    files = list((golden.HERE / "tables").glob("*.json"))
    assert sorted(path.stem for path in files) == sorted(KINDS)
    assert sum(path.stat().st_size for path in files) < 250_000


SCORED = {"coherence", "fixed-sequence", "order-pairs", "theory"}
GENERATED = {"content", "generation", "reveal-order", "theory"}
GRADED = {"controls", "downstream", "null", "quadrants", "votes", "within-cell"}


@pytest.mark.parametrize(
    ("kind", "offered"),
    [
        ("score", SCORED),
        (None, SCORED | {"couplings", "frontier", "policies", "speed"}),
        ("sweep", GENERATED | {"temperature"}),
        ("census", SCORED | {"census", "frontier", "policies", "speed"}),
        ("evaluate", GENERATED | GRADED),
        ("states", SCORED | {"locality"}),
    ],
)
def test_runs_are_offered_the_tables_that_they_can_fill(kind, offered, golden_studies):
    assert set(golden_studies[kind].suited()) == offered
