"""Files to documents: what counts as one, what is left out, and what is said about it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from orderlens.errors import DataFileError
from orderlens.training.data import read_corpus, read_documents

TEXT = "one\nstill one\n\n\ntwo\n\n   \nthree\n"


def lines(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("split", "documents", "n_empty"),
    [
        ("none", [TEXT], 0),
        ("lines", ["one", "still one", "two", "three"], 0),
        ("paragraphs", ["one\nstill one", "two", "three"], 0),
    ],
)
def test_a_text_file_is_cut_as_asked(tmp_path: Path, split: str, documents: list[str], n_empty: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    corpus = read_corpus([path], split)  # type: ignore[arg-type]
    assert [text.strip() for text in corpus.documents] == [text.strip() for text in documents]
    assert corpus.record["split"] == split
    assert (corpus.record["n_documents"], corpus.record["n_empty"]) == (len(documents), n_empty)
    assert [text.strip() for text in read_documents(path, split)] == [t.strip() for t in documents]  # type: ignore[arg-type]


def test_files_add_up_in_their_order_and_empty_rows_are_counted(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.jsonl", [{"text": "A"}, {"text": " \n"}, {"text": "B", "id": 3}])
    second = tmp_path / "b.txt.gz"
    with gzip.open(second, "wt", encoding="utf-8") as stream:
        stream.write("C\n\nD\n")
    third = tmp_path / "c.txt"
    third.write_text("E\nF\n\nG\n", encoding="utf-8")
    corpus = read_corpus([first, second, third], "paragraphs")
    assert corpus.documents == ["A", "B", "C", "D", "E\nF", "G"]
    assert corpus.record == {
        "n_documents": 6,
        "n_empty": 1,
        "split": "paragraphs",
        "lines": 2 + 3,
        "paragraphs": 2 + 2,
    }


def test_rows_alone_say_nothing_of_lines(tmp_path: Path) -> None:
    assert read_corpus([lines(tmp_path / "a.jsonl", [{"text": "A"}])]).record == {
        "n_documents": 1,
        "n_empty": 0,
    }


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"texts": "A"}, "this row has texts"),
        ({"text": None, "id": 1}, "this row has text, id"),
        ({"text": ["A"]}, "this row has text"),
        ({}, "this row has nothing"),
        ({str(place): 0 for place in range(12)}, "this row has 0, 1, 2, 3, 4, 5, 6, 7"),
    ],
)
def test_a_row_without_text_is_named(tmp_path: Path, row: dict[str, object], found: str) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "fine"}, row])
    with pytest.raises(DataFileError) as caught:
        read_corpus([path])
    assert str(caught.value) == f"{path}, row 2: training needs a field 'text'; {found}"
