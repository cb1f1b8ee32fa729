"""Where a task's documents come from: a local file with the published fields, or the hub.

Knows nothing of prompts or grading; how files are read is in rowfiles.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from orderlens.common.hub import Repository, snapshot
from orderlens.errors import DataFileError
from orderlens.texts.rowfiles import kind_of, read_rows

Doc = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a data set on the hub.

    Attributes:
        repo: ``ORG/NAME``.
        pattern: glob that names the one file wanted, e.g. ``data/test-*.parquet``.
        revision: commit that the numbers in our docs refer to, or a branch where no commit is known.
    """

    repo: str
    pattern: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}"


def read_docs(
    source: str | Path | HubFile, required: Sequence[str], limit: int | None = None, lists: Sequence[str] = ()
) -> list[Doc]:
    """Return the rows of ``source`` in file order, each with all ``required`` fields.

    Args:
        source: a local file or one on the hub.
        required: fields that no row may lack.
        limit: at most so many rows, from the start.
        lists: fields that hold lists; CSV cells write them as JSON.

    Raises:
        DataFileError: the file is missing, malformed or lacks a field; the message names file and row.
    """
    path = fetch(source) if isinstance(source, HubFile) else Path(source)
    rows = islice(read_rows(path), limit)
    if kind_of(path) == "txt":
        raise DataFileError(
            f"{path}: a task's rows need the fields {', '.join(required)}; give JSON lines or CSV"
        )
    return [_checked(row, required, lists, f"{path}, row {number}") for number, row in rows]


def fetch(hub: HubFile, option: str = "--source") -> Path:
    """Return the local path of a hub file, downloading it when it is not in the cache.

    Args:
        hub: the file.
        option: the command-line option that takes a local file instead, for the message.
    """
    instead = f"give a local file with {option}"
    wanted = Repository("dataset", hub.repo, hub.revision, f"data set {hub}", instead)
    found = sorted(snapshot(wanted, [hub.pattern], DataFileError).glob(hub.pattern))
    if not found:
        raise DataFileError(f"{wanted.label} has no file {hub.pattern}; {instead} instead")
    return found[0]


def _checked(row: Doc, required: Sequence[str], lists: Sequence[str], where: str) -> Doc:
    for name in required:
        if row.get(name) is None:
            raise DataFileError(f"{where}: has no '{name}'; it needs {', '.join(required)}")
    for name in lists:
        row[name] = _as_list(row.get(name))
        if not isinstance(row[name], list):
            raise DataFileError(f"{where}: '{name}' is not a list")
    return row


def _as_list(value: Any) -> Any:
    """Read a list that a CSV cell spells as JSON; everything else is passed on."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
