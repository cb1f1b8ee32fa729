"""Rows of samples from a file or a built-in source, checked: what a row may hold, and what its id may be.

Every error names the file and the place. Knows no tokenizer: texts stay texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orderlens.errors import DataFileError
from orderlens.registry import suggest
from orderlens.texts.rowfiles import FORMATS, Numbered, Row, TextSplit, is_folder, is_there, read_rows
from orderlens.texts.samples import TextOrTokens

BUILT_IN = ("passages", "c4")
LARGEST_ID = 2**31 - 1
"""Token ids are stored as 32-bit integers."""
LONGEST_SAMPLE_ID = 512


def sample_rows(source: str, split: TextSplit = "none") -> Iterator[Row]:
    """Yield checked rows with string ids; every error names the file and the place."""
    if source == "passages":
        yield from _passages()
        return
    if source == "c4":
        yield from _checked(read_rows(_c4()), "c4")
        return
    path = Path(source)
    if source and is_folder(path):  # "" is the path "."
        raise DataFileError(
            f"data '{source[:80]}' is a folder; give a dataset's name ({', '.join(BUILT_IN)}) "
            f"or a file: {FORMATS}"
        )
    if not source or (not path.suffix and not is_there(path)):
        hint = suggest(source, BUILT_IN)
        raise DataFileError(
            f"data file '{source[:80]}' does not exist{hint} "
            f"(built-in: {', '.join(BUILT_IN)}; files: {FORMATS})"
        )
    yield from _checked(read_rows(path, split=split), source)


def _checked(rows: Iterator[Numbered], source: str) -> Iterator[Row]:
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
        raise DataFileError(f"{where}: 'template' must be text with holes such as [[8]], and no 'prompt'")
    for name in ("target", "suffix"):
        if name in row and "prompt" not in row:
            raise DataFileError(f"{where}: '{name}' goes with 'prompt', which the row lacks")
    for name in ("prompt", "target", "suffix"):
        if name in row:
            row[name] = _text_or_ids(row[name], f"{where}: '{name}'")


def _text_or_ids(value: object, what: str) -> TextOrTokens:
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise DataFileError(f"{what} must be text or a list of token ids, not {value!r:.40}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise DataFileError(f"{what} holds {item!r:.40}; token ids are whole numbers")
        if not 0 <= item <= LARGEST_ID:
            raise DataFileError(f"{what} holds {str(item)[:20]}; token ids lie between 0 and {LARGEST_ID}")
    return list(value)


def _row_id(value: object, where: str) -> str:
    if isinstance(value, list | dict | bool):
        raise DataFileError(f"{where}: 'id' must be a text or a number, not {value!r:.40}")
    text = str(value)
    if len(text) > LONGEST_SAMPLE_ID or "\x00" in text:
        raise DataFileError(f"{where}: 'id' is longer than {LONGEST_SAMPLE_ID} characters or holds a NUL")
    return text


def _passages() -> Iterator[Row]:
    from orderlens.texts.passages import load_passages

    yield from ({"id": passage.id, "text": passage.text} for passage in load_passages() if passage.text)


def _c4() -> Path:
    from orderlens.texts.sources import HubFile, fetch

    return fetch(HubFile("allenai/c4", "en/c4-validation.00000-of-00008.json.gz"), "--data")
