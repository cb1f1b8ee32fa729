"""Text files to documents, one at a time: ``.jsonl``, ``.txt``, each plain, ``.gz`` or ``.xz``.

Knows nothing of tokens. A ``.txt`` file is one document; a JSONL row is one document in its ``text`` field.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from orderlens.errors import DataFileError

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".txt", ".txt.gz", ".txt.xz")


def open_text(path: Path) -> TextIO:
    """Open ``path`` for reading as UTF-8, decompressing by its suffix."""
    if not path.is_file():
        raise DataFileError(f"{path}: no such file")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file; a malformed line is named by number."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _row(path, number, line)


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataFileError(f"{path}:{number}: not JSON ({error.msg})") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise DataFileError(f"{path}:{number}: expected an object with a string field 'text'")
    return row


def read_documents(path: Path) -> Iterator[str]:
    """Yield the non-empty documents of one file."""
    if not path.name.endswith(SUFFIXES):
        raise DataFileError(f"{path}: unknown kind of file (allowed: {', '.join(SUFFIXES)})")
    try:
        if ".jsonl" in path.suffixes:
            texts: Iterator[str] = (row["text"] for row in read_rows(path))
        else:
            texts = iter([_whole(path)])
        yield from (text for text in texts if text.strip())
    except (UnicodeDecodeError, EOFError, OSError, lzma.LZMAError) as error:
        raise DataFileError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def _whole(path: Path) -> str:
    with open_text(path) as stream:
        return stream.read()
