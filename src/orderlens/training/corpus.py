"""Data files to training documents: one per row in its ``text`` field, or a ``.txt`` file cut as asked.

Knows nothing of tokens; how files are read is in rowfiles.py. Empty documents are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.errors import DataFileError
from orderlens.rowfiles import Row, TextSplit, at_home, kind_of, read_rows, text_shape


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of some files, and what is worth saying about how they were read.

    Attributes:
        documents: the texts, none of them empty.
        record: ``n_documents``, ``n_empty`` (left out), and for ``.txt`` files ``split``, ``lines`` and
            ``paragraphs``.
    """

    documents: list[str]
    record: dict[str, Any]


def read_corpus(files: Iterable[Path], split: TextSplit = "none") -> Corpus:
    """Read all documents of ``files``."""
    documents: list[str] = []
    n_empty = 0
    shape: dict[str, Any] = {}
    for path in files:
        for row in text_rows(path, split):
            if row["text"].strip():
                documents.append(row["text"])
            else:
                n_empty += 1
        if kind_of(path) == "txt":
            shape = {"split": split} | {
                name: n + shape.get(name, 0) for name, n in text_shape(at_home(path)).items()
            }
    return Corpus(documents, {"n_documents": len(documents), "n_empty": n_empty, **shape})


def read_documents(path: Path, split: TextSplit = "none") -> Iterator[str]:
    """Yield the non-empty documents of one file, one at a time."""
    return (row["text"] for row in text_rows(path, split) if row["text"].strip())


def text_rows(path: Path, split: TextSplit = "none") -> Iterator[Row]:
    """Yield the rows of one file, each with a text in its field ``text``."""
    for number, row in read_rows(path, split=split):
        if not isinstance(row.get("text"), str):
            found = ", ".join(map(str, list(row)[:8])) or "nothing"
            raise DataFileError(f"{path}, row {number}: training needs a 'text' field; it has {found}")
        yield row
