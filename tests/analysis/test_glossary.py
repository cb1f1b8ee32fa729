"""The glossary: every column of every table has an entry, and the page is the one that the data give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orderlens.analysis import glossary
from orderlens.analysis.table import table_names
from orderlens.errors import UserInputError
from orderlens.store.samples import samples_schema

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tables"
BY_ORDER = {"generation", "agreement"}
"""Tables whose columns are orders."""


def test_the_page_is_generated() -> None:
    page = (ROOT / glossary.PAGE).read_text(encoding="utf-8")
    assert page == glossary.as_markdown(), f"renew it: python recipes/glossary.py > {glossary.PAGE}"


@pytest.mark.parametrize("name", [*table_names(), "samples"])
def test_every_listed_column_has_an_entry(name: str) -> None:
    for table, columns in glossary.columns_of(name).items():
        missing = [column for column in columns if glossary.explain(column, table) is None]
        assert not missing, f"{table}: no entry for {missing}"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_the_listed_columns_are_those_of_the_real_tables(path: Path) -> None:
    listed = glossary.columns_of(path.stem)
    real = json.loads(path.read_text(encoding="utf-8"))
    assert list(listed) == list(real)
    for table, content in real.items():
        columns = [*content["keys"], *([] if table in BY_ORDER else content["columns"])]
        assert list(listed[table])[: len(columns)] == columns
        further = set(listed[table][len(columns) :])
        rows = {value for row in content["rows"] for value in row.values() if isinstance(value, str)}
        assert further - {"meaning"} <= rows, "further names are names of rows"


def test_samples_are_listed() -> None:
    assert list(glossary.columns_of("samples")["samples"]) == samples_schema(run=False).names


def test_anchors_and_columns_are_unique() -> None:
    found = glossary.entries()
    assert len({entry.anchor for entry in found}) == len(found)
    columns = [column for entry in found for column in entry.columns]
    assert len(set(columns)) == len(columns)


def test_no_entry_explains_a_column_that_does_not_exist() -> None:
    known = {
        name
        for table in [*table_names(), "samples"]
        for part, columns in glossary.columns_of(table).items()
        for column in columns
        for name in (column, f"{part}:{column}")
    }
    extra = {column for entry in glossary.entries() for column in entry.columns} - known
    assert all(column.startswith("viewer:") or column == "logq" for column in extra), extra


def test_a_column_of_one_table_has_its_own_entry() -> None:
    gap, text = glossary.explain("gap", "within-cell"), glossary.explain("gap", "viewer")
    assert gap is not None
    assert gap.term == "Var gap"
    assert text is not None
    assert text.term == "Gap of a text"
    assert glossary.explain("gap") is None


def test_sentences_are_short() -> None:
    for entry in glossary.entries():
        for sentence in entry.meaning.replace(";", ".").split(". "):
            assert len(sentence.split()) <= 30, f"{entry.term}: {sentence}"


def test_text_names_columns_and_facts() -> None:
    text = glossary.as_text(glossary.of_tables(["coherence"]), width=60)
    assert "Circulation  (median_abs, rms, signed_mean)" in text
    assert "  unit: nats per token" in text
    assert max(len(line) for line in text.splitlines()) <= 60


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(UserInputError, match="did you mean 'coherence'"):
        glossary.columns_of("coherenc")
