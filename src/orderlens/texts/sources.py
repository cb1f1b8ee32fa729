"""Rows from local files, the hub and the bundled passages, with their fields checked.

``read_docs`` returns the documents of a task, ``sample_rows`` the rows of samples. Every error names the file
and the row. Does not depend on tokenizers or grading; rows.py reads the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from orderlens.common.files import lost_slash
from orderlens.common.hub import Repository, snapshot
from orderlens.errors import DataFileError, UnknownNameError
from orderlens.registry import suggest
from orderlens.texts.rows import (
    FORMATS,
    NumberedRow,
    Row,
    TextSplit,
    is_folder,
    kind_of,
    path_exists,
    read_rows,
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a data set on the hub.

    Attributes:
        repo: ``ORG/NAME``.
        pattern: glob of the file, e.g. ``data/test-*.parquet``.
        revision: commit that the numbers in our docs refer to, or a branch if no commit is known.
    """

    repo: str
    pattern: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}"


def read_docs(
    source: str | Path | HubFile, required: Sequence[str], limit: int | None = None, lists: Sequence[str] = ()
) -> list[Row]:
    """Return the rows of ``source`` in file order, each with all ``required`` fields.

    Args:
        source: a local file or one on the hub.
        required: fields that every row must have.
        limit: maximum number of rows, from the start.
        lists: fields that are lists; in CSV cells, as JSON.

    Raises:
        DataFileError: the file is missing, malformed or lacks a field; the message names file and row.
    """
    path = fetch(source) if isinstance(source, HubFile) else Path(source)
    rows = islice(read_rows(path), limit)
    if kind_of(path) == "txt":
        raise DataFileError(
            f"{path}: the rows of a task need the fields {', '.join(required)}; give JSON Lines or CSV"
        )
    return [_checked(row, required, lists, f"{path}, row {number}") for number, row in rows]


def fetch(hub: HubFile, option: str = "--source") -> Path:
    """Return the local path of a hub file; it is downloaded if it is not in the cache.

    Args:
        hub: the file.
        option: the command-line option for a local file, named in the error message.
    """
    return fetch_all(hub, option)[0]


def fetch_all(hub: HubFile, option: str = "--source") -> list[Path]:
    """Return the local paths of all files that match ``hub.pattern``, sorted by name; see ``fetch``."""
    instead = f"give a local file with {option}"
    wanted = Repository("dataset", hub.repo, hub.revision, f"data set {hub}", instead)
    found = sorted(snapshot(wanted, [hub.pattern], DataFileError).glob(hub.pattern))
    if not found:
        raise DataFileError(f"{wanted.label} has no file {hub.pattern}; {instead} instead")
    return found


def _checked(row: Row, required: Sequence[str], lists: Sequence[str], where: str) -> Row:
    for name in required:
        if row.get(name) is None:
            raise DataFileError(f"{where}: has no '{name}'; it needs {', '.join(required)}")
    for name in lists:
        row[name] = _as_list(row.get(name))
        if not isinstance(row[name], list):
            raise DataFileError(f"{where}: '{name}' is not a list")
    return row


def _as_list(value: Any) -> Any:
    """Parse a list that a CSV cell contains as JSON; other values are returned unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


KINDS = ("news", "encyclopedia", "narrative", "howto", "dialogue", "qa")


@dataclass(frozen=True)
class Passage:
    """One bundled text.

    Attributes:
        id: Stable row id.
        kind: One of ``KINDS``.
        title: A headline; empty for ``qa``.
        text: The scoring text, at least 180 words; empty for ``qa``.
        prompt: Only for ``qa``: the question, ending in ``Answer:``.
        target: Only for ``qa``: the short answer with its leading space, so that prompt + target is the text.
    """

    id: str
    kind: str
    title: str = ""
    text: str = ""
    prompt: str = ""
    target: str = ""


def load_passages(kind: str | None = None) -> list[Passage]:
    """Return the bundled passages in a fixed order, all of them or those of one kind.

    The kinds of scoring texts alternate, so the first n are a balanced mixture; ``qa`` comes last.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"unknown kind of passage {kind!r}; choose one of {', '.join(KINDS)}")
    lines = (
        resources.files("orderlens.texts").joinpath("passages.jsonl").read_text(encoding="utf-8").splitlines()
    )
    passages = [Passage(**json.loads(line)) for line in lines]
    return [passage for passage in passages if kind in (None, passage.kind)]


BUILT_IN = ("passages", "c4")
LARGEST_ID = 2**31 - 1
"""Token ids are stored as 32-bit integers."""
LONGEST_SAMPLE_ID = 512


