"""Where a task's documents come from: a local file with the published fields, or the hub.

Formats: ``.jsonl``, ``.jsonl.gz`` and ``.parquet``. Knows nothing of prompts or grading.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from orderlens.errors import DataFileError, MissingPackageError, one_line

Doc = dict[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


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


def read_docs(source: str | Path | HubFile, required: Sequence[str], limit: int | None = None) -> list[Doc]:
    """Return the rows of ``source`` in file order, each with all ``required`` fields.

    Raises:
        DataFileError: the file is missing, malformed or lacks a field; the message names file and row.
    """
    path = fetch(source) if isinstance(source, HubFile) else Path(source)
    if not path.is_file():
        raise DataFileError(f"no such data file '{path}'; give a {', '.join(SUFFIXES)} file")
    rows = islice(_rows(path), limit)
    return [_checked(row, required, path, number) for number, row in enumerate(rows, start=1)]


def fetch(hub: HubFile) -> Path:
    """Return the local path of a hub file, downloading it when it is not in the cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingPackageError(
            f"reading {hub} needs huggingface-hub: pip install huggingface-hub, or give a local file"
        ) from error
    try:
        folder = snapshot_download(
            hub.repo, repo_type="dataset", revision=hub.revision, allow_patterns=[hub.pattern]
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataFileError(
            f"cannot get {hub} from the hub ({_why(error)}); give a local file instead"
        ) from error
    found = sorted(Path(folder).glob(hub.pattern))
    if not found:
        raise DataFileError(f"{hub} has no file {hub.pattern}; give a local file instead")
    return found[0]


def _why(error: Exception) -> str:
    """Return the short reason of a failed download; the hub's own messages run over many lines."""
    offline = type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError")
    return "no connection, and no copy in the cache" if offline else one_line(error)[:120]


def _rows(path: Path) -> Iterator[Any]:
    name = path.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet_rows(path)
    elif name.endswith((".jsonl", ".jsonl.gz", ".json.gz")):
        yield from _json_rows(path)
    else:
        raise DataFileError(f"cannot read '{path}': known formats are {', '.join(SUFFIXES)}")


def _json_rows(path: Path) -> Iterator[Any]:
    open_file = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with open_file(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield json.loads(line)
    except (ValueError, RecursionError, OSError, EOFError) as error:
        raise DataFileError(f"'{path}' line {max(number, 1)} is not JSON: {one_line(error)[:120]}") from error


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataFileError(f"'{path}' is not a Parquet file: {one_line(error)[:120]}") from error


def _checked(row: Any, required: Sequence[str], path: Path, number: int) -> Doc:
    if not isinstance(row, dict):
        raise DataFileError(f"'{path}' row {number} is not an object with fields")
    missing = [name for name in required if row.get(name) is None]
    if missing:
        raise DataFileError(f"'{path}' row {number} has no '{missing[0]}'; it needs {', '.join(required)}")
    return row