def sample_rows(source: str, split: TextSplit = "none") -> Iterator[Row]:
    """Yield checked rows with text ids; every error names the file and the row."""
    if source == "passages":
        yield from _passages()
        return
    if source == "c4":
        yield from _checked_samples(_c4(), "c4")
        return
    path = Path(source)
    if source and is_folder(path):  # "" is the path "."
        raise DataFileError(
            f"data '{source[:80]}' is a folder; give a built-in name ({', '.join(BUILT_IN)}) "
            f"or a file: {FORMATS}"
        )
    if (address := lost_slash(str(path))) is not None and not path_exists(path):
        raise DataFileError(f"'{address}' is an address; download the file and give its path")
    if not source or (not path.suffix and not path_exists(path)):
        hint = suggest(source, BUILT_IN)
        raise DataFileError(
            f"data file '{source[:80]}' does not exist{hint} "
            f"(built-in: {', '.join(BUILT_IN)}; files: {FORMATS})"
        )
    yield from _checked_samples(read_rows(path, split=split), source)


def _checked_samples(rows: Iterator[NumberedRow], source: str) -> Iterator[Row]:
    seen: set[str] = set()
    for index, (number, row) in enumerate(rows):
        where = f"{source}, row {number}"
        kept = {name: value for name, value in row.items() if value is not None}
        for name in ("id", "target", "suffix", "template"):
            if kept.get(name) == "":
                del kept[name]
        _check_content(kept, where)
        kept["id"] = _row_id(kept.get("id", index), where)
        if kept["id"] in seen:
            raise DataFileError(f"{where}: the id '{kept['id'][:60]}' occurs twice; ids must differ")
        seen.add(kept["id"])
        yield kept


def _check_content(row: Row, where: str) -> None:
    if "text" in row and not isinstance(row["text"], str):
        raise DataFileError(f"{where}: 'text' must be text, not {row['text']!r:.40}")
    if not row.keys() & {"text", "prompt", "template"}:
        found = ", ".join(map(str, list(row)[:8])) or "nothing"
        raise DataFileError(f"{where}: needs 'text', or 'prompt' (and 'target'); it has {found}")
    if not isinstance(row.get("template", ""), str) or ("template" in row and row.get("prompt")):
        raise DataFileError(f"{where}: 'template' must be text with holes such as [[8]], without a 'prompt'")
    for name in ("target", "suffix"):
        if name in row and "prompt" not in row:
            raise DataFileError(f"{where}: '{name}' needs a 'prompt', which the row lacks")
    for name in ("prompt", "target", "suffix"):
        if name in row:
            row[name] = _text_or_ids(row[name], f"{where}: '{name}'")


def _text_or_ids(value: object, what: str) -> str | list[int]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise DataFileError(f"{what} must be text or a list of token ids, not {value!r:.40}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise DataFileError(f"{what} contains {item!r:.40}; token ids are whole numbers")
        if not 0 <= item <= LARGEST_ID:
            raise DataFileError(f"{what} contains {str(item)[:20]}; token ids are from 0 to {LARGEST_ID}")
    return list(value)


def _row_id(value: object, where: str) -> str:
    if isinstance(value, list | dict | bool):
        raise DataFileError(f"{where}: 'id' must be a text or a number, not {value!r:.40}")
    text = str(value)
    if len(text) > LONGEST_SAMPLE_ID or "\x00" in text:
        raise DataFileError(f"{where}: 'id' is longer than {LONGEST_SAMPLE_ID} characters or contains a NUL")
    return text


def _passages() -> Iterator[Row]:
    yield from ({"id": passage.id, "text": passage.text} for passage in load_passages() if passage.text)


C4 = HubFile("allenai/c4", "en/c4-validation.*-of-*.json.gz", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
"""All shards of the English validation split, at one revision."""


def _c4() -> Iterator[NumberedRow]:
    """Yield the rows of all shards; the id names shard and row, because C4 has no ids."""
    paths = fetch_all(C4, "--data")
    expected = int(paths[0].name.partition("-of-")[2].partition(".")[0])
    if len(paths) != expected:
        raise DataFileError(
            f"data set {C4}: {len(paths)} of {expected} shards of the validation split are in the cache; "
            "download the others, or give a local file with --data"
        )
    for shard, path in enumerate(paths):
        for number, row in read_rows(path):
            yield NumberedRow(number, {"id": f"{shard}-{number}", "text": row.get("text")})
